// Weights with a scale for each row ("per channel") and activations with one for each row: codes of 8 bits on both sides,
// nothing to do between the first product and the last. Source of the scheme: arXiv 1712.05877.
//
// A panel of kChannelColumns weight rows: for each step of 4 along K [columns][4] codes, 128 for zero; then their scales in
// fp32. A row of activations is an INT8_ROW operand.
#pragma once
#include "../gguf_blocks.h"
#include "format.h"

namespace octavo {
namespace {

constexpr int kChannelColumns = kBf16PanelColumns;
constexpr int kChannelZero = 128;

inline int64_t channel_codes_bytes(int64_t num_groups) { return num_groups * kGroup * kChannelColumns; }
inline int64_t channel_panel_bytes(int64_t num_groups) {
  return channel_codes_bytes(num_groups) + kChannelColumns * int64_t(sizeof(float));
}

inline const Int8RowHeader& header_of(const uint8_t* rows, int64_t row_bytes, int r) {
  return *reinterpret_cast<const Int8RowHeader*>(rows + r * row_bytes);
}
inline const uint8_t* codes_of(const uint8_t* rows) { return rows + sizeof(Int8RowHeader); }

#if defined(OCT_VEC_AVX512)
template <int R>
inline void channel_tile(const uint8_t* rows, int64_t row_bytes, const uint8_t* panel, int64_t num_groups, Prefetch ahead,
                         float* out, int64_t out_stride) {
  constexpr int vectors = kChannelColumns / kLanes;
  const float* scales = reinterpret_cast<const float*>(panel + channel_codes_bytes(num_groups));
  v16si dots[R][vectors];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
    int start = header_of(rows, row_bytes, r).negated_sum * kChannelZero;
#pragma GCC unroll 4
    for (int v = 0; v < vectors; ++v) dots[r][v] = v16si(_mm512_set1_epi32(start));
  }
  const uint8_t* codes = codes_of(rows);
  for (int64_t step = 0; step < num_groups * kSteps; ++step, panel += 64 * vectors, codes += 4) {
    if (step % kSteps == 0) fetch_next(ahead);
    __m512i weights[vectors];
#pragma GCC unroll 4
    for (int v = 0; v < vectors; ++v) weights[v] = _mm512_loadu_si512(panel + 64 * v);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      int four;
      memcpy(&four, codes + r * row_bytes, 4);
      __m512i activations = _mm512_set1_epi32(four);
#pragma GCC unroll 4
      for (int v = 0; v < vectors; ++v) {
        dots[r][v] = v16si(_mm512_dpbusd_epi32(__m512i(dots[r][v]), weights[v], activations));
      }
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
    __m512 row_scale = _mm512_set1_ps(header_of(rows, row_bytes, r).scale);
#pragma GCC unroll 4
    for (int v = 0; v < vectors; ++v) {
      __m512 value = _mm512_mul_ps(_mm512_cvtepi32_ps(__m512i(dots[r][v])), row_scale);
      _mm512_storeu_ps(out + r * out_stride + v * kLanes, _mm512_mul_ps(value, _mm512_loadu_ps(scales + v * kLanes)));
    }
  }
}
#elif defined(OCT_VEC_AVX2)
// Codes of the weights are multiplied as two of 4 bits, which 16 bits hold.
template <int R>
inline void channel_tile(const uint8_t* rows, int64_t row_bytes, const uint8_t* panel, int64_t num_groups, Prefetch ahead,
                         float* out, int64_t out_stride) {
  constexpr int vectors = kChannelColumns / kLanes;
  const float* scales = reinterpret_cast<const float*>(panel + channel_codes_bytes(num_groups));
  __m256i low = _mm256_set1_epi8(15), one = _mm256_set1_epi16(1), sixteen = _mm256_set1_epi16(16);
  v8si dots[R][vectors];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
    int start = header_of(rows, row_bytes, r).negated_sum * kChannelZero;
#pragma GCC unroll 2
    for (int v = 0; v < vectors; ++v) dots[r][v] = v8si(_mm256_set1_epi32(start));
  }
  const uint8_t* codes = codes_of(rows);
  for (int64_t step = 0; step < num_groups * kSteps; ++step, panel += 32 * vectors, codes += 4) {
    if (step % kSteps == 0) fetch_next(ahead);
#pragma GCC unroll 2
    for (int v = 0; v < vectors; ++v) {
      __m256i bytes = load_bytes(panel + 32 * v);
      __m256i lower = _mm256_and_si256(bytes, low), upper = _mm256_and_si256(_mm256_srli_epi16(bytes, 4), low);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        int four;
        memcpy(&four, codes + r * row_bytes, 4);
        __m256i activations = _mm256_set1_epi32(four);
        dots[r][v] += v8si(_mm256_madd_epi16(_mm256_maddubs_epi16(lower, activations), one));
        dots[r][v] += v8si(_mm256_madd_epi16(_mm256_maddubs_epi16(upper, activations), sixteen));
      }
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
    __m256 row_scale = _mm256_set1_ps(header_of(rows, row_bytes, r).scale);
#pragma GCC unroll 2
    for (int v = 0; v < vectors; ++v) {
      __m256 value = _mm256_mul_ps(_mm256_cvtepi32_ps(__m256i(dots[r][v])), row_scale);
      _mm256_storeu_ps(out + r * out_stride + v * kLanes, _mm256_mul_ps(value, _mm256_loadu_ps(scales + v * kLanes)));
    }
  }
}
#else
template <int R>
inline void channel_tile(const uint8_t* rows, int64_t row_bytes, const uint8_t* panel, int64_t num_groups, Prefetch,
                         float* out, int64_t out_stride) {
  const float* scales = reinterpret_cast<const float*>(panel + channel_codes_bytes(num_groups));
  for (int r = 0; r < R; ++r) {
    const Int8RowHeader& header = header_of(rows, row_bytes, r);
    const int8_t* codes = reinterpret_cast<const int8_t*>(codes_of(rows + r * row_bytes));
    for (int c = 0; c < kChannelColumns; ++c) {
      int dot = header.negated_sum * kChannelZero;
      for (int64_t k = 0; k < num_groups * kGroup; ++k) dot += panel[(k / 4 * kChannelColumns + c) * 4 + k % 4] * codes[k];
      out[r * out_stride + c] = float(dot) * header.scale * scales[c];
    }
  }
}
#endif

// Calls body(first column, values, count) for pieces of a row of stored values.
template <class Body>
inline void for_pieces(const oct_weight& weight, const uint8_t* source, Body body) {
  constexpr int64_t piece = 256;  // a multiple of every block
  float values[piece];
  for (int64_t first = 0; first < weight.num_columns; first += piece) {
    int64_t count = weight.num_columns - first < piece ? weight.num_columns - first : piece;
    dequantize_row(weight.gguf_type, source + gguf_row_bytes(weight.gguf_type, first), count, values);
    body(first, values, count);
  }
}

inline void pack_channel(const oct_weight& weight, const uint8_t* source, uint8_t* panel, int64_t num_groups, int column) {
  float* scales = reinterpret_cast<float*>(panel + channel_codes_bytes(num_groups));
  auto code = [=](int64_t k) -> uint8_t& { return panel[(k / 4 * kChannelColumns + column) * 4 + k % 4]; };
  for (int64_t k = 0; k < num_groups * kGroup; ++k) code(k) = kChannelZero;
  scales[column] = 0.0f;
  if (!source) return;
  float largest = 0.0f;
  for_pieces(weight, source, [&](int64_t, const float* values, int64_t count) {
    for (int64_t i = 0; i < count; ++i) largest = fabsf(values[i]) > largest ? fabsf(values[i]) : largest;
  });
  if (largest < kLeastMagnitude) return;
  scales[column] = largest * (1.0f / 127.0f);
  for_pieces(weight, source, [&](int64_t first, const float* values, int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
      code(first + i) = uint8_t(kChannelZero + int(nearbyintf(values[i] * (127.0f / largest))));
    }
  });
}

inline void unpack_channel_row(const oct_weight& weight, int64_t row, int64_t num_groups, float* values_K) {
  const uint8_t* panel = weight.data + row / kChannelColumns * channel_panel_bytes(num_groups);
  const float* scales = reinterpret_cast<const float*>(panel + channel_codes_bytes(num_groups));
  int column = int(row % kChannelColumns);
  for (int64_t k = 0; k < weight.num_columns; ++k) {
    int code = panel[(k / 4 * kChannelColumns + column) * 4 + k % 4];
    values_K[k] = float(code - kChannelZero) * scales[column];
  }
}

}  // namespace
}  // namespace octavo
