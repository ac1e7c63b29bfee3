// Register tiles for AVX-512 with VNNI and BF16.
#pragma once
#include "format.h"

namespace octavo {
namespace {

constexpr int kLanes = 16;
constexpr int kMaxTileRows = 6;
constexpr int kBf16PanelColumns = 64;
constexpr int grouped_panel_columns(int) { return 32; }

// GCC 12 keeps arrays of these in registers; arrays of __m512i that vpdpbusd accumulates into it stores at every step.
typedef int v16si __attribute__((vector_size(64)));

inline __m512 load_halves(const uint16_t* p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}

// The codes of step s of both vectors of columns.
template <class Format>
inline void load_step(const uint8_t* codes, int s, __m512i (&vectors)[2]) {
  if constexpr (Format::bits == 4) {
    __m512i mask = _mm512_set1_epi8(15);
    __m512i bytes = _mm512_loadu_si512(codes + 64 * s);
    vectors[0] = _mm512_and_si512(bytes, mask);
    vectors[1] = _mm512_and_si512(_mm512_srli_epi16(bytes, 4), mask);
  } else {
    vectors[0] = _mm512_loadu_si512(codes + 128 * s);
    vectors[1] = _mm512_loadu_si512(codes + 128 * s + 64);
  }
}

inline __m512i broadcast_step(const Int8Group* group, int s) {
  int codes;
  memcpy(&codes, group->codes + 4 * s, 4);
  return _mm512_set1_epi32(codes);
}

// Adds the dots of both parts of a group to the sum of an output.
template <class Format>
inline __m512 add_group(__m512 sum, const v16si (&dots)[kParts], const Int8Group& row, const __m512 (&halves)[2]) {
  __m512 values[kParts];
#pragma GCC unroll 2
  for (int part = 0; part < kParts; ++part) values[part] = _mm512_cvtepi32_ps(__m512i(dots[part]));
  if constexpr (Format::group == kScaleColumns) {
#pragma GCC unroll 2
    for (int part = 0; part < kParts; ++part) {
      __m512 offset = _mm512_set1_ps(row.part_sums[part] * float(-Format::zero));
      values[part] = _mm512_fmadd_ps(values[part], _mm512_set1_ps(row.scale * row.factors[part]), offset);
      sum = _mm512_fmadd_ps(values[part], halves[part], sum);
    }
    return sum;
  }
  // Exact: dots of 5-bit codes times factors stay below 2^24.
  __m512 value = _mm512_mul_ps(values[0], _mm512_set1_ps(row.factors[0]));
  value = _mm512_fmadd_ps(values[1], _mm512_set1_ps(row.factors[1]), value);
  if constexpr (Format::has_min) {
    sum = _mm512_fmadd_ps(_mm512_mul_ps(value, _mm512_set1_ps(row.scale)), halves[0], sum);
    return _mm512_fnmadd_ps(halves[1], _mm512_set1_ps(row.sum), sum);
  } else {
    value = _mm512_fmadd_ps(value, _mm512_set1_ps(row.scale), _mm512_set1_ps(row.sum * float(-Format::zero)));
    return _mm512_fmadd_ps(value, halves[0], sum);
  }
}

template <int R>
inline void clear_sums(__m512 (&sums)[R][2]) {
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 2
    for (int v = 0; v < 2; ++v) sums[r][v] = _mm512_setzero_ps();
  }
}

template <int R>
inline void store_sums(const __m512 (&sums)[R][2], float* out, int64_t out_stride) {
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 2
    for (int v = 0; v < 2; ++v) _mm512_storeu_ps(out + r * out_stride + v * kLanes, sums[r][v]);
  }
}

// Keeps GCC from spreading sums over registers that the dots of both parts need: they live in the first-level cache.
template <int R>
[[gnu::always_inline]] inline void keep_in_memory(__m512 (&sums)[R][2]) {
  if (R > 4) asm volatile("" : : "r"(&sums) : "memory");
}

// out[R][32] = rows x panel.
template <class Format, int R>
inline void grouped_tile(const uint8_t* rows, int64_t row_bytes, const uint8_t* panel, int64_t num_groups, Prefetch ahead,
                         float* out, int64_t out_stride) {
  constexpr PanelShape shape = panel_shape(kLanes, 32, Format::bits, Format::group, Format::has_min);
  constexpr int rows_of_halves = Format::scale_rows + (Format::has_min ? 1 : 0);
  constexpr int part_steps = kScaleColumns / 4;
  __m512 sums[R][2];
  clear_sums(sums);
  for (int64_t g = 0; g < num_groups; ++g, panel += shape.group_bytes, rows += sizeof(Int8Group)) {
    fetch_next(ahead);
    keep_in_memory(sums);
    v16si dots[R][2][kParts];
#pragma GCC unroll 8
    for (int s = 0; s < kParts * part_steps; ++s) {
      int part = s / part_steps;
      __m512i codes[2];
      load_step<Format>(panel, s, codes);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        __m512i activations = broadcast_step(reinterpret_cast<const Int8Group*>(rows + r * row_bytes), s);
#pragma GCC unroll 2
        for (int v = 0; v < 2; ++v) {
          __m512i before = s % part_steps == 0 ? _mm512_setzero_si512() : __m512i(dots[r][v][part]);
          dots[r][v][part] = v16si(_mm512_dpbusd_epi32(before, codes[v], activations));
        }
      }
    }
    __m512 halves[2][2];  // of each vector: scales, then mins or more scales
#pragma GCC unroll 4
    for (int i = 0; i < 2 * rows_of_halves; ++i) {
      halves[i % 2][i / 2] = load_halves(reinterpret_cast<const uint16_t*>(panel + shape.codes_bytes) + i * kLanes);
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const Int8Group& row = *reinterpret_cast<const Int8Group*>(rows + r * row_bytes);
#pragma GCC unroll 2
      for (int v = 0; v < 2; ++v) sums[r][v] = add_group<Format>(sums[r][v], dots[r][v], row, halves[v]);
    }
  }
  store_sums(sums, out, out_stride);
}

// The same for signed codes of 8 bits, in 16 bits like the activations.
template <int R>
inline void signed_tile(const uint8_t* rows, int64_t row_bytes, const uint8_t* panel, int64_t num_groups, Prefetch ahead,
                        float* out, int64_t out_stride) {
  constexpr PanelShape shape = panel_shape(kLanes, 32, 8, kGroup, false);
  __m512 sums[R][2];
  clear_sums(sums);
  for (int64_t g = 0; g < num_groups; ++g, panel += shape.group_bytes, rows += sizeof(Int16Group)) {
    fetch_next(ahead);
    v16si dots[R][2];
#pragma GCC unroll 16
    for (int pair = 0; pair < kGroup / 2; ++pair) {
      __m512i codes[2];
#pragma GCC unroll 2
      for (int v = 0; v < 2; ++v) {
        codes[v] = _mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(panel) + 2 * pair + v));
      }
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        int activations;
        memcpy(&activations, reinterpret_cast<const Int16Group*>(rows + r * row_bytes)->codes + 2 * pair, 4);
#pragma GCC unroll 2
        for (int v = 0; v < 2; ++v) {
          __m512i before = pair == 0 ? _mm512_setzero_si512() : __m512i(dots[r][v]);
          dots[r][v] = v16si(_mm512_dpwssd_epi32(before, codes[v], _mm512_set1_epi32(activations)));
        }
      }
    }
#pragma GCC unroll 2
    for (int v = 0; v < 2; ++v) {
      __m512 scale = load_halves(reinterpret_cast<const uint16_t*>(panel + shape.codes_bytes) + v * kLanes);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        __m512 row_scale = _mm512_set1_ps(reinterpret_cast<const Int16Group*>(rows + r * row_bytes)->scale);
        __m512 value = _mm512_mul_ps(_mm512_cvtepi32_ps(__m512i(dots[r][v])), row_scale);
        sums[r][v] = _mm512_fmadd_ps(value, scale, sums[r][v]);
      }
    }
  }
  store_sums(sums, out, out_stride);
}

template <int R>
inline void bf16_tile(const uint8_t* rows, int64_t row_bytes, const uint8_t* panel, int64_t num_groups, Prefetch ahead,
                      float* out, int64_t out_stride) {
  constexpr int vectors = kBf16PanelColumns / kLanes;
  __m512 sums[R][vectors];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < vectors; ++v) sums[r][v] = _mm512_setzero_ps();
  }
  for (int64_t k = 0; k < num_groups * kGroup; k += 2, panel += 64 * vectors, rows += 2 * sizeof(Bf16Element)) {
    if (k % kGroup == 0) fetch_next(ahead);
    __m512i weights[vectors];
#pragma GCC unroll 4
    for (int v = 0; v < vectors; ++v) weights[v] = _mm512_loadu_si512(panel + 64 * v);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      int pair;
      memcpy(&pair, rows + r * row_bytes, 4);
      __m512i activations = _mm512_set1_epi32(pair);
#pragma GCC unroll 4
      for (int v = 0; v < vectors; ++v) {
        sums[r][v] = _mm512_dpbf16_ps(sums[r][v], (__m512bh)activations, (__m512bh)weights[v]);
      }
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < vectors; ++v) _mm512_storeu_ps(out + r * out_stride + v * kLanes, sums[r][v]);
  }
}

}  // namespace
}  // namespace octavo
