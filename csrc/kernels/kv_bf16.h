// Keys and values in bf16, in pairs as KV pages are: right[k / 2][n][k % 2]. What they are multiplied with is bf16 where the
// instruction set multiplies bf16 pairs, fp32 elsewhere.
#pragma once
#include "kv_tile.h"
#include "vec.h"
#if !defined(OCT_VEC_SCALAR) && !defined(OCT_VEC_AVX512)
#include "kv_bf16_avx2.h"
#endif

namespace octavo {
namespace {

struct Bf16Pages {
  static constexpr bool has_scales = false;
  static constexpr bool skips_parts_of_units = true;  // values of tokens nobody sees may be infinite
  using Element = uint16_t;
  using Sum = F32;
#ifdef OCT_VEC_AVX512
  using Left = uint16_t;
  static void store_left(F32 value, Left* dst) { value.store_bf16(dst); }
  static void store_left(float value, Left* dst) { *dst = float_to_bf16(value); }
  static float left_to_float(Left value) { return bf16_to_float(value); }
#else
  using Left = float;
  static void store_left(F32 value, Left* dst) { value.store(dst); }
  static void store_left(float value, Left* dst) { *dst = value; }
  static float left_to_float(Left value) { return value; }
#endif

  using Stored = uint16_t;  // `together` of them are a unit of a page
  using Unit = uint32_t;
  static constexpr int together = 2;
  static constexpr Stored key_flip = 0;
  static constexpr int tile_vectors(int rows) { return octavo::tile_vectors(rows); }
  static void find_scales(const float*, int64_t, int, int, float*, float*) {}
  // Calls put(unit, place in it, element) for each x[i] rounded.
  template <class Put>
  static void for_each_rounded(const float* x, int count, float, Stored, Put put) {
    for (int unit = 0; unit < count / together; ++unit) {
      put(unit, 0, float_to_bf16(x[unit * together]));
      put(unit, 1, float_to_bf16(x[unit * together + 1]));
    }
  }
  static void round_row(const float* x, int count, float, Stored, Stored* dst) {
    int i = 0;
    for (; i + F32::width <= count; i += F32::width) F32::load(x + i).store_bf16(dst + i);
    for (; i < count; ++i) dst[i] = float_to_bf16(x[i]);
  }

  // One row of queries times `scale`.
  static void store_query(const float* q, int head_size, float scale, Left* dst, QueryScale*) {
    int i = 0;
    for (; i + F32::width <= head_size; i += F32::width) store_left(F32::load(q + i) * F32::set1(scale), dst + i);
    for (; i < head_size; ++i) store_left(q[i] * scale, dst + i);
  }

  // Softmax weights take the place of rows of scores.
  struct RowWeights {};
  static RowWeights row_weights(const float*, Seen, float*) { return {}; }
  static float exponent(RowWeights) { return 0.0f; }
  static float sum_of_weights(float sum, float) { return sum; }
  static void store_weights(float* scores, int i, F32 one, F32 other, RowWeights) {
    Left* dst = reinterpret_cast<Left*>(scores);
#ifdef OCT_VEC_AVX512
    _mm512_storeu_si512(dst + i, (__m512i)_mm512_cvtne2ps_pbh(other.v, one.v));
#else
    one.store(dst + i);
    other.store(dst + i + F32::width);
#endif
  }

  static F32 score(F32 sum, const QueryScale&, const float*) { return sum; }
  template <class Value>
  static Value output(Value sum, float) {
    return sum;
  }
  static float product(const Left* weights, int token, Element value) {
    return left_to_float(weights[token]) * bf16_to_float(value);
  }

  template <int rows, int vectors>
  [[gnu::always_inline]] static void add_key_products(F32 (&sum)[rows][vectors], const Left* left, int64_t left_stride,
                                                      const Element* const (&right)[vectors]) {
    add_products<rows, vectors>(sum, left, left_stride, right);
  }

  // sum[r][v] += left[r][0] * right[v][lane][0] + left[r][1] * right[v][lane][1], in this order.
  template <int rows, int vectors>
  [[gnu::always_inline]] static void add_products(F32 (&sum)[rows][vectors], const Left* left, int64_t left_stride,
                                                  const Element* const (&right)[vectors]) {
#if defined(OCT_VEC_SCALAR)
#pragma GCC unroll 8
    for (int r = 0; r < rows; ++r) {
      float even = left[r * left_stride], odd = left[r * left_stride + 1];
#pragma GCC unroll 16
      for (int v = 0; v < vectors; ++v) {
        sum[r][v].v += even * bf16_to_float(right[v][0]);
        sum[r][v].v += odd * bf16_to_float(right[v][1]);
      }
    }
#elif defined(OCT_VEC_AVX512)
    __m512i pairs[vectors];
#pragma GCC unroll 8
    for (int v = 0; v < vectors; ++v) pairs[v] = _mm512_loadu_si512(right[v]);
#pragma GCC unroll 8
    for (int r = 0; r < rows; ++r) {
      int32_t both;
      memcpy(&both, left + r * left_stride, sizeof both);
      __m512i left_pair = _mm512_set1_epi32(both);
#pragma GCC unroll 8
      for (int v = 0; v < vectors; ++v) {
        sum[r][v].v = _mm512_dpbf16_ps(sum[r][v].v, (__m512bh)left_pair, (__m512bh)pairs[v]);
      }
    }
#else
    add_pair_product(sum, left, left_stride, right, 0);
#endif
  }

  // The same for the first of each pair only; the second is not looked at, whatever it holds.
  template <int rows, int vectors>
  [[gnu::always_inline]] static void add_first_products(F32 (&sum)[rows][vectors], const Left* left,
                                                        int64_t left_stride, const Element* const (&right)[vectors]) {
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
};

}  // namespace
}  // namespace octavo
