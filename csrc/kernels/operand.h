// Operands: rows of activations in the form the products read them. See docs/decisions/0002.
//
// INT8: a row is a run of Int8Group, one for each 32 columns; for weights with codes of 4 to 6 bits.
// INT16: a row is a run of Int16Group; for weights of 8 bits, which deserve it and cost no more that way.
// BF16: a row of values rounded to bf16. AVX2 and scalar builds keep the rounded values as fp32, which their
// multipliers want; AVX-512 keeps bf16.
//
// Rows are padded to 32 columns with zeros. INT8 and INT16 rows are the same for all instruction sets, dots of codes
// are exact and the floating point that follows has a fixed order: products agree bit for bit.
#pragma once
#include "kernels.h"
#include "vec.h"

namespace octavo {
namespace {

constexpr int kGroup = 32;         // what K is padded to
constexpr int kScaleColumns = 16;  // columns that share a step size in INT8 operands
constexpr int kParts = kGroup / kScaleColumns;

// value = scale * factors[part] * code: a step size of its own for each half, and yet one scale, since the factors are
// whole numbers and take part in the integer dot.
struct Int8Group {
  int8_t codes[kGroup];              // -127..127
  int16_t factor_pairs[kParts][2];   // each factor twice, as vpmaddwd wants it
  float factors[kParts];             // 1..127
  float scale;                       // 16 significant bits: scale * factor is exact
  float sum;                         // of the values: what a weight's minimum or zero point is multiplied by
  float part_sums[kParts];           // of the values of each half
};
static_assert(sizeof(Int8Group) == 64, "a cache line");

struct Int16Group {  // value = scale * code
  int16_t codes[kGroup];
  float scale;
};
static_assert(sizeof(Int16Group) == 68, "operand rows are read by offsets");

#ifdef OCT_VEC_AVX512
using Bf16Element = uint16_t;
#else
using Bf16Element = float;
#endif

inline int64_t padded_columns(int64_t columns) { return (columns + kGroup - 1) / kGroup * kGroup; }

inline int64_t operand_row_bytes(int kind, int64_t columns) {
  int64_t groups = padded_columns(columns) / kGroup;
  int64_t bytes = kind == OCT_BUFFER_OPERAND_INT8    ? groups * int64_t(sizeof(Int8Group))
                  : kind == OCT_BUFFER_OPERAND_INT16 ? groups * int64_t(sizeof(Int16Group))
                                                     : groups * kGroup * int64_t(sizeof(Bf16Element));
  int64_t lines = (bytes + 63) / 64;
  return (lines | 1) * 64;  // an odd number of cache lines, so that rows do not fall on the same sets
}

inline void round_group_to_bf16(const float* values, float* dst) {
  for (int i = 0; i < kGroup; ++i) dst[i] = bf16_to_float(float_to_bf16(values[i]));
}
inline void round_group_to_bf16(const float* values, uint16_t* dst) {
  for (int i = 0; i < kGroup; i += F32::width) F32::load(values + i).store_bf16(dst + i);
}

// The least number of 16 significant bits that is not below `value`.
inline float round_up_to_16_bits(float value) { return bits_to_float((float_to_bits(value) + 0xff) & ~0xffu); }

inline float largest_magnitude(const float* values, int count) {
  F32 largest = F32::zero();
  for (int i = 0; i < count; i += F32::width) largest = max(largest, abs(F32::load(values + i)));
  return largest.max();
}

// codes = values[16] * inverse, rounded to nearest, ties to even. Returns their sum.
#ifdef OCT_VEC_SCALAR
inline int round_to_codes(const float* values, float inverse, int8_t* codes) {
  int sum = 0;
  for (int i = 0; i < kScaleColumns; ++i) {
    int code = int(nearbyintf(values[i] * inverse));
    codes[i] = int8_t(code);
    sum += code;
  }
  return sum;
}

inline void round_to_codes(const float* values, float inverse, int16_t* codes) {
  for (int i = 0; i < kScaleColumns; ++i) codes[i] = int16_t(nearbyintf(values[i] * inverse));
}
#else
inline __m256i round_eight(const float* values, __m256 inverse) {
  return _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(values), inverse));
}

inline __m256i round_sixteen(const float* values, float inverse) {
  __m256 factor = _mm256_set1_ps(inverse);
  // Packing works within halves of 128 bits: quarters of 4 codes come out as 0 2 1 3.
  __m256i words = _mm256_packs_epi32(round_eight(values, factor), round_eight(values + 8, factor));
  return _mm256_permute4x64_epi64(words, 0xd8);
}

inline void round_to_codes(const float* values, float inverse, int16_t* codes) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(codes), round_sixteen(values, inverse));
}

inline int round_to_codes(const float* values, float inverse, int8_t* codes) {
  __m256i words = round_sixteen(values, inverse);
  __m128i packed = _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(codes), packed);
  __m256i quads = _mm256_madd_epi16(words, _mm256_set1_epi16(1));
  __m128i sums = _mm_add_epi32(_mm256_castsi256_si128(quads), _mm256_extracti128_si256(quads, 1));
  sums = _mm_add_epi32(sums, _mm_unpackhi_epi64(sums, sums));
  return _mm_cvtsi128_si32(sums) + _mm_extract_epi32(sums, 1);
}
#endif

// A group below this is zero for all purposes: reciprocals of its scales would overflow.
constexpr float kLeastMagnitude = 1e-30f;

inline void quantize_group_to_int8(const float* values, Int8Group* dst) {
  float magnitudes[kParts];
  for (int part = 0; part < kParts; ++part) {
    magnitudes[part] = largest_magnitude(values + part * kScaleColumns, kScaleColumns);
  }
  float amax = magnitudes[0] > magnitudes[1] ? magnitudes[0] : magnitudes[1];
  bool is_zero = amax < kLeastMagnitude;
  float scale = is_zero ? 0.0f : round_up_to_16_bits(amax / (127.0f * 127.0f));
  float inverse = is_zero ? 0.0f : 1.0f / (127.0f * scale);
  float total = 0.0f;
  for (int part = 0; part < kParts; ++part) {
    float factor = ceilf(magnitudes[part] * inverse);
    factor = factor < 1.0f ? 1.0f : factor > 127.0f ? 127.0f : factor;
    float step = scale * factor;
    int first = part * kScaleColumns;
    int sum = round_to_codes(values + first, is_zero ? 0.0f : 1.0f / step, dst->codes + first);
    dst->factors[part] = factor;
    dst->factor_pairs[part][0] = dst->factor_pairs[part][1] = int16_t(factor);
    dst->part_sums[part] = step * float(sum);
    total += factor * float(sum);
  }
  dst->scale = scale;
  dst->sum = scale * total;
}

inline void quantize_group_to_int16(const float* values, Int16Group* dst) {
  float amax = largest_magnitude(values, kGroup);
  bool is_zero = amax < kLeastMagnitude;
  float inverse = is_zero ? 0.0f : 32767.0f / amax;
  for (int i = 0; i < kGroup; i += kScaleColumns) round_to_codes(values + i, inverse, dst->codes + i);
  dst->scale = is_zero ? 0.0f : amax / 32767.0f;
}

inline void quantize_group(const float* values, Operand dst, int row, int64_t group) {
  uint8_t* dst_row = dst.data + row * dst.row_bytes;
  if (dst.kind == OCT_BUFFER_OPERAND_INT8) {
    quantize_group_to_int8(values, reinterpret_cast<Int8Group*>(dst_row) + group);
  } else if (dst.kind == OCT_BUFFER_OPERAND_INT16) {
    quantize_group_to_int16(values, reinterpret_cast<Int16Group*>(dst_row) + group);
  } else {
    round_group_to_bf16(values, reinterpret_cast<Bf16Element*>(dst_row) + group * kGroup);
  }
}

// values[count] to columns [column, column + count) of a row; column is a multiple of 32, and so is count unless the
// columns end the row, which is then padded with zeros.
inline void quantize_columns(const float* values, int64_t count, Operand dst, int row, int64_t column) {
  int64_t whole = count / kGroup;
  for (int64_t g = 0; g < whole; ++g) quantize_group(values + g * kGroup, dst, row, column / kGroup + g);
  if (count % kGroup == 0) return;
  float padded[kGroup] = {};
  for (int64_t i = whole * kGroup; i < count; ++i) padded[i - whole * kGroup] = values[i];
  quantize_group(padded, dst, row, column / kGroup + whole);
}

// values[dst.columns] to a row of any operand kind.
inline void quantize_row(const float* values, Operand dst, int row) {
  quantize_columns(values, dst.columns, dst, row, 0);
}

inline void quantize(const QuantizeArgs& args, ThreadShare share) {
  // Few rows are shared by columns, many by rows.
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

}  // namespace
}  // namespace octavo
