// Operands: rows of activations in the form the products read them.
//
// INT8: a row is a run of Int8Group, one for each 32 columns; the last is padded with zeros. All instruction sets share
// it, and as a product's dot of codes is exact and its floating point has a fixed order, they agree bit for bit.
// BF16: a row of values rounded to bf16, padded to 32 columns with zeros. AVX2 and scalar builds keep the rounded values
// as fp32, which their multipliers want; AVX-512 keeps bf16.
#pragma once
#include "kernels.h"
#include "vec.h"

namespace octavo {
namespace {

constexpr int kGroup = 32;  // columns that share an activation scale; also what K is padded to

struct Int8Group {
  int8_t codes[kGroup];
  float scale;         // value = scale * code, code in -127..127; 12 significant bits
  float sum;           // scale * (sum of all codes), exact: what a weight's minimum or zero point is multiplied by
  float half_sums[2];  // the same of columns 0..15 and 16..31
};
static_assert(sizeof(Int8Group) == 48, "operand rows are read by offsets");

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

// The nearest number of 12 significant bits, whose product with the sum of 32 codes is exact: zero points then cancel as
// they would in integers.
inline float round_to_12_bits(float value) { return bits_to_float((float_to_bits(value) + 0x800) & ~0xfffu); }

inline float largest_magnitude(const float* values) {
  F32 largest = F32::zero();
  for (int i = 0; i < kGroup; i += F32::width) largest = max(largest, abs(F32::load(values + i)));
  return largest.max();
}

// codes = values * inverse, rounded to nearest, ties to even; sums[h] of columns 16 h .. 16 h + 15.
#ifdef OCT_VEC_SCALAR
inline void round_to_codes(const float* values, float inverse, int8_t* codes, int (&sums)[2]) {
  sums[0] = sums[1] = 0;
  for (int i = 0; i < kGroup; ++i) {
    int code = int(nearbyintf(values[i] * inverse));
    codes[i] = int8_t(code);
    sums[i / 16] += code;
  }
}
#else
inline __m256i round_eight(const float* values, __m256 inverse) {
  return _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(values), inverse));
}

inline void round_to_codes(const float* values, float inverse, int8_t* codes, int (&sums)[2]) {
  __m256 factor = _mm256_set1_ps(inverse);
  __m256i low = _mm256_packs_epi32(round_eight(values, factor), round_eight(values + 8, factor));
  __m256i high = _mm256_packs_epi32(round_eight(values + 16, factor), round_eight(values + 24, factor));
  // Packing works within halves of 128 bits: the quarters of 4 codes come out as 0 2 4 6 1 3 5 7.
  __m256i packed = _mm256_packs_epi16(low, high);
  packed = _mm256_permutevar8x32_epi32(packed, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(codes), packed);
  __m256i pairs = _mm256_maddubs_epi16(_mm256_set1_epi8(1), packed);
  __m256i quads = _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
  __m128i halves = _mm_hadd_epi32(_mm256_castsi256_si128(quads), _mm256_extracti128_si256(quads, 1));
  halves = _mm_hadd_epi32(halves, halves);
  sums[0] = _mm_cvtsi128_si32(halves);
  sums[1] = _mm_extract_epi32(halves, 1);
}
#endif

inline void quantize_group_to_int8(const float* values, Int8Group* dst) {
  float amax = largest_magnitude(values);
  // Below this the reciprocal would overflow; such a group is zero for all purposes.
  bool is_zero = amax < 1e-30f;
  float scale = is_zero ? 0.0f : round_to_12_bits(amax / 127.0f);
  int sums[2];
  round_to_codes(values, is_zero ? 0.0f : 1.0f / scale, dst->codes, sums);
  dst->scale = scale;
  dst->sum = scale * float(sums[0] + sums[1]);
  dst->half_sums[0] = scale * float(sums[0]);
  dst->half_sums[1] = scale * float(sums[1]);
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
