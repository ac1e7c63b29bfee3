// Products with int8 codes where bytes are widened to int16 first: codes lie in pairs, and so do the int16 codes they
// are multiplied with.
#pragma once
#include "kv_tile.h"
#include "vec.h"

namespace octavo {
namespace {

#if defined(OCT_VEC_SCALAR)
struct Int8Sum {
  int32_t v;
  static Int8Sum zero() { return {0}; }
  void add_pair(const int8_t* pair, int32_t left) {
    v += int16_t(left & 0xffff) * pair[0] + (left >> 16) * pair[1];
  }
  F32 plus(int32_t start) const { return {float(v + start)}; }
};
#else
struct Int8Sum {
  typedef int Lanes __attribute__((vector_size(32)));
  Lanes v;
  static Int8Sum zero() { return {Lanes{}}; }
  F32 plus(int32_t start) const { return {_mm256_cvtepi32_ps((__m256i)(v + start))}; }
};
#endif

struct Int8Products {
  using Left = int16_t;
  using Unit = uint16_t;
  using Sum = Int8Sum;
  static constexpr int together = 2;
  static constexpr uint8_t key_flip = 0;
  static constexpr int tile_vectors(int rows) { return octavo::tile_vectors(rows); }
  static constexpr float largest_query = 32767, largest_weight = 32767;

  static int32_t arrange_query(Left*, int) { return 0; }

  // Whole numbers from 0 to 32767, of positions i and following in a row of weights.
  static void store_weights(Left* weights, int i, F32 one, F32 other) {
    store_int16(one, weights + i);
    store_int16(other, weights + i + F32::width);
  }
  static int weight(const Left* weights, int token) { return weights[token]; }

  template <int rows, int vectors>
  [[gnu::always_inline]] static void add_key_products(Sum (&sum)[rows][vectors], const Left* left, int64_t left_stride,
                                                      const int8_t* const (&right)[vectors]) {
    add_products<rows, vectors>(sum, left, left_stride, right);
  }

  template <int rows, int vectors>
  [[gnu::always_inline]] static void add_products(Sum (&sum)[rows][vectors], const Left* left, int64_t left_stride,
                                                  const int8_t* const (&right)[vectors]) {
#if !defined(OCT_VEC_SCALAR)
    __m256i pairs[vectors];
#pragma GCC unroll 8
    for (int v = 0; v < vectors; ++v) {
      pairs[v] = _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(right[v])));
    }
#endif
#pragma GCC unroll 8
    for (int r = 0; r < rows; ++r) {
      int32_t left_pair;
      memcpy(&left_pair, left + r * left_stride, sizeof left_pair);
#pragma GCC unroll 16
      for (int v = 0; v < vectors; ++v) {
#if defined(OCT_VEC_SCALAR)
        sum[r][v].add_pair(right[v], left_pair);
#else
        sum[r][v].v += Int8Sum::Lanes(_mm256_madd_epi16(pairs[v], _mm256_set1_epi32(left_pair)));
#endif
      }
    }
  }
};

}  // namespace
}  // namespace octavo
