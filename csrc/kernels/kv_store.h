// Keys and values of tokens into the order of a KV page: elements that a dot product reads together, a unit, are
// neighbours. Several tokens of a page at once share lines of memory and, in keys, whole vectors of units.
#pragma once
#include "kernels.h"
#include "kv_bf16.h"
#include "kv_int8.h"
#include "vec.h"

namespace octavo {
namespace {

// One head of consecutive tokens whose slots in a page begin with `slot`.
struct HeadRows {
  const float* data;
  int64_t stride;
  int count;
  int slot;

  const float* row(int token) const { return data + token * stride; }
};

constexpr int kStoredColumns = 64;  // at once

template <class Pages>
struct RoundedRows {
  alignas(64) typename Pages::Stored rows[OCT_BLOCK_TOKENS][kStoredColumns];
};

#ifdef OCT_VEC_AVX512
// dst[column][row] = src[row][column], 16 x 16 of 32 bits; rows of src lie `stride` bytes apart, of dst adjacent.
inline void transpose_units(const void* src, int64_t stride, uint32_t* dst) {
  __m512i a[16], b[16];
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) a[i] = _mm512_loadu_si512(static_cast<const uint8_t*>(src) + i * stride);
#pragma GCC unroll 8
  for (int i = 0; i < 16; i += 2) {
    b[i] = _mm512_unpacklo_epi32(a[i], a[i + 1]);
    b[i + 1] = _mm512_unpackhi_epi32(a[i], a[i + 1]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 16; i += 4) {  // a[i + j]: columns j, 4 + j, 8 + j, 12 + j of four rows
    a[i] = _mm512_unpacklo_epi64(b[i], b[i + 2]);
    a[i + 1] = _mm512_unpackhi_epi64(b[i], b[i + 2]);
    a[i + 2] = _mm512_unpacklo_epi64(b[i + 1], b[i + 3]);
    a[i + 3] = _mm512_unpackhi_epi64(b[i + 1], b[i + 3]);
  }
#pragma GCC unroll 4
  for (int j = 0; j < 4; ++j) {
    __m512i first = _mm512_shuffle_i32x4(a[j], a[4 + j], 0x88), second = _mm512_shuffle_i32x4(a[j], a[4 + j], 0xdd);
    __m512i third = _mm512_shuffle_i32x4(a[8 + j], a[12 + j], 0x88);
    __m512i fourth = _mm512_shuffle_i32x4(a[8 + j], a[12 + j], 0xdd);
    _mm512_storeu_si512(dst + 16 * j, _mm512_shuffle_i32x4(first, third, 0x88));
    _mm512_storeu_si512(dst + 16 * (4 + j), _mm512_shuffle_i32x4(second, fourth, 0x88));
    _mm512_storeu_si512(dst + 16 * (8 + j), _mm512_shuffle_i32x4(first, third, 0xdd));
    _mm512_storeu_si512(dst + 16 * (12 + j), _mm512_shuffle_i32x4(second, fourth, 0xdd));
  }
}
#endif

// Units of rounded rows to dst[unit][16 slots].
template <class Unit>
inline void store_key_units(const void* rounded, int64_t stride, int num_units, const HeadRows& keys, Unit* dst) {
  int unit = 0;
#ifdef OCT_VEC_AVX512
  if (sizeof(Unit) == sizeof(uint32_t) && keys.count == OCT_BLOCK_TOKENS) {
    for (; unit + 16 <= num_units; unit += 16) {
      transpose_units(static_cast<const Unit*>(rounded) + unit, stride, reinterpret_cast<uint32_t*>(dst) + unit * 16);
    }
  }
#endif
  for (int token = 0; token < keys.count; ++token) {
    const uint8_t* src = static_cast<const uint8_t*>(rounded) + token * stride;
    for (int i = unit; i < num_units; ++i) {
      memcpy(dst + i * OCT_BLOCK_TOKENS + keys.slot + token, src + i * int(sizeof(Unit)), sizeof(Unit));
    }
  }
}

template <class Pages>
inline void store_key(const float* x, int head_size, float inverse, int slot, uint8_t* dst) {
  using Stored = typename Pages::Stored;
  constexpr int together = Pages::together;
  Stored* elements = reinterpret_cast<Stored*>(dst) + slot * together;
  Pages::for_each_rounded(x, head_size, inverse, Pages::key_flip, [elements](int unit, int place, Stored element) {
    elements[unit * (together * OCT_BLOCK_TOKENS) + place] = element;
  });
}

template <class Pages>
inline void store_keys(const HeadRows& keys, int head_size, uint8_t* dst, float* scales) {
  using Unit = typename Pages::Unit;
  constexpr int together = Pages::together;
  RoundedRows<Pages> rounded;
  float inverses[OCT_BLOCK_TOKENS];
  Pages::find_scales(keys.data, keys.stride, keys.count, head_size, scales + keys.slot, inverses);
  if (keys.count == 1) return store_key<Pages>(keys.data, head_size, inverses[0], keys.slot, dst);
  for (int first = 0; first < head_size; first += kStoredColumns) {
    int columns = head_size - first < kStoredColumns ? head_size - first : kStoredColumns;
    for (int token = 0; token < keys.count; ++token) {
      Pages::round_row(keys.row(token) + first, columns, inverses[token], Pages::key_flip, rounded.rows[token]);
      for (int c = columns; c % together != 0; ++c) rounded.rows[token][c] = 0;
    }
    store_key_units(rounded.rows, sizeof rounded.rows[0], whole_units<Pages>(columns), keys,
                    reinterpret_cast<Unit*>(dst) + int64_t(first / together) * OCT_BLOCK_TOKENS);
  }
}

// Rows of a whole unit of tokens to dst[column].
template <class Pages>
inline void store_value_units(const typename Pages::Stored (*rows)[kStoredColumns], int columns,
                              typename Pages::Unit* dst) {
  using Unit = typename Pages::Unit;
  Unit units[kStoredColumns];
  for (int c = 0; c < columns; ++c) {
    Unit unit = 0;
#pragma GCC unroll 4
    for (int i = 0; i < Pages::together; ++i) unit = Unit(unit | Unit(rows[i][c]) << (8 * sizeof(rows[i][c]) * i));
    units[c] = unit;
  }
  memcpy(dst, units, size_t(columns) * sizeof(Unit));
}

template <class Pages>
inline void store_value(const float* x, int head_size, float inverse, int slot, uint8_t* dst) {
  using Stored = typename Pages::Stored;
  constexpr int together = Pages::together;
  Stored* elements = reinterpret_cast<Stored*>(dst) + slot / together * (together * head_size);
  elements += slot % together;
  Pages::for_each_rounded(x, head_size, inverse, Stored(0), [elements](int unit, int place, Stored element) {
    elements[(unit * together + place) * together] = element;
  });
}

// Rounded rows to units[unit of tokens][head_size]. A unit of which others hold a part is written element by element.
template <class Pages>
inline void store_value_rows(const typename Pages::Stored (*rows)[kStoredColumns], const HeadRows& values, int columns,
                             int head_size, typename Pages::Unit* dst) {
  constexpr int together = Pages::together;
  for (int token = 0; token < values.count;) {
    int slot = values.slot + token, place = slot % together;
    typename Pages::Unit* units = dst + int64_t(slot / together) * head_size;
    if (place == 0 && token + together <= values.count) {
      store_value_units<Pages>(rows + token, columns, units);
      token += together;
    } else {
      auto* elements = reinterpret_cast<typename Pages::Stored*>(units) + place;
      for (int c = 0; c < columns; ++c) elements[c * together] = rows[token][c];
      ++token;
    }
  }
}

template <class Pages>
inline void store_values(const HeadRows& values, int head_size, uint8_t* dst, float* scales) {
  RoundedRows<Pages> rounded;
  float inverses[OCT_BLOCK_TOKENS];
  Pages::find_scales(values.data, values.stride, values.count, head_size, scales + values.slot, inverses);
  if (values.count == 1) return store_value<Pages>(values.data, head_size, inverses[0], values.slot, dst);
  for (int first = 0; first < head_size; first += kStoredColumns) {
    int columns = head_size - first < kStoredColumns ? head_size - first : kStoredColumns;
    for (int token = 0; token < values.count; ++token) {
      Pages::round_row(values.row(token) + first, columns, inverses[token], 0, rounded.rows[token]);
    }
    store_value_rows<Pages>(rounded.rows, values, columns, head_size,
                            reinterpret_cast<typename Pages::Unit*>(dst) + first);
  }
}

}  // namespace
}  // namespace octavo
