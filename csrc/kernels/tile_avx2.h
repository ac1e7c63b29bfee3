// Register tiles for AVX2 without VNNI.
//
// vpmaddubsw multiplies unsigned codes by signed activations and adds pairs in 16 bits, which must not overflow: sums of
// 4-bit codes hold a whole group of 32 (8 steps * 2 * 15 * 127 = 30480), 5 bits 4 steps, 6 bits 2 steps. Codes of 8 bits
// are taken as two nibbles, dot = low + 16 * high, which makes them the 4-bit tile on half as many columns.
#pragma once
#include "format.h"

namespace octavo {
namespace {

constexpr int kLanes = 8;
constexpr int kMaxTileRows = 6;
constexpr int kBf16PanelColumns = 16;
constexpr int grouped_panel_columns(int bits) { return bits == 8 ? 8 : 16; }

// GCC keeps arrays of these in registers; of __m256i it does not always.
typedef short v16hi __attribute__((vector_size(32)));
typedef int v8si __attribute__((vector_size(32)));

inline v16hi dot_pairs(__m256i codes, __m256i activations) { return v16hi(_mm256_maddubs_epi16(codes, activations)); }
inline v8si add_pairs(v16hi sums, short factor) {
  return v8si(_mm256_madd_epi16(__m256i(sums), _mm256_set1_epi16(factor)));
}
inline __m256 load_halves(const uint16_t* p) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}

// The two vectors of codes of step s: of two vectors of columns, or the nibbles of one.
template <class Format>
inline void load_step(const uint8_t* codes, int s, __m256i (&vectors)[2]) {
  if constexpr (Format::bits == 4 || Format::bits == 8) {
    __m256i mask = _mm256_set1_epi8(15);
    __m256i bytes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes) + s);
    vectors[0] = _mm256_and_si256(bytes, mask);
    vectors[1] = _mm256_and_si256(_mm256_srli_epi16(bytes, 4), mask);
  } else {
    vectors[0] = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes) + 2 * s);
    vectors[1] = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes) + 2 * s + 1);
  }
}

inline __m256i broadcast_step(const Int8Group* group, int s) {
  int codes;
  memcpy(&codes, group->codes + 4 * s, 4);
  return _mm256_set1_epi32(codes);
}

// Adds a dot of codes to the sum of an output: see operand.h for the order, which all instruction sets share.
template <class Format>
inline __m256 add_group(__m256 sum, v8si dot, const Int8Group& row, int part, __m256 scale, __m256 min) {
  __m256 value = _mm256_cvtepi32_ps(__m256i(dot));
  if constexpr (Format::has_min) {
    sum = _mm256_fmadd_ps(_mm256_mul_ps(value, _mm256_set1_ps(row.scale)), scale, sum);
    return _mm256_fnmadd_ps(min, _mm256_set1_ps(row.sum), sum);
  } else {
    float codes_sum = Format::group == kGroup ? row.sum : row.half_sums[part];
    value = _mm256_fmadd_ps(value, _mm256_set1_ps(row.scale), _mm256_set1_ps(codes_sum * float(-Format::zero)));
    return _mm256_fmadd_ps(value, scale, sum);
  }
}

// out[R][columns] = rows x panel. The sums live in `out`, which is in the first-level cache: registers hold the dots.
template <class Format, int R>
inline void grouped_tile(const uint8_t* rows, int64_t row_bytes, const uint8_t* panel, int64_t num_groups, float* out,
                         int64_t out_stride) {
  constexpr int columns = grouped_panel_columns(Format::bits);
  constexpr PanelShape shape = panel_shape(kLanes, columns, Format::bits, Format::group, Format::has_min);
  constexpr int vectors = columns / kLanes;
  constexpr int parts = kGroup / Format::group;
  constexpr int part_steps = Format::group / 4;
  constexpr int safe_steps = Format::bits == 5 ? 4 : Format::bits == 6 ? 2 : 8;  // before 16 bits could overflow

  for (int r = 0; r < R; ++r) {
    for (int v = 0; v < vectors; ++v) _mm256_storeu_ps(out + r * out_stride + v * kLanes, _mm256_setzero_ps());
  }
  for (int64_t g = 0; g < num_groups; ++g, panel += shape.group_bytes, rows += sizeof(Int8Group)) {
    const uint16_t* halves = reinterpret_cast<const uint16_t*>(panel + shape.codes_bytes);
#pragma GCC unroll 2
    for (int part = 0; part < parts; ++part) {
      v8si wide[R][2];
#pragma GCC unroll 4
      for (int first = 0; first < part_steps; first += safe_steps) {
        v16hi dots[R][2];
#pragma GCC unroll 8
        for (int step = 0; step < safe_steps; ++step) {
          int s = part * part_steps + first + step;
          __m256i codes[2];
          load_step<Format>(panel, s, codes);
#pragma GCC unroll 8
          for (int r = 0; r < R; ++r) {
            __m256i activations = broadcast_step(reinterpret_cast<const Int8Group*>(rows + r * row_bytes), s);
#pragma GCC unroll 2
            for (int i = 0; i < 2; ++i) {
              v16hi pairs = dot_pairs(codes[i], activations);
              dots[r][i] = step == 0 ? pairs : dots[r][i] + pairs;
            }
          }
        }
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) {
#pragma GCC unroll 2
          for (int i = 0; i < 2; ++i) {
            v8si dot = add_pairs(dots[r][i], Format::bits == 8 && i == 1 ? 16 : 1);
            wide[r][i] = first == 0 ? dot : wide[r][i] + dot;
          }
        }
      }
#pragma GCC unroll 2
      for (int v = 0; v < vectors; ++v) {
        __m256 scale = load_halves(halves + part * columns + v * kLanes);
        __m256 min = Format::has_min ? load_halves(halves + parts * columns + v * kLanes) : _mm256_setzero_ps();
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) {
          v8si dot = Format::bits == 8 ? wide[r][0] + wide[r][1] : wide[r][v];
          float* sum = out + r * out_stride + v * kLanes;
          const Int8Group& row = *reinterpret_cast<const Int8Group*>(rows + r * row_bytes);
          _mm256_storeu_ps(sum, add_group<Format>(_mm256_loadu_ps(sum), dot, row, part, scale, min));
        }
      }
    }
  }
}

// bf16 weights widened to fp32; the operand already is fp32.
template <int R>
inline void bf16_tile(const uint8_t* rows, int64_t row_bytes, const uint8_t* panel, int64_t num_groups, float* out,
                      int64_t out_stride) {
  constexpr int vectors = kBf16PanelColumns / kLanes;
  __m256 sums[R][vectors];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 2
    for (int v = 0; v < vectors; ++v) sums[r][v] = _mm256_setzero_ps();
  }
  const __m256i* weights = reinterpret_cast<const __m256i*>(panel);
  for (int64_t k = 0; k < num_groups * kGroup; k += 2, weights += vectors, rows += 2 * sizeof(float)) {
#pragma GCC unroll 2
    for (int odd = 0; odd < 2; ++odd) {
      __m256 values[vectors];
#pragma GCC unroll 2
      for (int v = 0; v < vectors; ++v) {
        __m256i pairs = _mm256_loadu_si256(weights + v);
        __m256i bits = odd ? _mm256_and_si256(pairs, _mm256_set1_epi32(int(0xffff0000u))) : _mm256_slli_epi32(pairs, 16);
        values[v] = _mm256_castsi256_ps(bits);
      }
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        __m256 activation = _mm256_broadcast_ss(reinterpret_cast<const float*>(rows + r * row_bytes) + odd);
#pragma GCC unroll 2
        for (int v = 0; v < vectors; ++v) sums[r][v] = _mm256_fmadd_ps(activation, values[v], sums[r][v]);
      }
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 2
    for (int v = 0; v < vectors; ++v) _mm256_storeu_ps(out + r * out_stride + v * kLanes, sums[r][v]);
  }
}

}  // namespace
}  // namespace octavo
