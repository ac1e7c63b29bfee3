// Operands: rows of activations in the form the products read them.
//
// INT8: a row is a run of Int8Group, one for each 32 columns; the last is padded with zeros. Each half of a group has a
// scale of its own: with one scale for 32 columns small models miss the accuracy bar (docs/decisions/0002). All
// instruction sets share it, and as a product's dot of codes is exact and its floating point has a fixed order, they agree
// bit for bit.
// BF16: a row of values rounded to bf16, padded to 32 columns with zeros. AVX2 and scalar builds keep the rounded values
// as fp32, which their multipliers want; AVX-512 keeps bf16.
#pragma once
#include "kernels.h"
#include "vec.h"

namespace octavo {
namespace {

constexpr int kGroup = 32;       // what K is padded to
constexpr int kScaleColumns = 16;  // columns that share an activation scale
constexpr int kParts = kGroup / kScaleColumns;

struct Int8Group {
  int8_t codes[kGroup];
  float scales[kParts];  // value = scale * code, code in -127..127; 12 significant bits
  float sums[kParts];    // scale * (sum of codes), exact: what a weight's zero point is multiplied by
  float sum;             // of both: what a weight's minimum is multiplied by
};
static_assert(sizeof(Int8Group) == 52, "operand rows are read by offsets");

#ifdef OCT_VEC_AVX512
using Bf16Element = uint16_t;
#else
using Bf16Element = float;
#endif

inline int64_t padded_columns(int64_t columns) { return (columns + kGroup - 1) / kGroup * kGroup; }

inline int64_t operand_row_bytes(int kind, int64_t columns) {
  int64_t padded = padded_columns(columns);
  int64_t bytes = kind == OCT_BUFFER_OPERAND_INT8 ? padded / kGroup * int64_t(sizeof(Int8Group))
                                                  : padded * int64_t(sizeof(Bf16Element));
  int64_t lines = (bytes + 63) / 64;
  return (lines | 1) * 64;  // an odd number of cache lines, so that rows do not fall on the same sets
}

inline void round_group_to_bf16(const float* values, float* dst) {
  for (int i = 0; i < kGroup; ++i) dst[i] = bf16_to_float(float_to_bf16(values[i]));
}
inline void round_group_to_bf16(const float* values, uint16_t* dst) {
  for (int i = 0; i < kGroup; i += F32::width) F32::load(values + i).store_bf16(dst + i);
}

// The nearest number of 12 significant bits, whose product with the sum of 16 codes is exact: zero points then cancel as
// they would in integers.
inline float round_to_12_bits(float value) { return bits_to_float((float_to_bits(value) + 0x800) & ~0xfffu); }

inline float largest_magnitude(const float* values) {
  F32 largest = F32::zero();
  for (int i = 0; i < kScaleColumns; i += F32::width) largest = max(largest, abs(F32::load(values + i)));
  return largest.max();
}

// codes = values * inverse, rounded to nearest, ties to even. Returns their sum.
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
#else
inline __m256i round_eight(const float* values, __m256 inverse) {
  return _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(values), inverse));
}

inline int round_to_codes(const float* values, float inverse, int8_t* codes) {
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

inline void quantize_group_to_int8(const float* values, Int8Group* dst) {
  for (int part = 0; part < kParts; ++part, values += kScaleColumns) {
    float amax = largest_magnitude(values);
    // Below this the reciprocal would overflow; such a group is zero for all purposes.
    bool is_zero = amax < 1e-30f;
    float scale = is_zero ? 0.0f : round_to_12_bits(amax / 127.0f);
    int sum = round_to_codes(values, is_zero ? 0.0f : 1.0f / scale, dst->codes + part * kScaleColumns);
    dst->scales[part] = scale;
    dst->sums[part] = scale * float(sum);
  }
  dst->sum = dst->sums[0] + dst->sums[1];
}

inline void quantize_group(const float* values, Operand dst, int row, int64_t group) {
  uint8_t* dst_row = dst.data + row * dst.row_bytes;
  if (dst.kind == OCT_BUFFER_OPERAND_INT8) {
    quantize_group_to_int8(values, reinterpret_cast<Int8Group*>(dst_row) + group);
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

// values[dst.columns] to a row of either operand kind.
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
