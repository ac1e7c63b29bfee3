// Register tiles for AVX-512 with VNNI and BF16.
#pragma once
#include "outliers.h"

namespace octavo {
namespace {

constexpr int kLanes = 16;
constexpr int kMaxTileRows = 6;
constexpr int kBf16PanelColumns = 64;

// GCC 12 keeps arrays of these in registers; arrays of __m512i that vpdpbusd accumulates into it stores at every step.
typedef int v16si __attribute__((vector_size(64)));

inline __m512 load_halves(const uint16_t* p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}

inline __m512i shift_bytes(__m512i bytes, int left) {
  return left >= 0 ? _mm512_slli_epi16(bytes, unsigned(left)) : _mm512_srli_epi16(bytes, unsigned(-left));
}

template <class Format>
inline __m512i load_table() {
  const uint8_t* entries = code_tables[Format::table];
  return _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(entries)));
}

// The codes of step s of both vectors of columns.
template <class Format>
[[gnu::always_inline]] inline void load_step(const uint8_t* group, int s, __m512i (&codes)[2]) {
  if constexpr (Format::bits == 8) {
    codes[0] = _mm512_loadu_si512(group + 128 * s);
    codes[1] = _mm512_loadu_si512(group + 128 * s + 64);
    return;
  }
  __m512i low = _mm512_set1_epi8(15);
  __m512i nibbles = _mm512_loadu_si512(group + 64 * s);
  codes[0] = _mm512_and_si512(nibbles, low);
  codes[1] = _mm512_and_si512(_mm512_srli_epi16(nibbles, 4), low);
  if constexpr (Format::table != NO_TABLE) {
    __m512i table = load_table<Format>();
    codes[0] = _mm512_shuffle_epi8(table, codes[0]);
    codes[1] = _mm512_shuffle_epi8(table, codes[1]);
  }
  if constexpr (Format::bits > 4) {
    __m512i high = _mm512_set1_epi8(Format::bits == 5 ? 0x10 : 0x30);
#pragma GCC unroll 2
    for (int v = 0; v < 2; ++v) {
      HighBits where = high_bits(kLanes, Format::bits, s, v);
      __m512i shifted = shift_bytes(_mm512_loadu_si512(group + where.offset), 4 - where.shift);
      codes[v] = _mm512_ternarylogic_epi32(codes[v], shifted, high, 0xf8);  // codes | (shifted & high)
    }
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

// Where dots of one part of a group start: all of it, or the half that a scale covers.
template <class Format, int R>
[[gnu::always_inline]] inline void start_dots(const uint8_t* rows, int64_t row_bytes, int part, v16si (&dots)[R][2]) {
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
    __m512i start = _mm512_setzero_si512();
    if constexpr (Format::zero != 0) {
      int negated_sum = group_of_row(rows, row_bytes, r).negated_sums[Format::scale_rows == 1 ? 2 : part];
      start = _mm512_slli_epi32(_mm512_set1_epi32(negated_sum), __builtin_ctz(Format::zero));
    }
    dots[r][0] = dots[r][1] = v16si(start);
  }
}

template <class Format, int R>
[[gnu::always_inline]] inline void dot_step(const uint8_t* rows, int64_t row_bytes, const uint8_t* panel, int s,
                                            v16si (&dots)[R][2]) {
  asm volatile("" ::: "memory");  // or GCC loads codes of later steps first, and spills them
  __m512i codes[2];
  load_step<Format>(panel, s, codes);
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
    int step;
    memcpy(&step, group_of_row(rows, row_bytes, r).codes + 4 * s, 4);
    __m512i activations = _mm512_set1_epi32(step);
#pragma GCC unroll 2
    for (int v = 0; v < 2; ++v) {
      dots[r][v] = v16si(_mm512_dpbusd_epi32(__m512i(dots[r][v]), codes[v], activations));
    }
  }
}

// GCC computes the value before what follows in memory, however it would like to mix them.
[[gnu::always_inline]] inline void compute_here([[maybe_unused]] __m512& value) {
#ifndef OCT_EMULATE_AVX512
  asm volatile("" : "+v"(value));
#endif
}

// Subtracts the minimums of a group from the sums of rows 2 * pair and the next in one vector of columns.
template <int R>
[[gnu::always_inline]] inline void subtract_minimums(const uint8_t* rows, int64_t row_bytes, int pair, int vector,
                                                     __m512 mins, __m512 (&sums)[R][2]) {
  for (int r = 2 * pair; r < 2 * pair + 2 && r < R; ++r) {
    __m512 row_sum = _mm512_set1_ps(group_of_row(rows, row_bytes, r).sum);
    sums[r][vector] = _mm512_fnmadd_ps(mins, row_sum, sums[r][vector]);
    compute_here(sums[r][vector]);  // not beside the codes of the next step
  }
}

// A dot times its row's scale for the group. Powers of two are added to the exponent, by other units than those that
// multiply and do the dots.
template <bool has_outliers>
[[gnu::always_inline]] inline __m512 scaled_dot(v16si dot, const Int8Group& row) {
  __m512 value = _mm512_cvtepi32_ps(__m512i(dot));
  if constexpr (!has_outliers) return _mm512_mul_ps(value, _mm512_set1_ps(row.scale));
  return _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(value), _mm512_set1_epi32(row.doublings)));
}

// Bits [first, first + count) of each lane. By shifts, since a tile has no register to spare for a mask.
inline __m512i bits_of(__m512i lanes, int first, int count) {
  return _mm512_srli_epi32(_mm512_slli_epi32(lanes, unsigned(32 - first - count)), unsigned(32 - count));
}

// The code of one column of a group in each lane of a vector of rows.
template <class Format>
[[gnu::always_inline]] inline __m512i load_codes_of_column(const uint8_t* group, int column, int vector) {
  int step = column / 4, bit = column % 4 * 8;
  if constexpr (Format::bits == 8) return bits_of(_mm512_loadu_si512(group + 128 * step + 64 * vector), bit, 8);
  __m512i codes = bits_of(_mm512_loadu_si512(group + 64 * step), bit + 4 * vector, 4);
  if constexpr (Format::table != NO_TABLE) {
    return bits_of(_mm512_shuffle_epi8(load_table<Format>(), codes), 0, 8);
  }
  if constexpr (Format::bits > 4) {
    HighBits where = high_bits(kLanes, Format::bits, step, vector);
    __m512i high = bits_of(_mm512_loadu_si512(group + where.offset), bit + where.shift, Format::bits - 4);
    codes = _mm512_or_si512(codes, _mm512_slli_epi32(high, 4));
  }
  return codes;
}

// The weights of one column of a group.
template <class Format>
[[gnu::always_inline]] inline void load_column(const uint8_t* group, int column, __m512 (&weights)[2]) {
  constexpr PanelShape shape = panel_shape(kLanes, Format::bits, Format::group, Format::has_min);
  const uint16_t* halves = reinterpret_cast<const uint16_t*>(group + shape.codes_bytes);
  const uint16_t* scales = halves + column / Format::group * shape.columns;
  const uint16_t* mins = halves + Format::scale_rows * shape.columns;
#pragma GCC unroll 2
  for (int v = 0; v < 2; ++v) {
    asm volatile("" ::: "memory");  // one vector after the other
    __m512i codes = load_codes_of_column<Format>(group, column, v);
    __m512 value = _mm512_cvtepi32_ps(_mm512_sub_epi32(codes, _mm512_set1_epi32(Format::zero)));
    __m512 scale = load_halves(scales + v * kLanes);
    if constexpr (Format::has_min) {
      weights[v] = _mm512_fmsub_ps(value, scale, load_halves(mins + v * kLanes));
    } else {
      weights[v] = _mm512_mul_ps(value, scale);
    }
  }
}

// Adds what the outliers of a group give. `kept` are those of the first row.
template <class Format, int R>
[[gnu::always_inline]] inline void add_outliers(const uint8_t* rows, int64_t row_bytes, const uint8_t* kept,
                                                const uint8_t* panel, __m512 (&sums)[R][2]) {
  uint32_t columns = outlier_columns<R>(rows, row_bytes);
  if (columns == 0) return;
  const float* outliers[R];
  outliers_of_rows(rows, row_bytes, kept, outliers);
  for (; columns != 0; columns &= columns - 1) {
    int column = __builtin_ctz(columns);
    __m512 weights[2];
    load_column<Format>(panel, column, weights);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      __m512 outlier = _mm512_set1_ps(outliers[r][column]);
#pragma GCC unroll 2
      for (int v = 0; v < 2; ++v) sums[r][v] = _mm512_fmadd_ps(outlier, weights[v], sums[r][v]);
    }
  }
}

// Adds the products of a group. `kept` are the outliers of the first row. What does not wait for the group's dots is
// done between their steps; after them it would hold up the next group's.
template <class Format, bool has_outliers, int R>
[[gnu::always_inline]] inline void add_group(const uint8_t* rows, int64_t row_bytes, const uint8_t* kept,
                                             const uint8_t* panel, __m512 (&sums)[R][2]) {
  constexpr PanelShape shape = panel_shape(kLanes, Format::bits, Format::group, Format::has_min);
  constexpr int outliers_step = 1, first_min_step = has_outliers ? outliers_step + 1 : 0;
  constexpr int pairs = (kMaxTileRows + 1) / 2;
  static_assert(first_min_step + 2 * pairs <= kSteps, "after each step the minimums of two rows in one vector");
  constexpr int parts = Format::scale_rows, steps = kSteps / parts;
  const uint16_t* halves = reinterpret_cast<const uint16_t*>(panel + shape.codes_bytes);
  __m512 mins;  // of the vector whose turn it is, since registers are short
#pragma GCC unroll 2
  for (int part = 0; part < parts; ++part) {
    v16si dots[R][2];
    start_dots<Format, R>(rows, row_bytes, part, dots);
#pragma GCC unroll 8
    for (int s = part * steps; s < (part + 1) * steps; ++s) {
      dot_step<Format, R>(rows, row_bytes, panel, s, dots);
      if (has_outliers && s == outliers_step) add_outliers<Format, R>(rows, row_bytes, kept, panel, sums);
      int turn = s - first_min_step, pair = turn % pairs, vector = turn / pairs;
      if (!Format::has_min || turn < 0 || vector > 1) continue;
      if (pair == 0) mins = load_halves(halves + parts * shape.columns + vector * kLanes);
      subtract_minimums<R>(rows, row_bytes, pair, vector, mins, sums);
    }
    const uint16_t* scale_row = halves + part * shape.columns;
    __m512 scales[2] = {load_halves(scale_row), load_halves(scale_row + kLanes)};
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 2
      for (int v = 0; v < 2; ++v) {
        __m512 dot = scaled_dot<has_outliers>(dots[r][v], group_of_row(rows, row_bytes, r));
        sums[r][v] = _mm512_fmadd_ps(dot, scales[v], sums[r][v]);
      }
    }
  }
}

template <int R>
[[gnu::always_inline]] inline void scale_by_units(const uint8_t* rows, int64_t row_bytes, int64_t num_groups,
                                                  __m512 (&sums)[R][2]) {
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
    __m512 unit = _mm512_set1_ps(unit_of_row(rows, row_bytes, r, num_groups));
#pragma GCC unroll 2
    for (int v = 0; v < 2; ++v) sums[r][v] = _mm512_mul_ps(sums[r][v], unit);
  }
}

// out[R][32] = rows x panel.
template <class Format, bool has_outliers, int R>
inline void grouped_tile(const uint8_t* first_rows, int64_t row_bytes, const uint8_t* panel, int64_t num_groups,
                         Prefetch ahead, float* out, int64_t out_stride) {
  constexpr PanelShape shape = panel_shape(kLanes, Format::bits, Format::group, Format::has_min);
  const uint8_t* rows = first_rows;
  const uint8_t* kept = rows + outliers_offset(num_groups);
  __m512 sums[R][2];
  clear_sums(sums);
  for (int64_t g = 0; g < num_groups; ++g, panel += shape.group_bytes, rows += sizeof(Int8Group), kept += kKeptBytes) {
    fetch_next(ahead);
    add_group<Format, has_outliers, R>(rows, row_bytes, kept, panel, sums);
  }
  if constexpr (has_outliers) scale_by_units(first_rows, row_bytes, num_groups, sums);
  store_sums(sums, out, out_stride);
}

template <int R, bool continues>
inline void bf16_tile(const uint8_t* rows, int64_t row_bytes, const uint8_t* panel, int64_t num_groups, Prefetch ahead,
                      float* out, int64_t out_stride) {
  constexpr int vectors = kBf16PanelColumns / kLanes;
  __m512 sums[R][vectors];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < vectors; ++v) {
      sums[r][v] = continues ? _mm512_loadu_ps(out + r * out_stride + v * kLanes) : _mm512_setzero_ps();
    }
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
