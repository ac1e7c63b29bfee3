// Keys and values as int8 codes with one fp32 scale for each token and head, in pairs as those in bf16 are; the 16 scales
// of a head's keys in a page follow their codes, then come those of its values. What codes are multiplied with are int16
// codes, so that sums are exact.
#pragma once
#include "attention_items.h"
#include "kv_tile.h"
#include "vec.h"

namespace octavo {
namespace {

constexpr float kLargestInt8 = 127, kLargestInt16 = 32767;

// The largest magnitude; what is not a number does not count, but makes `poison` NaN, which is 0 else.
struct Magnitude {
  float largest;
  float poison;
};
inline Magnitude magnitude(const float* x, int count) {
  F32 largest = F32::zero(), differences = F32::zero();
  int i = 0;
  for (; i + F32::width <= count; i += F32::width) {
    F32 value = F32::load(x + i);
    largest = max(abs(value), largest);
    differences = differences + (value - value);
  }
  Magnitude found{largest.max(), differences.sum()};
  for (; i < count; ++i) {
    found.largest = fabsf(x[i]) > found.largest ? fabsf(x[i]) : found.largest;
    found.poison += x[i] - x[i];
  }
  return found;
}

// Values rounded to whole numbers, ties to even, as int16 codes. They are in the range of int16.
inline void store_int16(F32 values, int16_t* dst) {
#if defined(OCT_VEC_SCALAR)
  *dst = int16_t(nearbyintf(values.v));
#elif defined(OCT_VEC_AVX512)
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(dst), _mm512_cvtepi32_epi16(_mm512_cvtps_epi32(values.v)));
#else
  __m256i codes = _mm256_cvtps_epi32(values.v);
  __m256i packed = _mm256_permute4x64_epi64(_mm256_packs_epi32(codes, codes), 0x08);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(dst), _mm256_castsi256_si128(packed));
#endif
}

// Scale and inverse of codes up to `limit` for values up to `largest`. Values that are no numbers have codes of zero.
struct CodeScale {
  float scale;
  float inverse;
};
inline CodeScale code_scale(Magnitude found, float limit) {
  bool usable = found.poison == 0 && found.largest > 0;
  return {found.largest / limit + found.poison, usable ? limit / found.largest : 0.0f};
}

// Values rounded to whole numbers, ties to even, as int8 codes. They are in the range of int8.
inline void store_int8(F32 values, uint8_t* dst) {
#if defined(OCT_VEC_SCALAR)
  *dst = uint8_t(int8_t(nearbyintf(values.v)));
#elif defined(OCT_VEC_AVX512)
  _mm_storeu_si128(reinterpret_cast<__m128i*>(dst), _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(values.v)));
#else
  __m256i codes = _mm256_cvtps_epi32(values.v);
  __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(codes, codes), 0x08);
  __m128i bytes = _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_castsi256_si128(words));
  _mm_storel_epi64(reinterpret_cast<__m128i*>(dst), bytes);
#endif
}

#if defined(OCT_VEC_SCALAR)
struct I32 {
  int32_t v;
  static I32 zero() { return {0}; }
  F32 to_float() const { return {float(v)}; }
  void add_pair(const int8_t* pair, int32_t left) {
    v += int16_t(left & 0xffff) * pair[0] + (left >> 16) * pair[1];
  }
};
#elif defined(OCT_VEC_AVX512)
// GCC 12 keeps arrays of these in registers, but not arrays of __m512i.
struct I32 {
  typedef int Lanes __attribute__((vector_size(64)));
  Lanes v;
  static I32 zero() { return {Lanes{}}; }
  F32 to_float() const { return {_mm512_cvtepi32_ps((__m512i)v)}; }
};
#else
struct I32 {
  typedef int Lanes __attribute__((vector_size(32)));
  Lanes v;
  static I32 zero() { return {Lanes{}}; }
  F32 to_float() const { return {_mm256_cvtepi32_ps((__m256i)v)}; }
};
#endif

struct Int8Pages {
  static constexpr bool has_scales = true;
  using Element = int8_t;
  using Left = int16_t;
  using Sum = I32;

  // How codes lie in a page: `together` of them are a unit.
  using Stored = uint8_t;
  using Unit = uint16_t;
  static constexpr int together = 2;
  // Of rows [count, head_size]: scales, and what values are multiplied by to become codes.
  static void find_scales(const float* rows, int64_t stride, int count, int head_size, float* scales, float* inverses) {
    for (int row = 0; row < count; ++row) {
      CodeScale found = code_scale(magnitude(rows + row * stride, head_size), kLargestInt8);
      scales[row] = found.scale;
      inverses[row] = found.inverse;
    }
  }
  // Calls put(unit, place in it, code) for each x[i] rounded.
  template <class Put>
  static void for_each_rounded(const float* x, int count, float inverse, Put put) {
    int i = 0;
    int16_t codes[F32::width];
    for (; i + F32::width <= count && inverse != 0.0f; i += F32::width) {
      store_int16(F32::load(x + i) * F32::set1(inverse), codes);
#pragma GCC unroll 16
      for (int j = 0; j < F32::width; ++j) put((i + j) / together, (i + j) % together, Stored(codes[j]));
    }
    for (; i < count; ++i) {
      int code = inverse == 0.0f ? 0 : int(nearbyintf(x[i] * inverse));
      put(i / together, i % together, Stored(int8_t(code)));
    }
  }
  static void round_row(const float* x, int count, float inverse, Stored* dst) {
    if (inverse == 0.0f) {
      memset(dst, 0, size_t(count));
      return;
    }
    int i = 0;
    for (; i + F32::width <= count; i += F32::width) store_int8(F32::load(x + i) * F32::set1(inverse), dst + i);
    for (; i < count; ++i) dst[i] = Stored(int8_t(nearbyintf(x[i] * inverse)));
  }

  // One row of queries times `scale`, so that no sum over a head overflows.
  static void store_query(const float* q, int head_size, float scale, Left* dst, float* q_scale) {
    float limit = 2147483647.0f / (kLargestInt8 * float(head_size));
    if (limit > kLargestInt16) limit = kLargestInt16;
    CodeScale found = code_scale(magnitude(q, head_size), limit);
    *q_scale = found.scale * scale;
    if (found.inverse == 0.0f) {
      memset(dst, 0, size_t(head_size) * sizeof(Left));
      return;
    }
    int i = 0;
    for (; i + F32::width <= head_size; i += F32::width) {
      store_int16(F32::load(q + i) * F32::set1(found.inverse), dst + i);
    }
    for (; i < head_size; ++i) dst[i] = Left(nearbyintf(q[i] * found.inverse));
  }

  // Softmax weights times the values' scales take the place of rows of scores. What they count follows from the largest
  // scale among the keys the row sees.
  struct RowWeights {
    const float* value_scales;
    F32 inverse;
  };
  static RowWeights row_weights(const float* value_scales, Seen seen, float* weight_scale) {
    CodeScale scale = code_scale({largest_seen(value_scales, seen), 0.0f}, kLargestInt16);
    *weight_scale = scale.scale;
    return {value_scales, F32::set1(scale.inverse)};
  }
  static void store_weights(float* scores, int i, F32 one, F32 other, const RowWeights& row) {
    Left* dst = reinterpret_cast<Left*>(scores) + i;
    store_int16(one * F32::load(row.value_scales + i) * row.inverse, dst);
    store_int16(other * F32::load(row.value_scales + i + F32::width) * row.inverse, dst + F32::width);
  }

  static F32 score(I32 sum, const float* q_scale, const float* key_scales) {
    return sum.to_float() * (F32::set1(*q_scale) * F32::load(key_scales));
  }
  static F32 output(I32 sum, float weight_scale) { return sum.to_float() * F32::set1(weight_scale); }
  static float output(float sum, float weight_scale) { return sum * weight_scale; }
  static float product(Left weight, Element value) { return float(weight * value); }

  // The scales of a key tile's values, which in a page follow those of the keys; those of slots no query sees are zero,
  // whatever was left there.
  template <class KeyTile>
  static void load_value_scales(KeyTile& tile, int head_size) {
    memset(tile.value_scales, 0, sizeof tile.value_scales);
    int64_t offset = int64_t(kPage) * head_size + kPage * int64_t(sizeof(float));
    int tokens = tile.num_tokens;
    for (int page = tile.first; page < tile.end; ++page, tokens -= kPage) {
      const uint8_t* scales = tile.keys[page] + offset;
      memcpy(tile.value_scales + page * kPage, scales, size_t(tokens < kPage ? tokens : kPage) * sizeof(float));
      const uint8_t* next = scales + tile.keys_to_values + tile.values_to_next[page];
      __builtin_prefetch(next);
      __builtin_prefetch(next - kPage * sizeof(float));
    }
  }

  // As in bf16. Exact, since sums of a head or of a tile's tokens fit.
  template <int rows, int vectors>
  [[gnu::always_inline]] static void add_products(I32 (&sum)[rows][vectors], const Left* left, int64_t left_stride,
                                                  const Element* const (&right)[vectors]) {
    add_pair<rows, vectors>(sum, left, left_stride, right, true);
  }

  template <int rows, int vectors>
  [[gnu::always_inline]] static void add_first_products(I32 (&sum)[rows][vectors], const Left* left,
                                                        int64_t left_stride, const Element* const (&right)[vectors]) {
    add_pair<rows, vectors>(sum, left, left_stride, right, false);
  }

 private:
  template <int rows, int vectors>
  [[gnu::always_inline]] static void add_pair(I32 (&sum)[rows][vectors], const Left* left, int64_t left_stride,
                                              const Element* const (&right)[vectors], bool both) {
#if !defined(OCT_VEC_SCALAR)
#if defined(OCT_VEC_AVX512)
    __m512i pairs[vectors];
#pragma GCC unroll 8
    for (int v = 0; v < vectors; ++v) {
      pairs[v] = _mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(right[v])));
    }
#else
    __m256i pairs[vectors];
#pragma GCC unroll 8
    for (int v = 0; v < vectors; ++v) {
      pairs[v] = _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(right[v])));
    }
#endif
#endif
#pragma GCC unroll 8
    for (int r = 0; r < rows; ++r) {
      int32_t left_pair = uint16_t(left[r * left_stride]);
      if (both) memcpy(&left_pair, left + r * left_stride, sizeof left_pair);
#pragma GCC unroll 16
      for (int v = 0; v < vectors; ++v) {
#if defined(OCT_VEC_SCALAR)
        sum[r][v].add_pair(right[v], left_pair);
#elif defined(OCT_VEC_AVX512)
        sum[r][v].v = I32::Lanes(_mm512_dpwssd_epi32((__m512i)sum[r][v].v, pairs[v], _mm512_set1_epi32(left_pair)));
#else
        sum[r][v].v += I32::Lanes(_mm256_madd_epi16(pairs[v], _mm256_set1_epi32(left_pair)));
#endif
      }
    }
  }
};

}  // namespace
}  // namespace octavo
