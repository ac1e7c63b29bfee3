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

// Adds a dot of codes to the sum of an output: see operand.h for the order, which all instruction sets share.
template <class Format>
inline __m512 add_group(__m512 sum, v16si dot, const Int8Group& row, int part, __m512 scale, __m512 min) {
  __m512 value = _mm512_cvtepi32_ps(__m512i(dot));
  __m512 part_scale = _mm512_set1_ps(row.scales[part]);
  if constexpr (Format::has_min) {
    sum = _mm512_fmadd_ps(_mm512_mul_ps(value, part_scale), scale, sum);
    return part == kParts - 1 ? _mm512_fnmadd_ps(min, _mm512_set1_ps(row.sum), sum) : sum;
  } else {
    value = _mm512_fmadd_ps(value, part_scale, _mm512_set1_ps(row.sums[part] * float(-Format::zero)));
    return _mm512_fmadd_ps(value, scale, sum);
  }
}

// out[R][32] = rows x panel: up to 12 dots and 12 sums in registers.
template <class Format, int R>
inline void grouped_tile(const uint8_t* rows, int64_t row_bytes, const uint8_t* panel, int64_t num_groups, float* out,
                         int64_t out_stride) {
  constexpr int columns = grouped_panel_columns(Format::bits);
  constexpr PanelShape shape = panel_shape(kLanes, columns, Format::bits, Format::group, Format::has_min);
  constexpr int part_steps = kScaleColumns / 4;
  __m512 sums[R][2];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 2
    for (int v = 0; v < 2; ++v) sums[r][v] = _mm512_setzero_ps();
  }
  for (int64_t g = 0; g < num_groups; ++g, panel += shape.group_bytes, rows += sizeof(Int8Group)) {
    prefetch_ahead<shape.group_bytes>(panel);
    const uint16_t* halves = reinterpret_cast<const uint16_t*>(panel + shape.codes_bytes);
#pragma GCC unroll 2
    for (int part = 0; part < kParts; ++part) {
      v16si dots[R][2];
#pragma GCC unroll 8
      for (int step = 0; step < part_steps; ++step) {
        int s = part * part_steps + step;
        __m512i codes[2];
        load_step<Format>(panel, s, codes);
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) {
          __m512i activations = broadcast_step(reinterpret_cast<const Int8Group*>(rows + r * row_bytes), s);
#pragma GCC unroll 2
          for (int v = 0; v < 2; ++v) {
            __m512i before = step == 0 ? _mm512_setzero_si512() : __m512i(dots[r][v]);
            dots[r][v] = v16si(_mm512_dpbusd_epi32(before, codes[v], activations));
          }
        }
      }
#pragma GCC unroll 2
      for (int v = 0; v < 2; ++v) {
        __m512 scale = load_halves(halves + Format::scale_row(part) * columns + v * kLanes);
        __m512 min = Format::has_min ? load_halves(halves + Format::scale_rows * columns + v * kLanes) : _mm512_setzero_ps();
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) {
          const Int8Group& row = *reinterpret_cast<const Int8Group*>(rows + r * row_bytes);
          sums[r][v] = add_group<Format>(sums[r][v], dots[r][v], row, part, scale, min);
        }
      }
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 2
    for (int v = 0; v < 2; ++v) _mm512_storeu_ps(out + r * out_stride + v * kLanes, sums[r][v]);
  }
}

template <int R>
inline void bf16_tile(const uint8_t* rows, int64_t row_bytes, const uint8_t* panel, int64_t num_groups, float* out,
                      int64_t out_stride) {
  constexpr int vectors = kBf16PanelColumns / kLanes;
  __m512 sums[R][vectors];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < vectors; ++v) sums[r][v] = _mm512_setzero_ps();
  }
  for (int64_t k = 0; k < num_groups * kGroup; k += 2, panel += 64 * vectors, rows += 2 * sizeof(Bf16Element)) {
    prefetch_ahead<64 * vectors>(panel);
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
