// Operands: rows of activations in the form the products read them. See docs/decisions/0002.
//
// INT8: a row is a run of Int8Group, one for each 32 columns. For weights of integer codes.
// INT8_OUTLIERS: such a run without the outliers of the row, then an OutlierHeader, then [groups][32] fp32 with the
// outliers at their columns and zeros between; groups without any are not written. An outlier would make the step size of
// its group coarse, and such groups cause most of the rounding error of a row; so products add what outliers give exactly
// (outliers.h). Scales are powers of two times one unit a row, by which products multiply at no cost.
// INT8_ROW: an Int8RowHeader, then int8 codes with one scale for all of the row. For weights with a scale for each row.
// BF16: a row of values rounded to bf16. AVX2 and scalar builds keep the rounded values as fp32, which their
// multipliers want; AVX-512 keeps bf16.
//
// Rows are padded to 32 columns with zeros. Groups of codes are the same for all instruction sets, dots of codes are
// exact and the floating point that follows has a fixed order: products agree bit for bit.
#pragma once
#include <algorithm>

#include "kernels.h"
#include "vec.h"

namespace octavo {
namespace {

constexpr int kGroup = OCT_OPERAND_GROUP;  // what K is padded to
constexpr int kHalf = kGroup / 2;  // columns that a scale of a 6-bit weight covers

struct Int8Group {
  int8_t codes[kGroup];      // -127..127
  int32_t negated_sums[3];   // of the codes of each half, and of all: where a dot with codes less their zero starts
  uint32_t outliers;         // a bit for each column that is one; its code is 0
  union {
    float scale;             // INT8: value = scale * code
    int32_t doublings;       // INT8_OUTLIERS: value = unit * 2^doublings * code; as the exponent of an fp32, 23 bits up
  };
  float sum;                 // of the values, without outliers and in the row's unit: a weight's minimum times this
};
static_assert(sizeof(Int8Group) == 56, "operand rows are read by offsets");

struct OutlierHeader {  // of an INT8_OUTLIERS row
  float unit;           // what sums of products, and outliers, are counted in
  float padding;
};

struct Int8RowHeader {  // value = scale * code
  float scale;
  int32_t negated_sum;  // of the codes
  uint8_t padding[56];
};
static_assert(sizeof(Int8RowHeader) == 64, "codes start on a cache line");

#ifdef OCT_VEC_AVX512
using Bf16Element = uint16_t;
#else
using Bf16Element = float;
#endif

inline int64_t padded_columns(int64_t columns) { return (columns + kGroup - 1) / kGroup * kGroup; }

// Where header and outliers of an INT8_OUTLIERS row begin.
inline int64_t outlier_header_offset(int64_t num_groups) { return num_groups * int64_t(sizeof(Int8Group)); }
inline int64_t outliers_offset(int64_t num_groups) {
  return outlier_header_offset(num_groups) + int64_t(sizeof(OutlierHeader));
}

inline int64_t operand_row_bytes(int kind, int64_t columns) {
  int64_t groups = padded_columns(columns) / kGroup;
  int64_t bytes = 0;
  switch (kind) {
    case OCT_BUFFER_OPERAND_BF16: bytes = groups * kGroup * int64_t(sizeof(Bf16Element)); break;
    case OCT_BUFFER_OPERAND_INT8: bytes = groups * int64_t(sizeof(Int8Group)); break;
    case OCT_BUFFER_OPERAND_INT8_OUTLIERS:
      bytes = outliers_offset(groups) + groups * kGroup * int64_t(sizeof(float));
      break;
    case OCT_BUFFER_OPERAND_INT8_ROW: bytes = int64_t(sizeof(Int8RowHeader)) + groups * kGroup; break;
  }
  int64_t lines = (bytes + 63) / 64;
  return (lines | 1) * 64;  // an odd number of cache lines, so that rows do not fall on the same sets
}

inline void round_group_to_bf16(const float* values, float* dst) {
  for (int i = 0; i < kGroup; ++i) dst[i] = bf16_to_float(float_to_bf16(values[i]));
}
inline void round_group_to_bf16(const float* values, uint16_t* dst) {
  for (int i = 0; i < kGroup; i += F32::width) F32::load(values + i).store_bf16(dst + i);
}

inline float largest_magnitude(const float* values, int count) {
  F32 largest = F32::zero();
  for (int i = 0; i < count; i += F32::width) largest = max(largest, abs(F32::load(values + i)));
  return largest.max();
}

// codes = values[32] * inverse, rounded to nearest, ties to even, and their sums; no outliers.
#if defined(OCT_VEC_AVX512)
inline __m128i round_half_to_codes(const float* values, __m512 inverse) {
  return _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(values), inverse)));
}

inline void round_to_codes(const float* values, float inverse, Int8Group* dst) {
  __m512 factor = _mm512_set1_ps(inverse);
  __m128i first = round_half_to_codes(values, factor), second = round_half_to_codes(values + kHalf, factor);
  __m256i codes = _mm256_inserti128_si256(_mm256_castsi128_si256(first), second, 1);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(dst->codes), codes);
  __m256i sums = _mm256_dpbusd_epi32(_mm256_setzero_si256(), _mm256_set1_epi8(1), codes);  // of 4 codes each
  sums = _mm256_add_epi32(sums, _mm256_shuffle_epi32(sums, 0x4e));
  sums = _mm256_add_epi32(sums, _mm256_shuffle_epi32(sums, 0xb1));
  __m128i first_sum = _mm256_castsi256_si128(sums), second_sum = _mm256_extracti128_si256(sums, 1);
  __m128i total = _mm_move_epi64(_mm_blend_epi32(_mm_add_epi32(first_sum, second_sum), _mm_setzero_si128(), 2));
  __m128i all = _mm_unpacklo_epi64(_mm_unpacklo_epi32(first_sum, second_sum), total);  // both halves, the group, 0
  static_assert(offsetof(Int8Group, outliers) == offsetof(Int8Group, negated_sums) + 12, "stored at once");
  uint8_t* sums_and_outliers = reinterpret_cast<uint8_t*>(dst) + offsetof(Int8Group, negated_sums);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(sums_and_outliers), _mm_sub_epi32(_mm_setzero_si128(), all));
}
#else
#if defined(OCT_VEC_SCALAR)
inline int round_half_to_codes(const float* values, float inverse, int8_t* codes) {
  int sum = 0;
  for (int i = 0; i < kHalf; ++i) {
    float rounded = nearbyintf(values[i] * inverse);
    int code = fabsf(rounded) <= 127.0f ? int(rounded) : 0;  // a number that is not finite has no code
    codes[i] = int8_t(code);
    sum += code;
  }
  return sum;
}
#else
inline __m256i round_eight(const float* values, __m256 inverse) {
  return _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(values), inverse));
}

inline int round_half_to_codes(const float* values, float inverse, int8_t* codes) {
  __m256 factor = _mm256_set1_ps(inverse);
  // Packing works within halves of 128 bits: quarters of 4 codes come out as 0 2 1 3.
  __m256i words = _mm256_packs_epi32(round_eight(values, factor), round_eight(values + 8, factor));
  words = _mm256_permute4x64_epi64(words, 0xd8);
  __m128i packed = _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(codes), packed);
  __m256i quads = _mm256_madd_epi16(words, _mm256_set1_epi16(1));
  __m128i sums = _mm_add_epi32(_mm256_castsi256_si128(quads), _mm256_extracti128_si256(quads, 1));
  sums = _mm_add_epi32(sums, _mm_unpackhi_epi64(sums, sums));
  return _mm_cvtsi128_si32(sums) + _mm_extract_epi32(sums, 1);
}
#endif

inline void round_to_codes(const float* values, float inverse, Int8Group* dst) {
  for (int half = 0; half < 2; ++half) {
    dst->negated_sums[half] = -round_half_to_codes(values + half * kHalf, inverse, dst->codes + half * kHalf);
  }
  dst->negated_sums[2] = dst->negated_sums[0] + dst->negated_sums[1];
  dst->outliers = 0;
}
#endif

// A group below this is zero for all purposes: the reciprocal of its scale would overflow.
constexpr float kLeastMagnitude = 1e-30f;

inline void quantize_group(const float* values, float magnitude, Int8Group* dst) {
  bool is_zero = magnitude < kLeastMagnitude;
  round_to_codes(values, is_zero ? 0.0f : 127.0f / magnitude, dst);
  dst->scale = is_zero ? 0.0f : magnitude * (1.0f / 127.0f);
  dst->sum = dst->scale * float(-dst->negated_sums[2]);
}

// Groups values_of(g)[32] to place_of(g), some at a time: their magnitudes first, since each is a long chain of
// dependent steps.
template <class ValuesOf, class PlaceOf>
inline void quantize_groups(int64_t count, ValuesOf values_of, PlaceOf place_of) {
  constexpr int64_t chunk = 12;
  float magnitudes[chunk];
  for (int64_t first = 0; first < count; first += chunk) {
    int64_t groups = count - first < chunk ? count - first : chunk;
    for (int64_t g = 0; g < groups; ++g) magnitudes[g] = largest_magnitude(values_of(first + g), kGroup);
    for (int64_t g = 0; g < groups; ++g) quantize_group(values_of(first + g), magnitudes[g], place_of(first + g));
  }
}

inline Int8Group* group_at(const Operand& dst, int64_t row, int64_t column) {
  return reinterpret_cast<Int8Group*>(dst.data + row * dst.row_bytes) + column / kGroup;
}

// values[count * 32] to groups [group, group + count) of a row.
inline void quantize_groups(const float* values, int64_t count, Operand dst, int row, int64_t group) {
  if (dst.kind != OCT_BUFFER_OPERAND_BF16) {
    Int8Group* groups = group_at(dst, row, group * kGroup);
    auto values_of = [=](int64_t g) { return values + g * kGroup; };
    return quantize_groups(count, values_of, [=](int64_t g) { return groups + g; });
  }
  Bf16Element* elements = reinterpret_cast<Bf16Element*>(dst.data + row * dst.row_bytes) + group * kGroup;
  for (int64_t g = 0; g < count; ++g) round_group_to_bf16(values + g * kGroup, elements + g * kGroup);
}

// values[count] to columns [column, column + count) of a row; column is a multiple of 32, and so is count unless the
// columns end the row, which is then padded with zeros. Not for INT8_OUTLIERS, which takes whole rows.
inline void quantize_columns(const float* values, int64_t count, Operand dst, int row, int64_t column) {
  int64_t whole = count / kGroup;
  quantize_groups(values, whole, dst, row, column / kGroup);
  if (count % kGroup == 0) return;
  float padded[kGroup] = {};
  for (int64_t i = whole * kGroup; i < count; ++i) padded[i - whole * kGroup] = values[i];
  quantize_groups(padded, 1, dst, row, column / kGroup + whole);
}

// Group `group` of a row of `columns` values, padded with zeros.
inline void copy_group(const float* values, int64_t columns, int64_t group, float* dst) {
  int64_t first = group * kGroup, present = columns - first < kGroup ? columns - first : kGroup;
  for (int64_t i = 0; i < kGroup; ++i) dst[i] = i < present ? values[first + i] : 0.0f;
}

// An outlier is larger than this many times the average of what is largest in each of the row's groups. Chosen by
// measurement: docs/decisions/0002.
constexpr float kOutlierAbove = 1.4f;

// A row's unit is the scale of a group that reaches the bound of outliers, halved so often.
constexpr int kMostDoublings = 20;

// How often the unit is doubled for the scale of a group with values up to `magnitude`.
inline int doublings_for(float magnitude, float bound) {
  int halvings = int(float_to_bits(bound) - float_to_bits(magnitude)) >> 23;  // of their ratio the whole part of log2
  return kMostDoublings - std::clamp(halvings, 0, kMostDoublings);
}

inline float power_of_two(int exponent) { return bits_to_float(uint32_t(exponent + 127) << 23); }

// Values up to `magnitude`; inverse_unit is 127 / bound, at the unit's size.
inline void quantize_group_in_units(const float* values, float magnitude, float bound, float inverse_unit,
                                    Int8Group* dst) {
  int doublings = doublings_for(magnitude, bound);
  round_to_codes(values, inverse_unit * power_of_two(-doublings), dst);
  dst->doublings = doublings << 23;
  dst->sum = float(-dst->negated_sums[2]) * power_of_two(doublings);
}

// values[32] as those up to `bound` and, times `factor`, the others, with zeros where the other is. Returns which are
// above: a bit for each.
#if defined(OCT_VEC_AVX512)
inline uint32_t part_outliers(const float* values, float bound, float factor, float* rest, float* kept) {
  uint32_t outliers = 0;
  for (int i = 0; i < kGroup; i += F32::width) {
    __m512 part = _mm512_loadu_ps(values + i);
    __mmask16 above = _mm512_cmp_ps_mask(_mm512_abs_ps(part), _mm512_set1_ps(bound), _CMP_GT_OQ);
    _mm512_storeu_ps(rest + i, _mm512_maskz_mov_ps(__mmask16(~above), part));
    _mm512_storeu_ps(kept + i, _mm512_maskz_mul_ps(above, part, _mm512_set1_ps(factor)));
    outliers |= uint32_t(above) << i;
  }
  return outliers;
}
#else
inline uint32_t part_outliers(const float* values, float bound, float factor, float* rest, float* kept) {
  uint32_t outliers = 0;
  for (int i = 0; i < kGroup; ++i) {
    bool is_outlier = fabsf(values[i]) > bound;
    outliers |= uint32_t(is_outlier) << i;
    rest[i] = is_outlier ? 0.0f : values[i];
    kept[i] = is_outlier ? values[i] * factor : 0.0f;
  }
  return outliers;
}
#endif

// The group without its outliers, and those alone. Without any, `kept` is not written.
inline void quantize_apart_from_outliers(const float* values, float magnitude, float bound, float inverse_unit,
                                         Int8Group* dst, float* kept) {
  if (!(magnitude > bound)) return quantize_group_in_units(values, magnitude, bound, inverse_unit, dst);
  float rest[kGroup];
  uint32_t outliers = part_outliers(values, bound, inverse_unit, rest, kept);
  quantize_group_in_units(rest, largest_magnitude(rest, kGroup), bound, inverse_unit, dst);
  dst->outliers = outliers;
}

inline void quantize_row_with_outliers(const float* values, Operand dst, int row) {
  uint8_t* dst_row = dst.data + row * dst.row_bytes;
  int64_t num_groups = padded_columns(dst.columns) / kGroup, whole = dst.columns / kGroup;
  Int8Group* groups = reinterpret_cast<Int8Group*>(dst_row);
  float* kept = reinterpret_cast<float*>(dst_row + outliers_offset(num_groups));
  float last_group[kGroup];
  if (whole < num_groups) copy_group(values, dst.columns, whole, last_group);
  auto values_of = [&](int64_t g) { return g < whole ? values + g * kGroup : last_group; };
  float total = 0.0f;
  for (int64_t g = 0; g < num_groups; ++g) {
    groups[g].scale = largest_magnitude(values_of(g), kGroup);  // until the bound is known
    total += groups[g].scale;
  }
  float bound = kOutlierAbove / float(num_groups) * total;
  float inverse_unit = bound < kLeastMagnitude ? 0.0f : 127.0f / bound * power_of_two(kMostDoublings);
  for (int64_t g = 0; g < num_groups; ++g) {
    quantize_apart_from_outliers(values_of(g), groups[g].scale, bound, inverse_unit, groups + g, kept + g * kGroup);
  }
  float unit = bound * (power_of_two(-kMostDoublings) / 127.0f);
  *reinterpret_cast<OutlierHeader*>(dst_row + outlier_header_offset(num_groups)) = {unit, 0.0f};
}

inline void quantize_whole_row(const float* values, Operand dst, int row) {
  uint8_t* dst_row = dst.data + row * dst.row_bytes;
  int64_t num_groups = padded_columns(dst.columns) / kGroup;
  float group_values[kGroup], magnitude = 0.0f;
  for (int64_t g = 0; g < num_groups; ++g) {
    copy_group(values, dst.columns, g, group_values);
    float largest = largest_magnitude(group_values, kGroup);
    magnitude = largest > magnitude ? largest : magnitude;
  }
  float inverse = magnitude < kLeastMagnitude ? 0.0f : 127.0f / magnitude;
  int32_t negated_sum = 0;
  for (int64_t g = 0; g < num_groups; ++g) {
    Int8Group group;
    copy_group(values, dst.columns, g, group_values);
    round_to_codes(group_values, inverse, &group);
    memcpy(dst_row + sizeof(Int8RowHeader) + g * kGroup, group.codes, kGroup);
    negated_sum += group.negated_sums[2];
  }
  Int8RowHeader* header = reinterpret_cast<Int8RowHeader*>(dst_row);
  header->scale = inverse == 0.0f ? 0.0f : magnitude * (1.0f / 127.0f);
  header->negated_sum = negated_sum;
}

inline bool takes_whole_rows(int kind) {
  return kind == OCT_BUFFER_OPERAND_INT8_OUTLIERS || kind == OCT_BUFFER_OPERAND_INT8_ROW;
}

// values[dst.columns] to a row of any operand kind.
inline void quantize_row(const float* values, Operand dst, int row) {
  if (dst.kind == OCT_BUFFER_OPERAND_INT8_ROW) return quantize_whole_row(values, dst, row);
  if (dst.kind == OCT_BUFFER_OPERAND_INT8_OUTLIERS) return quantize_row_with_outliers(values, dst, row);
  quantize_columns(values, dst.columns, dst, row, 0);
}

// Few rows are shared by columns, many by rows.
inline void quantize_share(const QuantizeArgs& args, ThreadShare share) {
  int64_t groups = padded_columns(args.dst.columns) / kGroup;
  int64_t items = args.num_rows * groups;
  int64_t first = items * share.thread / share.num_threads, last = items * (share.thread + 1) / share.num_threads;
  while (first < last) {
    int64_t row = first / groups, group = first % groups;
    int64_t end = groups - group < last - first ? groups : group + last - first;
    int64_t column = group * kGroup, last_column = end * kGroup;
    if (last_column > args.dst.columns) last_column = args.dst.columns;
    quantize_columns(args.src.data + row * args.src.stride + column, last_column - column, args.dst, int(row), column);
    first += end - group;
  }
}

inline void quantize(const QuantizeArgs& args, ThreadShare share) {
  if (!takes_whole_rows(args.dst.kind)) return quantize_share(args, share);
  for (int row = share.thread; row < args.num_rows; row += share.num_threads) {
    quantize_row(args.src.data + row * args.src.stride, args.dst, row);
  }
}

}  // namespace
}  // namespace octavo
