// Register tiles for AVX2 without VNNI.
//
// vpmaddubsw multiplies unsigned codes by signed activations and adds pairs in 16 bits, which must not overflow: sums of
// 4-bit and 5-bit codes hold the 4 steps that share an activation scale (4 * 2 * 31 * 127 = 31496), 6 bits 2 steps. Codes of 8 bits
// are taken as two nibbles, dot = low + 16 * high, which makes them the 4-bit tile on half as many columns.
#pragma once
#include "format.h"

namespace octavo {
namespace {

constexpr int kLanes = 8;
constexpr int kMaxTileRows = 6;
constexpr int kBf16PanelColumns = 16;
constexpr int grouped_panel_columns(int bits) { return bits == 8 ? 8 : 16; }

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
      : [codes0] "x"(codes[0]), [codes1] "x"(codes[1]), [step] "m"(*reinterpret_cast<const int8_t(*)[4]>(row.codes + 4 * s)));
}

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

// Adds a dot of codes to the sum of an output: see operand.h for the order, which all instruction sets share.
template <class Format>
inline __m256 add_part(__m256 sum, v8si dot, const Int8Group& row, int part, __m256 scale) {
  __m256 value = _mm256_cvtepi32_ps(__m256i(dot)), part_scale = _mm256_set1_ps(row.scales[part]);
  value = Format::has_min ? _mm256_mul_ps(value, part_scale)
                          : _mm256_fmadd_ps(value, part_scale, _mm256_set1_ps(row.sums[part] * float(-Format::zero)));
  return _mm256_fmadd_ps(value, scale, sum);
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

// The dots of the part of a group that has one activation scale, as they wait for the group's end: in 16 bits if they fit.
template <class Format, int R>
struct PartDots {
  static constexpr int steps = kScaleColumns / 4;
  v16hi dots[R][2];
  void compute(const uint8_t* rows, int64_t row_bytes, const uint8_t* panel, int part) {
    dot_steps<Format, R, steps>(dots, rows, row_bytes, panel, part * steps);
  }
  v8si dot(int r, int v) const {
    if constexpr (Format::bits == 8) return add_pairs(dots[r][0], 1) + add_pairs(dots[r][1], 16);
    return add_pairs(dots[r][v], 1);
  }
};

template <int group, bool has_min, int zero, int R>
struct PartDots<Format<6, group, has_min, zero>, R> {
  static constexpr int steps = kScaleColumns / 4;
  v8si dots[R][2];
  void compute(const uint8_t* rows, int64_t row_bytes, const uint8_t* panel, int part) {
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
      v16hi pairs[R][2];
      dot_steps<Format<6, group, has_min, zero>, R, steps / 2>(pairs, rows, row_bytes, panel,
                                                               part * steps + half * steps / 2);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
#pragma GCC unroll 2
        for (int v = 0; v < 2; ++v) dots[r][v] = half == 0 ? add_pairs(pairs[r][v], 1) : dots[r][v] + add_pairs(pairs[r][v], 1);
      }
    }
  }
  v8si dot(int r, int v) const { return dots[r][v]; }
};

// out[R][columns] = rows x panel. Registers hold the dots; the sums are kept in memory, in the first-level cache.
template <class Format, int R>
inline void grouped_tile(const uint8_t* rows, int64_t row_bytes, const uint8_t* panel, int64_t num_groups, float* out,
                         int64_t out_stride) {
  constexpr int columns = grouped_panel_columns(Format::bits);
  constexpr PanelShape shape = panel_shape(kLanes, columns, Format::bits, Format::group, Format::has_min);
  constexpr int vectors = columns / kLanes;
  __m256 sums[R][vectors];
  for (int r = 0; r < R; ++r) {
    for (int v = 0; v < vectors; ++v) sums[r][v] = _mm256_setzero_ps();
  }
  for (int64_t g = 0; g < num_groups; ++g, panel += shape.group_bytes, rows += sizeof(Int8Group)) {
    prefetch_ahead<shape.group_bytes>(panel);
    if (R > 2) asm volatile("" : : "r"(&sums) : "memory");  // keeps GCC from spreading them over registers it lacks
    PartDots<Format, R> parts[kParts];
#pragma GCC unroll 2
    for (int part = 0; part < kParts; ++part) parts[part].compute(rows, row_bytes, panel, part);

    const uint16_t* halves = reinterpret_cast<const uint16_t*>(panel + shape.codes_bytes);
    __m256 scales[Format::scale_rows][vectors], mins[vectors];
#pragma GCC unroll 2
    for (int v = 0; v < vectors; ++v) {
#pragma GCC unroll 2
      for (int i = 0; i < Format::scale_rows; ++i) scales[i][v] = load_halves(halves + i * columns + v * kLanes);
      if (Format::has_min) mins[v] = load_halves(halves + Format::scale_rows * columns + v * kLanes);
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const Int8Group& row = *reinterpret_cast<const Int8Group*>(rows + r * row_bytes);
#pragma GCC unroll 2
      for (int part = 0; part < kParts; ++part) {
#pragma GCC unroll 2
        for (int v = 0; v < vectors; ++v) {
          sums[r][v] = add_part<Format>(sums[r][v], parts[part].dot(r, v), row, part, scales[Format::scale_row(part)][v]);
        }
      }
#pragma GCC unroll 2
      for (int v = 0; v < vectors; ++v) {
        if (Format::has_min) sums[r][v] = _mm256_fnmadd_ps(mins[v], _mm256_set1_ps(row.sum), sums[r][v]);
      }
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 2
    for (int v = 0; v < vectors; ++v) _mm256_storeu_ps(out + r * out_stride + v * kLanes, sums[r][v]);
  }
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
inline void bf16_tile(const uint8_t* rows, int64_t row_bytes, const uint8_t* panel, int64_t num_groups, float* out,
                      int64_t out_stride) {
  constexpr int vectors = kBf16PanelColumns / kLanes;
  __m256 sums[R][vectors];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 2
    for (int v = 0; v < vectors; ++v) sums[r][v] = _mm256_setzero_ps();
  }
  for (int64_t k = 0; k < num_groups * kGroup; k += 2, panel += 32 * vectors, rows += 2 * sizeof(float)) {
    prefetch_ahead<32 * vectors>(panel);
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
