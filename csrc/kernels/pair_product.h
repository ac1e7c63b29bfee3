// Products of a few rows with a matrix stored in pairs, as KV pages are: right[k / 2][n][k % 2] in bf16. The left rows
// are bf16 where the instruction set multiplies bf16 pairs, fp32 elsewhere.
#pragma once
#include "vec.h"
#if !defined(OCT_VEC_SCALAR) && !defined(OCT_VEC_AVX512)
#include "pair_product_avx2.h"
#endif

namespace octavo {
namespace {

#ifdef OCT_VEC_AVX512
using Left = uint16_t;
inline void store_left(F32 value, Left* dst) { value.store_bf16(dst); }
inline void store_left(float value, Left* dst) { *dst = float_to_bf16(value); }
inline float left_to_float(Left value) { return bf16_to_float(value); }
#else
using Left = float;
inline void store_left(F32 value, Left* dst) { value.store(dst); }
inline void store_left(float value, Left* dst) { *dst = value; }
inline float left_to_float(Left value) { return value; }
#endif

// How many rows a register tile has at most, and how many vectors wide it is at best for a number of rows.
#if defined(OCT_VEC_SCALAR)
constexpr int kTileRows = 2;
constexpr int tile_vectors(int) { return 16; }
#elif defined(OCT_VEC_AVX512)
constexpr int kTileRows = 6;
constexpr int tile_vectors(int) { return 4; }
#else
constexpr int kTileRows = 6;
constexpr int tile_vectors(int rows) { return rows == 1 ? 8 : rows <= 3 ? 4 : 2; }
#endif

// sum[r][v] += left[r][2k] * right[v][k][lane][0] + left[r][2k + 1] * right[v][k][lane][1], k ascending. Vector v
// starts at right[v] and advances by right_stride elements a pair. Each element is summed in the same order whatever
// the tile. The cache lines `ahead` elements from those read are prefetched.
template <int rows, int vectors>
[[gnu::always_inline]] inline void add_pair_products(F32 (&sum)[rows][vectors], const Left* left, int64_t left_stride,
                                                     const uint16_t* const (&right)[vectors], int64_t right_stride,
                                                     int num_pairs, int64_t ahead) {
  constexpr int vectors_per_line = 64 / (4 * F32::width);
  for (int k = 0; k < num_pairs; ++k) {
#pragma GCC unroll 16
    for (int v = 0; v < vectors; v += vectors_per_line) __builtin_prefetch(right[v] + k * right_stride + ahead);
#if defined(OCT_VEC_SCALAR)
#pragma GCC unroll 8
    for (int r = 0; r < rows; ++r) {
      float even = left[r * left_stride + 2 * k], odd = left[r * left_stride + 2 * k + 1];
#pragma GCC unroll 16
      for (int v = 0; v < vectors; ++v) {
        const uint16_t* pair = right[v] + k * right_stride;
        sum[r][v].v += even * bf16_to_float(pair[0]);
        sum[r][v].v += odd * bf16_to_float(pair[1]);
      }
    }
#elif defined(OCT_VEC_AVX512)
    __m512i pairs[vectors];
#pragma GCC unroll 8
    for (int v = 0; v < vectors; ++v) pairs[v] = _mm512_loadu_si512(right[v] + k * right_stride);
#pragma GCC unroll 8
    for (int r = 0; r < rows; ++r) {
      int32_t both;
      memcpy(&both, left + r * left_stride + 2 * k, sizeof both);
      __m512i left_pair = _mm512_set1_epi32(both);
#pragma GCC unroll 8
      for (int v = 0; v < vectors; ++v) {
        sum[r][v].v = _mm512_dpbf16_ps(sum[r][v].v, (__m512bh)left_pair, (__m512bh)pairs[v]);
      }
    }
#else
    add_pair_product(sum, left + 2 * k, left_stride, right, k * right_stride);
#endif
  }
}

// The same for one k and the first of its pair only; the second is not looked at, whatever it holds.
template <int rows, int vectors>
[[gnu::always_inline]] inline void add_half_pair_product(F32 (&sum)[rows][vectors], const Left* left,
                                                         int64_t left_stride,
                                                         const uint16_t* const (&right)[vectors]) {
#pragma GCC unroll 8
  for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 16
    for (int v = 0; v < vectors; ++v) {
#if defined(OCT_VEC_SCALAR)
      sum[r][v].v += left[r * left_stride] * bf16_to_float(*right[v]);
#elif defined(OCT_VEC_AVX512)
      __m512i even = _mm512_and_si512(_mm512_loadu_si512(right[v]), _mm512_set1_epi32(0xffff));
      __m512i left_even = _mm512_set1_epi32(left[r * left_stride]);
      sum[r][v].v = _mm512_dpbf16_ps(sum[r][v].v, (__m512bh)left_even, (__m512bh)even);
#else
      sum[r][v] = fma(F32::set1(left[r * left_stride]), first_of_pairs(right[v]), sum[r][v]);
#endif
    }
  }
}

}  // namespace
}  // namespace octavo
