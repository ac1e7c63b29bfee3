// Products with int8 codes by vpdpbusd, which multiplies bytes without and with a sign, four at a time. So codes lie in
// fours, and the int16 codes they are multiplied with are split: of each four, the upper bytes, then the lower ones.
// Sums of both are exact and joined in the end.
//
// Weights are positive: neither byte has a sign. Those of queries have one, so keys are stored with 128 added; that makes
// a sum larger by 128 times the sum of the query's codes.
#pragma once
#include "kv_tile.h"
#include "vec.h"

namespace octavo {
namespace {

// GCC 12 keeps arrays of these in registers, but not arrays of __m512i.
struct Int8Sum {
  typedef int Lanes __attribute__((vector_size(64)));
  Lanes upper;
  Lanes lower;
  static Int8Sum zero() { return {Lanes{}, Lanes{}}; }
  F32 plus(int32_t start) const { return {_mm512_cvtepi32_ps((__m512i)((upper << 8) + lower + start))}; }
};

struct Int8Products {
  using Left = int16_t;  // two bytes that belong to two of four codes
  using Unit = uint32_t;
  using Sum = Int8Sum;
  static constexpr int together = 4;
  static constexpr uint8_t key_flip = 0x80;
  static constexpr int tile_vectors(int rows) { return rows <= 3 ? 4 : 2; }
  static constexpr float largest_query = 127 * 256 + 127, largest_weight = 65535;

  // Splits `count` codes, a multiple of four, in place; gives what is to be added to sums of products with keys.
  static int32_t arrange_query(Left* codes, int count) {
    constexpr int at_once = 32;
    alignas(64) Left rest[at_once] = {};
    __m512i sums = _mm512_setzero_si512();
    int i = 0;
    for (; i + at_once <= count; i += at_once) split(codes + i, sums);
    if (i < count) {
      memcpy(rest, codes + i, size_t(count - i) * sizeof(Left));
      split(rest, sums);
      memcpy(codes + i, rest, size_t(count - i) * sizeof(Left));
    }
    return -128 * _mm512_reduce_add_epi32(sums);
  }

  // Whole numbers from 0 to 65535, of positions i and following in a row of weights.
  static void store_weights(Left* weights, int i, F32 one, F32 other) {
    // Packed, each 128 bits hold four words of `one`, then four of `other`.
    __m512i words = _mm512_packus_epi32(_mm512_cvtps_epi32(one.v), _mm512_cvtps_epi32(other.v));
    alignas(64) static constexpr uint8_t order[64] = {
        1,  3,  5,  7,  0,  2,  4,  6,  17, 19, 21, 23, 16, 18, 20, 22, 33, 35, 37, 39, 32, 34,
        36, 38, 49, 51, 53, 55, 48, 50, 52, 54, 9,  11, 13, 15, 8,  10, 12, 14, 25, 27, 29, 31,
        24, 26, 28, 30, 41, 43, 45, 47, 40, 42, 44, 46, 57, 59, 61, 63, 56, 58, 60, 62};
    _mm512_storeu_si512(weights + i, _mm512_permutexvar_epi8(_mm512_load_si512(order), words));
  }
  static int weight(const Left* weights, int token) {
    const uint8_t* bytes = reinterpret_cast<const uint8_t*>(weights + token / together * together) + token % together;
    return 256 * bytes[0] + bytes[together];
  }

  template <int rows, int vectors>
  [[gnu::always_inline]] static void add_key_products(Sum (&sum)[rows][vectors], const Left* left, int64_t left_stride,
                                                      const int8_t* const (&right)[vectors]) {
    add(sum, left, left_stride, right, [](__m512i codes, __m512i bytes, Sum::Lanes& to) {
      to = Sum::Lanes(_mm512_dpbusd_epi32((__m512i)to, codes, bytes));
    });
  }

  template <int rows, int vectors>
  [[gnu::always_inline]] static void add_products(Sum (&sum)[rows][vectors], const Left* left, int64_t left_stride,
                                                  const int8_t* const (&right)[vectors]) {
    add(sum, left, left_stride, right, [](__m512i codes, __m512i bytes, Sum::Lanes& to) {
      to = Sum::Lanes(_mm512_dpbusd_epi32((__m512i)to, bytes, codes));
    });
  }

 private:
  // A lower byte has a sign, so the upper one of a code is that of the code and 128. Sums are of two codes each.
  static void split(Left* codes, __m512i& sums) {
    __m512i words = _mm512_loadu_si512(codes);
    sums = _mm512_dpwssd_epi32(sums, words, _mm512_set1_epi16(1));
    __m512i carried = _mm512_add_epi16(words, _mm512_set1_epi16(128));
    __m512i bytes = _mm512_or_si512(_mm512_and_si512(words, _mm512_set1_epi16(0x00ff)),
                                    _mm512_andnot_si512(_mm512_set1_epi16(0x00ff), carried));
    __m128i order = _mm_setr_epi8(1, 3, 5, 7, 0, 2, 4, 6, 9, 11, 13, 15, 8, 10, 12, 14);
    _mm512_storeu_si512(codes, _mm512_shuffle_epi8(bytes, _mm512_broadcast_i32x4(order)));
  }

  template <int rows, int vectors, class AddDots>
  [[gnu::always_inline]] static void add(Sum (&sum)[rows][vectors], const Left* left, int64_t left_stride,
                                         const int8_t* const (&right)[vectors], AddDots add_dots) {
    __m512i codes[vectors];
#pragma GCC unroll 8
    for (int v = 0; v < vectors; ++v) codes[v] = _mm512_loadu_si512(right[v]);
#pragma GCC unroll 8
    for (int r = 0; r < rows; ++r) {
      int32_t upper_bytes, lower_bytes;
      memcpy(&upper_bytes, left + r * left_stride, sizeof upper_bytes);
      memcpy(&lower_bytes, left + r * left_stride + together / 2, sizeof lower_bytes);
      __m512i upper = _mm512_set1_epi32(upper_bytes), lower = _mm512_set1_epi32(lower_bytes);
#pragma GCC unroll 8
      for (int v = 0; v < vectors; ++v) add_dots(codes[v], upper, sum[r][v].upper);
#pragma GCC unroll 8
      for (int v = 0; v < vectors; ++v) add_dots(codes[v], lower, sum[r][v].lower);
    }
  }
};

}  // namespace
}  // namespace octavo
