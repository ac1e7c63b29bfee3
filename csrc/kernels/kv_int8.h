// Keys and values as int8 codes with one fp32 scale for each token and head; the 16 scales of a head's keys in a page
// follow their codes, then come those of its values. What codes are multiplied with are int16 codes, so that sums are exact.
#pragma once
#include "attention_items.h"
#include "kv_tile.h"
#include "vec.h"
#ifdef OCT_VEC_AVX512
#include "kv_int8_avx512.h"
#else
#include "kv_int8_pairs.h"
#endif

namespace octavo {
namespace {

constexpr float kLargestInt8 = 127;

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

// Scale and inverse of codes up to `limit` for values up to `largest`. Values that are no numbers have codes of zero.
struct CodeScale {
  float scale;
  float inverse;
};
inline CodeScale code_scale(Magnitude found, float limit) {
  bool usable = found.poison == 0 && found.largest > 0;
  return {found.largest / limit + found.poison, usable ? limit / found.largest : 0.0f};
}

// Values in the range of int8 rounded to whole numbers, ties to even, as codes with the bits of `flip` turned.
inline void store_int8(F32 values, uint8_t flip, uint8_t* dst) {
#if defined(OCT_VEC_SCALAR)
  *dst = uint8_t(int8_t(nearbyintf(values.v))) ^ flip;
#elif defined(OCT_VEC_AVX512)
  __m128i codes = _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(values.v));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(dst), _mm_xor_si128(codes, _mm_set1_epi8(char(flip))));
#else
  __m256i codes = _mm256_cvtps_epi32(values.v);
  __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(codes, codes), 0x08);
  __m128i bytes = _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_castsi256_si128(words));
  _mm_storel_epi64(reinterpret_cast<__m128i*>(dst), _mm_xor_si128(bytes, _mm_set1_epi8(char(flip))));
#endif
}

struct Int8Pages : Int8Products {
  static constexpr bool has_scales = true;
  static constexpr bool skips_parts_of_units = false;  // codes of tokens nobody sees are finite, and their weights zero
  using Element = int8_t;
  using Stored = uint8_t;  // `together` of them are a unit of a page

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
  static void for_each_rounded(const float* x, int count, float inverse, uint8_t flip, Put put) {
    int i = 0;
    int16_t codes[F32::width];
    for (; i + F32::width <= count && inverse != 0.0f; i += F32::width) {
      store_int16(F32::load(x + i) * F32::set1(inverse), codes);
#pragma GCC unroll 16
      for (int j = 0; j < F32::width; ++j) put((i + j) / together, (i + j) % together, Stored(codes[j] ^ flip));
    }
    for (; i < count; ++i) {
      int code = inverse == 0.0f ? 0 : int(nearbyintf(x[i] * inverse));
      put(i / together, i % together, Stored(code ^ flip));
    }
  }
  static void round_row(const float* x, int count, float inverse, uint8_t flip, Stored* dst) {
    if (inverse == 0.0f) {
      memset(dst, flip, size_t(count));
      return;
    }
    int i = 0;
    for (; i + F32::width <= count; i += F32::width) store_int8(F32::load(x + i) * F32::set1(inverse), flip, dst + i);
    for (; i < count; ++i) dst[i] = Stored(int(nearbyintf(x[i] * inverse)) ^ flip);
  }

  // One row of queries times `scale`, so that no sum over a head overflows.
  static void store_query(const float* q, int head_size, float scale, Left* dst, QueryScale* query_scale) {
    float limit = 2147483647.0f / (kLargestInt8 * float(head_size));
    CodeScale found = code_scale(magnitude(q, head_size), limit < largest_query ? limit : largest_query);
    int padded_size = whole_units<Int8Products>(head_size) * together;
    query_scale->scale = found.scale * scale;
    if (found.inverse == 0.0f) {
      query_scale->start = 0;
      memset(dst, 0, size_t(padded_size) * sizeof(Left));
      return;
    }
    int i = 0;
    for (; i + F32::width <= head_size; i += F32::width) {
      store_int16(F32::load(q + i) * F32::set1(found.inverse), dst + i);
    }
    for (; i < head_size; ++i) dst[i] = Left(nearbyintf(q[i] * found.inverse));
    for (; i < padded_size; ++i) dst[i] = 0;
    query_scale->start = arrange_query(dst, padded_size);
  }

  // Softmax weights times the values' scales take the place of rows of scores, as whole numbers: before they are rounded
  // they are multiplied by the largest power of two that the largest scale among the keys the row sees allows.
  struct RowWeights {
    const float* value_scales;
    float exponent;
  };
  static RowWeights row_weights(const float* value_scales, Seen seen, float* weight_scale) {
    constexpr float least = 1e-30f;  // keeps the exponent below what powers of scores can take
    float largest = largest_seen(value_scales, seen);
    uint32_t power = float_to_bits(largest_weight / (largest > least ? largest : least)) >> 23;
    *weight_scale = bits_to_float((254 - power) << 23);
    return {value_scales, float(int(power) - 127)};
  }
  static float exponent(const RowWeights& row) { return row.exponent; }
  static float sum_of_weights(float sum, float weight_scale) { return sum * weight_scale; }
  static void store_weights(float* scores, int i, F32 one, F32 other, const RowWeights& row) {
    F32 scale = F32::load(row.value_scales + i), other_scale = F32::load(row.value_scales + i + F32::width);
    Int8Products::store_weights(reinterpret_cast<Left*>(scores), i, one * scale, other * other_scale);
  }

  static F32 score(Sum sum, const QueryScale& query, const float* key_scales) {
    return sum.plus(query.start) * (F32::set1(query.scale) * F32::load(key_scales));
  }
  static F32 output(Sum sum, float weight_scale) { return sum.plus(0) * F32::set1(weight_scale); }
  static float output(float sum, float weight_scale) { return sum * weight_scale; }
  static float product(const Left* weights, int token, Element value) { return float(weight(weights, token) * value); }

  // The scales of a key tile's values, which in a page follow those of the keys. Those of slots no query sees are zero,
  // whatever was left there, also where a softmax, which takes two pages at a time, goes beyond the tile's.
  template <class KeyTile>
  static void load_value_scales(KeyTile& tile) {
    constexpr int64_t scales_bytes = kPage * int64_t(sizeof(float));
    if (tile.first % 2 == 1) memset(tile.value_scales + (tile.first - 1) * kPage, 0, scales_bytes);
    if (tile.end % 2 == 1) memset(tile.value_scales + tile.end * kPage, 0, scales_bytes);
    int64_t offset = tile.keys_to_values - scales_bytes;
    for (int page = tile.first; page < tile.end; ++page) {
      const uint8_t* scales = tile.keys[page] + offset;
      memcpy(tile.value_scales + page * kPage, scales, scales_bytes);
      const uint8_t* next = scales + tile.keys_to_values + tile.values_to_next[page];
      __builtin_prefetch(next);
      __builtin_prefetch(next - scales_bytes);
    }
    int end = tile.first * kPage + tile.num_tokens;
    for (int i = end; i < tile.end * kPage; ++i) tile.value_scales[i] = 0;
  }
};

}  // namespace
}  // namespace octavo
