// Register tiles for AVX2 without VNNI.
//
// vpmaddubsw multiplies unsigned codes by signed activations and adds pairs in 16 bits, which must not overflow: sums
// of codes of 4 bits hold all 8 steps of a group (8 * 2 * 15 * 127 = 30480), of 5 bits 4 steps, of 6 bits 2. Codes of 8
// bits are multiplied as two of 4 bits. A step costs two instructions for 8 columns times 4 codes, and a shared broadcast.
#pragma once
#include "outliers.h"

namespace octavo {
namespace {

constexpr int kLanes = 8;
constexpr int kMaxTileRows = 6;
constexpr int kBf16PanelColumns = 16;

typedef short v16hi __attribute__((vector_size(32)));
typedef int v8si __attribute__((vector_size(32)));

inline void start_dots(v16hi (&dots)[2], const __m256i (&codes)[2], const int8_t* step) {
  int activations;
  memcpy(&activations, step, 4);
  dots[0] = v16hi(_mm256_maddubs_epi16(codes[0], _mm256_set1_epi32(activations)));
  dots[1] = v16hi(_mm256_maddubs_epi16(codes[1], _mm256_set1_epi32(activations)));
}

// In assembly because GCC otherwise computes the products of all steps first and spills every one of them.
inline void add_dots(v16hi (&dots)[2], const __m256i (&codes)[2], const int8_t* step) {
  v16hi products, activations;
  asm("vpbroadcastd %[step], %[activations]\n\t"
      "vpmaddubsw %[activations], %[codes0], %[products]\n\t"
      "vpmaddubsw %[activations], %[codes1], %[activations]\n\t"
      "vpaddw %[products], %[dots0], %[dots0]\n\t"
      "vpaddw %[activations], %[dots1], %[dots1]"
      : [dots0] "+x"(dots[0]), [dots1] "+x"(dots[1]), [products] "=&x"(products), [activations] "=&x"(activations)
      : [codes0] "x"(codes[0]), [codes1] "x"(codes[1]), [step] "m"(*reinterpret_cast<const int8_t(*)[4]>(step)));
}

inline v8si add_pairs(v16hi sums, int factor) {
  return v8si(_mm256_madd_epi16(__m256i(sums), _mm256_set1_epi16(short(factor))));
}
inline __m256 load_halves(const uint16_t* p) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
inline __m256i shift_bytes(__m256i bytes, int left) {
  return left >= 0 ? _mm256_slli_epi16(bytes, left) : _mm256_srli_epi16(bytes, -left);
}
inline __m256i load_bytes(const uint8_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }

// Codes that take all 8 bits of a byte are multiplied as two of 4.
template <class Format>
constexpr int halves_of_codes = Format::bits == 8 || Format::table != NO_TABLE ? 2 : 1;

// The lower or upper halves of a table's entries at 4-bit codes.
inline __m256i look_up_half(const uint8_t (&table)[16], int half, __m256i codes) {
  __m128i entries = _mm_loadu_si128(reinterpret_cast<const __m128i*>(table));
  if (half == 1) entries = _mm_srli_epi16(entries, 4);
  return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(_mm_and_si128(entries, _mm_set1_epi8(15))), codes);
}

// The codes of step s of both vectors of columns; of codes in halves the lower or upper one.
template <class Format>
[[gnu::always_inline]] inline void load_step(const uint8_t* group, int s, int half, __m256i (&codes)[2]) {
  __m256i low = _mm256_set1_epi8(15);
#pragma GCC unroll 2
  for (int v = 0; v < 2; ++v) {
    if constexpr (Format::bits == 8) {
      __m256i bytes = load_bytes(group + (2 * s + v) * 32);
      codes[v] = _mm256_and_si256(half == 0 ? bytes : _mm256_srli_epi16(bytes, 4), low);
    } else {
      __m256i bytes = load_bytes(group + 32 * s);
      codes[v] = _mm256_and_si256(v == 0 ? bytes : _mm256_srli_epi16(bytes, 4), low);
    }
    if constexpr (Format::table != NO_TABLE) codes[v] = look_up_half(code_tables[Format::table], half, codes[v]);
    if constexpr (Format::bits == 5 || Format::bits == 6) {
      HighBits where = high_bits(kLanes, Format::bits, s, v);
      __m256i shifted = shift_bytes(load_bytes(group + where.offset), 4 - where.shift);
      __m256i high = _mm256_set1_epi8(Format::bits == 5 ? 0x10 : 0x30);
      codes[v] = _mm256_or_si256(codes[v], _mm256_and_si256(shifted, high));
    }
  }
}

// Dots of steps [first, first + count), few enough for 16 bits.
template <class Format, int R, int count>
[[gnu::always_inline]] inline void dot_steps(const uint8_t* rows, int64_t row_bytes, const uint8_t* panel, int first,
                                             int half, v16hi (&dots)[R][2]) {
#pragma GCC unroll 8
  for (int s = 0; s < count; ++s) {
    __m256i codes[2];
    load_step<Format>(panel, first + s, half, codes);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const int8_t* step = group_of_row(rows, row_bytes, r).codes + 4 * (first + s);
      s == 0 ? start_dots(dots[r], codes, step) : add_dots(dots[r], codes, step);
    }
  }
}

// Integer dots of one part of a group: of all of it, or of the half that a scale covers.
template <class Format, int R>
[[gnu::always_inline]] inline void dot_part(const uint8_t* rows, int64_t row_bytes, const uint8_t* panel, int part,
                                            v8si (&dots)[R][2]) {
  constexpr int parts = Format::scale_rows, steps = kSteps / parts;
  constexpr int most = Format::bits == 5 ? 4 : Format::bits == 6 ? 2 : 8, count = steps < most ? steps : most;
  constexpr int halves = halves_of_codes<Format>;
#pragma GCC unroll 4
  for (int chunk = 0; chunk < halves * steps / count; ++chunk) {
    int half = chunk % halves;
    v16hi pairs[R][2];
    dot_steps<Format, R, count>(rows, row_bytes, panel, part * steps + chunk / halves * count, half, pairs);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      int negated_sum = group_of_row(rows, row_bytes, r).negated_sums[parts == 1 ? 2 : part];
      v8si start = v8si(_mm256_set1_epi32(Format::zero * negated_sum));
#pragma GCC unroll 2
      for (int v = 0; v < 2; ++v) {
        v8si sums = add_pairs(pairs[r][v], half == 0 ? 1 : 16);
        dots[r][v] = chunk > 0 ? dots[r][v] + sums : Format::zero != 0 ? start + sums : sums;
      }
    }
  }
}

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

template <int R>
[[gnu::always_inline]] inline void subtract_minimums(const uint8_t* rows, int64_t row_bytes, const uint16_t* min_row,
                                                     __m256 (&sums)[R][2]) {
  __m256 mins[2] = {load_halves(min_row), load_halves(min_row + kLanes)};
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
    __m256 row_sum = _mm256_set1_ps(group_of_row(rows, row_bytes, r).sum);
#pragma GCC unroll 2
    for (int v = 0; v < 2; ++v) sums[r][v] = _mm256_fnmadd_ps(mins[v], row_sum, sums[r][v]);
  }
}

// The codes of step s of vector v, whole.
template <class Format>
[[gnu::always_inline]] inline __m256i load_whole_codes(const uint8_t* group, int s, int v) {
  __m256i codes[2];
  load_step<Format>(group, s, 0, codes);
  if constexpr (halves_of_codes<Format> == 1) return codes[v];
  __m256i upper[2];
  load_step<Format>(group, s, 1, upper);
  return _mm256_or_si256(codes[v], _mm256_slli_epi16(upper[v], 4));
}

// The weights of one column of a group.
template <class Format>
[[gnu::always_inline]] inline void load_column(const uint8_t* group, int column, __m256 (&weights)[2]) {
  constexpr PanelShape shape = panel_shape(kLanes, Format::bits, Format::group, Format::has_min);
  const uint16_t* halves = reinterpret_cast<const uint16_t*>(group + shape.codes_bytes);
  const uint16_t* scales = halves + column / Format::group * shape.columns;
  const uint16_t* mins = halves + Format::scale_rows * shape.columns;
#pragma GCC unroll 2
  for (int v = 0; v < 2; ++v) {
    __m256i codes = load_whole_codes<Format>(group, column / 4, v);
    __m256i code = _mm256_and_si256(_mm256_srli_epi32(codes, column % 4 * 8), _mm256_set1_epi32(255));
    __m256 value = _mm256_cvtepi32_ps(_mm256_sub_epi32(code, _mm256_set1_epi32(Format::zero)));
    __m256 scale = load_halves(scales + v * kLanes);
    if constexpr (Format::has_min) {
      weights[v] = _mm256_fmsub_ps(value, scale, load_halves(mins + v * kLanes));
    } else {
      weights[v] = _mm256_mul_ps(value, scale);
    }
  }
}

// Adds what the outliers of a group give. `kept` are those of the first row.
template <class Format, int R>
[[gnu::always_inline]] inline void add_outliers(const uint8_t* rows, int64_t row_bytes, const uint8_t* kept,
                                                const uint8_t* panel, __m256 (&sums)[R][2]) {
  uint32_t columns = outlier_columns<R>(rows, row_bytes);
  if (columns == 0) return;
  const float* outliers[R];
  outliers_of_rows(rows, row_bytes, kept, outliers);
  for (; columns != 0; columns &= columns - 1) {
    int column = __builtin_ctz(columns);
    __m256 weights[2];
    load_column<Format>(panel, column, weights);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      __m256 outlier = _mm256_set1_ps(outliers[r][column]);
#pragma GCC unroll 2
      for (int v = 0; v < 2; ++v) sums[r][v] = _mm256_fmadd_ps(outlier, weights[v], sums[r][v]);
    }
  }
}

// A dot times its row's scale for the group.
template <bool has_outliers>
[[gnu::always_inline]] inline __m256 scaled_dot(v8si dot, const Int8Group& row) {
  __m256 value = _mm256_cvtepi32_ps(__m256i(dot));
  if constexpr (!has_outliers) return _mm256_mul_ps(value, _mm256_set1_ps(row.scale));
  return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(value), _mm256_set1_epi32(row.doublings)));
}

// Adds the products of a group. `kept` are the outliers of the first row.
template <class Format, bool has_outliers, int R>
[[gnu::always_inline]] inline void add_group(const uint8_t* rows, int64_t row_bytes, const uint8_t* kept,
                                             const uint8_t* panel, __m256 (&sums)[R][2]) {
  constexpr PanelShape shape = panel_shape(kLanes, Format::bits, Format::group, Format::has_min);
  const uint16_t* halves = reinterpret_cast<const uint16_t*>(panel + shape.codes_bytes);
  if constexpr (has_outliers) add_outliers<Format, R>(rows, row_bytes, kept, panel, sums);
  if constexpr (Format::has_min) {
    subtract_minimums<R>(rows, row_bytes, halves + Format::scale_rows * shape.columns, sums);
  }
#pragma GCC unroll 2
  for (int part = 0; part < Format::scale_rows; ++part) {
    keep_in_memory(sums);
    v8si dots[R][2];
    dot_part<Format, R>(rows, row_bytes, panel, part, dots);
    const uint16_t* scale_row = halves + part * shape.columns;
    __m256 scales[2] = {load_halves(scale_row), load_halves(scale_row + kLanes)};
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 2
      for (int v = 0; v < 2; ++v) {
        __m256 dot = scaled_dot<has_outliers>(dots[r][v], group_of_row(rows, row_bytes, r));
        sums[r][v] = _mm256_fmadd_ps(dot, scales[v], sums[r][v]);
      }
    }
  }
}

template <int R>
[[gnu::always_inline]] inline void scale_by_units(const uint8_t* rows, int64_t row_bytes, int64_t num_groups,
                                                  __m256 (&sums)[R][2]) {
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
    __m256 unit = _mm256_set1_ps(unit_of_row(rows, row_bytes, r, num_groups));
#pragma GCC unroll 2
    for (int v = 0; v < 2; ++v) sums[r][v] = _mm256_mul_ps(sums[r][v], unit);
  }
}

// out[R][16] = rows x panel.
template <class Format, bool has_outliers, int R>
inline void grouped_tile(const uint8_t* first_rows, int64_t row_bytes, const uint8_t* panel, int64_t num_groups,
                         Prefetch ahead, float* out, int64_t out_stride) {
  constexpr PanelShape shape = panel_shape(kLanes, Format::bits, Format::group, Format::has_min);
  const uint8_t* rows = first_rows;
  const uint8_t* kept = rows + outliers_offset(num_groups);
  __m256 sums[R][2];
  clear_sums(sums);
  for (int64_t g = 0; g < num_groups; ++g, panel += shape.group_bytes, rows += sizeof(Int8Group), kept += kKeptBytes) {
    fetch_next(ahead);
    add_group<Format, has_outliers, R>(rows, row_bytes, kept, panel, sums);
  }
  if constexpr (has_outliers) scale_by_units(first_rows, row_bytes, num_groups, sums);
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
template <int R, bool continues>
inline void bf16_tile(const uint8_t* rows, int64_t row_bytes, const uint8_t* panel, int64_t num_groups, Prefetch ahead,
                      float* out, int64_t out_stride) {
  constexpr int vectors = kBf16PanelColumns / kLanes;
  __m256 sums[R][vectors];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 2
    for (int v = 0; v < vectors; ++v) {
      sums[r][v] = continues ? _mm256_loadu_ps(out + r * out_stride + v * kLanes) : _mm256_setzero_ps();
    }
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
