// Register tiles for AVX2 without VNNI.
//
// vpmaddubsw multiplies unsigned codes by signed activations and adds pairs in 16 bits, which must not overflow: sums
// of codes of 4 and 5 bits hold the 4 steps of half a group (4 * 2 * 31 * 127 = 31496), of 6 bits 2 steps. Codes of 8
// bits are multiplied in 16 bits by vpmaddwd. Both cost two instructions for 8 columns times 4 (2) codes, and a shared
// broadcast.
#pragma once
#include "format.h"

namespace octavo {
namespace {

constexpr int kLanes = 8;
constexpr int kMaxTileRows = 6;
constexpr int kBf16PanelColumns = 16;
constexpr int grouped_panel_columns(int) { return 16; }

typedef short v16hi __attribute__((vector_size(32)));
typedef int v8si __attribute__((vector_size(32)));

inline __m256i broadcast_step(const Int8Group& group, int s) {
  int codes;
  memcpy(&codes, group.codes + 4 * s, 4);
  return _mm256_set1_epi32(codes);
}

inline void start_dots(v16hi (&dots)[2], const __m256i (&codes)[2], const Int8Group& row, int s) {
  __m256i activations = broadcast_step(row, s);
  dots[0] = v16hi(_mm256_maddubs_epi16(codes[0], activations));
  dots[1] = v16hi(_mm256_maddubs_epi16(codes[1], activations));
}

// In assembly because GCC otherwise computes the products of all steps first and spills every one of them.
inline void add_dots(v16hi (&dots)[2], const __m256i (&codes)[2], const Int8Group& row, int s) {
  v16hi products, activations;
  asm("vpbroadcastd %[step], %[activations]\n\t"
      "vpmaddubsw %[activations], %[codes0], %[products]\n\t"
      "vpmaddubsw %[activations], %[codes1], %[activations]\n\t"
      "vpaddw %[products], %[dots0], %[dots0]\n\t"
      "vpaddw %[activations], %[dots1], %[dots1]"
      : [dots0] "+x"(dots[0]), [dots1] "+x"(dots[1]), [products] "=&x"(products), [activations] "=&x"(activations)
      : [codes0] "x"(codes[0]), [codes1] "x"(codes[1]),
        [step] "m"(*reinterpret_cast<const int8_t(*)[4]>(row.codes + 4 * s)));
}

inline v8si add_pairs(v16hi sums) { return v8si(_mm256_madd_epi16(__m256i(sums), _mm256_set1_epi16(1))); }
inline v8si add_scaled_pairs(v16hi sums, const int16_t (&factor_pair)[2]) {
  int pair;
  memcpy(&pair, factor_pair, 4);
  return v8si(_mm256_madd_epi16(__m256i(sums), _mm256_set1_epi32(pair)));
}
inline __m256 load_halves(const uint16_t* p) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}

// The codes of step s of both vectors of columns.
template <class Format>
inline void load_step(const uint8_t* codes, int s, __m256i (&vectors)[2]) {
  if constexpr (Format::bits == 4) {
    __m256i mask = _mm256_set1_epi8(15);
    __m256i bytes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes) + s);
    vectors[0] = _mm256_and_si256(bytes, mask);
    vectors[1] = _mm256_and_si256(_mm256_srli_epi16(bytes, 4), mask);
  } else {
    vectors[0] = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes) + 2 * s);
    vectors[1] = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes) + 2 * s + 1);
  }
}

// Dots of steps [first, first + count), few enough for 16 bits.
template <class Format, int R, int count>
[[gnu::always_inline]] inline void dot_steps(v16hi (&dots)[R][2], const uint8_t* rows, int64_t row_bytes,
                                             const uint8_t* panel, int first) {
#pragma GCC unroll 8
  for (int step = 0; step < count; ++step) {
    __m256i codes[2];
    load_step<Format>(panel, first + step, codes);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const Int8Group& row = *reinterpret_cast<const Int8Group*>(rows + r * row_bytes);
      step == 0 ? start_dots(dots[r], codes, row, first) : add_dots(dots[r], codes, row, first + step);
    }
  }
}

// Both parts of a group, to be multiplied by weights of one scale: what add_to adds to `sums`.
template <class Format, int R>
struct GroupDots {
  static constexpr int steps = kScaleColumns / 4;
  v16hi dots[kParts][R][2];

  [[gnu::always_inline]] void compute(const uint8_t* rows, int64_t row_bytes, const uint8_t* panel) {
#pragma GCC unroll 2
    for (int part = 0; part < kParts; ++part) {
      dot_steps<Format, R, steps>(dots[part], rows, row_bytes, panel, part * steps);
    }
  }
  [[gnu::always_inline]] void add_to(__m256 (&sums)[2], int r, const Int8Group& row,
                                     const __m256 (&halves)[2][2]) const {
    __m256 row_scale = _mm256_set1_ps(row.scale);
    __m256 offset = Format::has_min ? _mm256_set1_ps(row.sum) : _mm256_set1_ps(row.sum * float(-Format::zero));
#pragma GCC unroll 2
    for (int v = 0; v < 2; ++v) {
      v8si dot = add_scaled_pairs(dots[0][r][v], row.factor_pairs[0]);
      dot += add_scaled_pairs(dots[1][r][v], row.factor_pairs[1]);
      __m256 value = _mm256_cvtepi32_ps(__m256i(dot));
      value = Format::has_min ? _mm256_mul_ps(value, row_scale) : _mm256_fmadd_ps(value, row_scale, offset);
      sums[v] = _mm256_fmadd_ps(value, halves[0][v], sums[v]);
      if (Format::has_min) sums[v] = _mm256_fnmadd_ps(halves[1][v], offset, sums[v]);
    }
  }
};

// The same for 6-bit codes, whose weights have a scale for each part.
template <int zero, int R>
struct GroupDots<Format<6, kScaleColumns, false, zero>, R> {
  using Codes = Format<6, kScaleColumns, false, zero>;
  static constexpr int steps = kScaleColumns / 4;
  v8si dots[kParts][R][2];

  [[gnu::always_inline]] void compute(const uint8_t* rows, int64_t row_bytes, const uint8_t* panel) {
#pragma GCC unroll 4
    for (int half = 0; half < 2 * kParts; ++half) {
      v16hi pairs[R][2];
      dot_steps<Codes, R, steps / 2>(pairs, rows, row_bytes, panel, half * steps / 2);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
#pragma GCC unroll 2
        for (int v = 0; v < 2; ++v) {
          v8si& dot = dots[half / 2][r][v];
          dot = half % 2 == 0 ? add_pairs(pairs[r][v]) : dot + add_pairs(pairs[r][v]);
        }
      }
    }
  }
  [[gnu::always_inline]] void add_to(__m256 (&sums)[2], int r, const Int8Group& row,
                                     const __m256 (&halves)[2][2]) const {
#pragma GCC unroll 2
    for (int part = 0; part < kParts; ++part) {
      __m256 row_scale = _mm256_set1_ps(row.scale * row.factors[part]);
      __m256 offset = _mm256_set1_ps(row.part_sums[part] * float(-zero));
#pragma GCC unroll 2
      for (int v = 0; v < 2; ++v) {
        __m256 value = _mm256_fmadd_ps(_mm256_cvtepi32_ps(__m256i(dots[part][r][v])), row_scale, offset);
        sums[v] = _mm256_fmadd_ps(value, halves[part][v], sums[v]);
      }
    }
  }
};

template <int R>
inline void store_sums(const __m256 (&sums)[R][2], float* out, int64_t out_stride) {
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 2
    for (int v = 0; v < 2; ++v) _mm256_storeu_ps(out + r * out_stride + v * kLanes, sums[r][v]);
  }
}

template <int R>
inline void clear_sums(__m256 (&sums)[R][2]) {
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 2
    for (int v = 0; v < 2; ++v) sums[r][v] = _mm256_setzero_ps();
  }
}

// Keeps GCC from spreading sums over registers that the dots need: they live in the first-level cache.
template <int R>
[[gnu::always_inline]] inline void keep_in_memory(__m256 (&sums)[R][2]) {
  if (R > 3) asm volatile("" : : "r"(&sums) : "memory");
}

// out[R][16] = rows x panel.
template <class Format, int R>
inline void grouped_tile(const uint8_t* rows, int64_t row_bytes, const uint8_t* panel, int64_t num_groups, Prefetch ahead,
                         float* out, int64_t out_stride) {
  constexpr PanelShape shape = panel_shape(kLanes, 16, Format::bits, Format::group, Format::has_min);
  constexpr int rows_of_halves = Format::scale_rows + (Format::has_min ? 1 : 0);
  __m256 sums[R][2];
  clear_sums(sums);
  for (int64_t g = 0; g < num_groups; ++g, panel += shape.group_bytes, rows += sizeof(Int8Group)) {
    fetch_next(ahead);
    keep_in_memory(sums);
    GroupDots<Format, R> dots;
    dots.compute(rows, row_bytes, panel);

    __m256 halves[2][2];  // scales, then mins or more scales
#pragma GCC unroll 4
    for (int i = 0; i < 2 * rows_of_halves; ++i) {
      halves[i / 2][i % 2] = load_halves(reinterpret_cast<const uint16_t*>(panel + shape.codes_bytes) + i * kLanes);
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      dots.add_to(sums[r], r, *reinterpret_cast<const Int8Group*>(rows + r * row_bytes), halves);
    }
  }
  store_sums(sums, out, out_stride);
}

inline void start_wide_dots(v8si (&dots)[2], const __m256i (&codes)[2], const int16_t* pair) {
  int activations;
  memcpy(&activations, pair, 4);
#pragma GCC unroll 2
  for (int v = 0; v < 2; ++v) dots[v] = v8si(_mm256_madd_epi16(codes[v], _mm256_set1_epi32(activations)));
}

// In assembly for the reason given at add_dots.
inline void add_wide_dots(v8si (&dots)[2], const __m256i (&codes)[2], const int16_t* pair) {
  v8si products, activations;
  asm("vpbroadcastd %[pair], %[activations]\n\t"
      "vpmaddwd %[activations], %[codes0], %[products]\n\t"
      "vpmaddwd %[activations], %[codes1], %[activations]\n\t"
      "vpaddd %[products], %[dots0], %[dots0]\n\t"
      "vpaddd %[activations], %[dots1], %[dots1]"
      : [dots0] "+x"(dots[0]), [dots1] "+x"(dots[1]), [products] "=&x"(products), [activations] "=&x"(activations)
      : [codes0] "x"(codes[0]), [codes1] "x"(codes[1]), [pair] "m"(*reinterpret_cast<const int16_t(*)[2]>(pair)));
}

// The same for signed codes of 8 bits.
template <int R>
inline void signed_tile(const uint8_t* rows, int64_t row_bytes, const uint8_t* panel, int64_t num_groups, Prefetch ahead,
                        float* out, int64_t out_stride) {
  constexpr PanelShape shape = panel_shape(kLanes, 16, 8, kGroup, false);
  __m256 sums[R][2];
  clear_sums(sums);
  for (int64_t g = 0; g < num_groups; ++g, panel += shape.group_bytes, rows += sizeof(Int16Group)) {
    fetch_next(ahead);
    keep_in_memory(sums);
    v8si dots[R][2];
#pragma GCC unroll 16
    for (int pair = 0; pair < kGroup / 2; ++pair) {
      __m256i codes[2];
#pragma GCC unroll 2
      for (int v = 0; v < 2; ++v) {
        codes[v] = _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(panel) + 2 * pair + v));
      }
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        const int16_t* activations = reinterpret_cast<const Int16Group*>(rows + r * row_bytes)->codes + 2 * pair;
        pair == 0 ? start_wide_dots(dots[r], codes, activations) : add_wide_dots(dots[r], codes, activations);
      }
    }
    __m256 scales[2];
#pragma GCC unroll 2
    for (int v = 0; v < 2; ++v) {
      scales[v] = load_halves(reinterpret_cast<const uint16_t*>(panel + shape.codes_bytes) + v * kLanes);
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      __m256 row_scale = _mm256_set1_ps(reinterpret_cast<const Int16Group*>(rows + r * row_bytes)->scale);
#pragma GCC unroll 2
      for (int v = 0; v < 2; ++v) {
        __m256 value = _mm256_mul_ps(_mm256_cvtepi32_ps(__m256i(dots[r][v])), row_scale);
        sums[r][v] = _mm256_fmadd_ps(value, scales[v], sums[r][v]);
      }
    }
  }
  store_sums(sums, out, out_stride);
}

// The first or second of each pair of bf16, as fp32. The second is masked by an instruction whose operands are both in
// memory: kept in registers, pairs and mask would push sums of the tile out.
inline __m256 widen_pairs(const uint8_t* pairs, int which) {
  if (which == 0) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(pairs)), 16));
  }
  alignas(32) static constexpr uint32_t mask[kLanes] = {0xffff0000u, 0xffff0000u, 0xffff0000u, 0xffff0000u,
                                                        0xffff0000u, 0xffff0000u, 0xffff0000u, 0xffff0000u};
  __m256 values;
  asm("vmovaps %[mask], %[values]\n\t"
      "vandps %[pairs], %[values], %[values]"
      : [values] "=x"(values)
      : [mask] "m"(mask), [pairs] "m"(*reinterpret_cast<const uint8_t(*)[32]>(pairs)));
  return values;
}

// bf16 weights widened to fp32; the operand already is fp32.
template <int R>
inline void bf16_tile(const uint8_t* rows, int64_t row_bytes, const uint8_t* panel, int64_t num_groups, Prefetch ahead,
                      float* out, int64_t out_stride) {
  constexpr int vectors = kBf16PanelColumns / kLanes;
  __m256 sums[R][vectors];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 2
    for (int v = 0; v < vectors; ++v) sums[r][v] = _mm256_setzero_ps();
  }
  for (int64_t k = 0; k < num_groups * kGroup; k += 2, panel += 32 * vectors, rows += 2 * sizeof(float)) {
    if (k % kGroup == 0) fetch_next(ahead);
#pragma GCC unroll 2
    for (int which = 0; which < 2; ++which) {
      __m256 values[vectors];
#pragma GCC unroll 2
      for (int v = 0; v < vectors; ++v) values[v] = widen_pairs(panel + 32 * v, which);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        __m256 activation = _mm256_broadcast_ss(reinterpret_cast<const float*>(rows + r * row_bytes) + which);
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
