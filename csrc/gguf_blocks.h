// GGUF blocks taken apart: 32 consecutive columns of a row as unsigned codes with their scales and minimum.
//
// Layouts: ggml's block structures, https://github.com/ggml-org/ggml/blob/master/src/ggml-common.h. A value is
// scale * (code - zero), or scale * code - min for the types that have a minimum. Everything here is local to the
// source that includes it, so that each instruction set keeps its own copy.
#pragma once
#include <stdint.h>
#include <string.h>

#include "gguf_types.h"
#include "kernels/vec_scalar.h"

namespace octavo {
namespace {

constexpr int kGgufGroup = 32;  // columns decoded at a time

struct GgufGroup {
  uint8_t codes[kGgufGroup];
  float scales[2];  // of columns 0..15 and 16..31; equal unless the type has groups of 16
  float min;        // 0 for the types without
};

inline float read_half(const uint8_t* p) {
  uint16_t half;
  memcpy(&half, p, 2);
  return half_to_float(half);
}

// Nibble types of 32 columns: byte j holds column j below and column j + 16 above.
inline void read_nibbles(const uint8_t* bytes, uint8_t* codes) {
  for (int j = 0; j < 16; ++j) {
    codes[j] = bytes[j] & 15;
    codes[j + 16] = bytes[j] >> 4;
  }
}

// Fifth bits of 32 columns: bit j belongs to column j.
inline void add_fifth_bits(const uint8_t* bytes, uint8_t* codes) {
  uint32_t bits;
  memcpy(&bits, bytes, 4);
  for (int j = 0; j < 32; ++j) codes[j] |= uint8_t(((bits >> j) & 1) << 4);
}

// Scale and minimum of group `index` of 8: six bits each in 12 bytes.
inline void read_scale_and_min(const uint8_t* bytes, int index, int* scale, int* min) {
  if (index < 4) {
    *scale = bytes[index] & 63;
    *min = bytes[index + 4] & 63;
  } else {
    *scale = (bytes[index + 4] & 15) | ((bytes[index - 4] >> 6) << 4);
    *min = (bytes[index + 4] >> 4) | ((bytes[index] >> 6) << 4);
  }
}

inline void set_scale(GgufGroup* group, float scale, float min) {
  group->scales[0] = group->scales[1] = scale;
  group->min = min;
}

struct BlockQ4_0 {
  static constexpr int elements = 32, bytes = 18, zero = 8;
  static constexpr bool has_min = false;
  static void read(const uint8_t* block, int, GgufGroup* group) {
    set_scale(group, read_half(block), 0);
    read_nibbles(block + 2, group->codes);
  }
};

struct BlockQ4_1 {
  static constexpr int elements = 32, bytes = 20, zero = 0;
  static constexpr bool has_min = true;
  static void read(const uint8_t* block, int, GgufGroup* group) {
    set_scale(group, read_half(block), -read_half(block + 2));
    read_nibbles(block + 4, group->codes);
  }
};

struct BlockQ5_0 {
  static constexpr int elements = 32, bytes = 22, zero = 16;
  static constexpr bool has_min = false;
  static void read(const uint8_t* block, int, GgufGroup* group) {
    set_scale(group, read_half(block), 0);
    read_nibbles(block + 6, group->codes);
    add_fifth_bits(block + 2, group->codes);
  }
};

struct BlockQ5_1 {
  static constexpr int elements = 32, bytes = 24, zero = 0;
  static constexpr bool has_min = true;
  static void read(const uint8_t* block, int, GgufGroup* group) {
    set_scale(group, read_half(block), -read_half(block + 2));
    read_nibbles(block + 8, group->codes);
    add_fifth_bits(block + 4, group->codes);
  }
};

struct BlockQ8_0 {
  static constexpr int elements = 32, bytes = 34, zero = 128;
  static constexpr bool has_min = false;
  static void read(const uint8_t* block, int, GgufGroup* group) {
    set_scale(group, read_half(block), 0);
    for (int j = 0; j < 32; ++j) group->codes[j] = block[2 + j] ^ 0x80;
  }
};

struct BlockQ4_K {
  static constexpr int elements = 256, bytes = 144, zero = 0;
  static constexpr bool has_min = true;
  static void read(const uint8_t* block, int part, GgufGroup* group) {
    int scale, min;
    read_scale_and_min(block + 4, part, &scale, &min);
    set_scale(group, read_half(block) * float(scale), read_half(block + 2) * float(min));
    const uint8_t* nibbles = block + 16 + part / 2 * 32;
    int shift = part % 2 * 4;
    for (int j = 0; j < 32; ++j) group->codes[j] = (nibbles[j] >> shift) & 15;
  }
};

struct BlockQ5_K {
  static constexpr int elements = 256, bytes = 176, zero = 0;
  static constexpr bool has_min = true;
  static void read(const uint8_t* block, int part, GgufGroup* group) {
    int scale, min;
    read_scale_and_min(block + 4, part, &scale, &min);
    set_scale(group, read_half(block) * float(scale), read_half(block + 2) * float(min));
    const uint8_t* fifth_bits = block + 16;
    const uint8_t* nibbles = block + 48 + part / 2 * 32;
    int shift = part % 2 * 4;
    for (int j = 0; j < 32; ++j) {
      group->codes[j] = uint8_t(((nibbles[j] >> shift) & 15) | (((fifth_bits[j] >> part) & 1) << 4));
    }
  }
};

struct BlockQ6_K {
  static constexpr int elements = 256, bytes = 210, zero = 32;
  static constexpr bool has_min = false;
  static void read(const uint8_t* block, int part, GgufGroup* group) {
    int half = part / 4, quarter = part % 4;  // of 128 columns, and 32 columns in it
    const uint8_t* low = block + half * 64 + quarter % 2 * 32;
    const uint8_t* high = block + 128 + half * 32;
    int low_shift = quarter / 2 * 4, high_shift = quarter * 2;
    for (int j = 0; j < 32; ++j) {
      group->codes[j] = uint8_t(((low[j] >> low_shift) & 15) | (((high[j] >> high_shift) & 3) << 4));
    }
    float scale = read_half(block + 208);
    for (int k = 0; k < 2; ++k) group->scales[k] = scale * float(int8_t(block[192 + part * 2 + k]));
    group->min = 0;
  }
};

// 4-bit types whose codes point into a table.
struct BlockIQ4_NL {
  static constexpr int elements = 32, bytes = 18, zero = code_table_zero;
  static constexpr bool has_min = false;
  static void read(const uint8_t* block, int, GgufGroup* group) {
    set_scale(group, read_half(block), 0);
    read_nibbles(block + 2, group->codes);
  }
};

struct BlockIQ4_XS {
  static constexpr int elements = 256, bytes = 136, zero = code_table_zero;
  static constexpr bool has_min = false;
  static void read(const uint8_t* block, int part, GgufGroup* group) {
    uint16_t high_bits;
    memcpy(&high_bits, block + 2, 2);
    int scale = ((block[4 + part / 2] >> (part % 2 * 4)) & 15) | (((high_bits >> (2 * part)) & 3) << 4);
    set_scale(group, read_half(block) * float(scale - 32), 0);
    read_nibbles(block + 8 + part * 16, group->codes);
  }
};

struct BlockMXFP4 {
  static constexpr int elements = 32, bytes = 17, zero = code_table_zero;
  static constexpr bool has_min = false;
  // The scale is 2^(exponent - 127); the table holds twice the values of E2M1.
  static void read(const uint8_t* block, int, GgufGroup* group) {
    uint32_t exponent = block[0];
    set_scale(group, bits_to_float(exponent < 2 ? 0x00200000u << exponent : (exponent - 1) << 23), 0);
    read_nibbles(block + 1, group->codes);
  }
};

template <class Block>
constexpr int table_of = NO_TABLE;
template <>
constexpr int table_of<BlockIQ4_NL> = TABLE_IQ4;
template <>
constexpr int table_of<BlockIQ4_XS> = TABLE_IQ4;
template <>
constexpr int table_of<BlockMXFP4> = TABLE_FP4;

// Unquantised types: blocks of one value, which is the code.
struct BlockF32 {
  static constexpr int bytes = 4;
  static float read(const uint8_t* p) {
    float value;
    memcpy(&value, p, 4);
    return value;
  }
};

struct BlockF16 {
  static constexpr int bytes = 2;
  static float read(const uint8_t* p) { return read_half(p); }
};

struct BlockBF16 {
  static constexpr int bytes = 2;
  static float read(const uint8_t* p) {
    uint16_t value;
    memcpy(&value, p, 2);
    return bf16_to_float(value);
  }
};

// Calls visitor(Block()) with the block of a quantised type; false when the type is none of them.
template <class Visitor>
inline bool visit_quantized_type(int gguf_type, Visitor visitor) {
  switch (gguf_type) {
    case GGUF_Q4_0: visitor(BlockQ4_0()); return true;
    case GGUF_Q4_1: visitor(BlockQ4_1()); return true;
    case GGUF_Q5_0: visitor(BlockQ5_0()); return true;
    case GGUF_Q5_1: visitor(BlockQ5_1()); return true;
    case GGUF_Q8_0: visitor(BlockQ8_0()); return true;
    case GGUF_Q4_K: visitor(BlockQ4_K()); return true;
    case GGUF_Q5_K: visitor(BlockQ5_K()); return true;
    case GGUF_Q6_K: visitor(BlockQ6_K()); return true;
    case GGUF_IQ4_NL: visitor(BlockIQ4_NL()); return true;
    case GGUF_IQ4_XS: visitor(BlockIQ4_XS()); return true;
    case GGUF_MXFP4: visitor(BlockMXFP4()); return true;
  }
  return false;
}

template <class Visitor>
inline bool visit_plain_type(int gguf_type, Visitor visitor) {
  switch (gguf_type) {
    case GGUF_F32: visitor(BlockF32()); return true;
    case GGUF_F16: visitor(BlockF16()); return true;
    case GGUF_BF16: visitor(BlockBF16()); return true;
  }
  return false;
}

// Columns [32 * index, 32 * index + 32) of a row of quantised blocks.
template <class Block>
inline void read_group(const uint8_t* row, int64_t index, GgufGroup* group) {
  constexpr int parts = Block::elements / kGgufGroup;
  Block::read(row + index / parts * Block::bytes, int(index % parts), group);
}

template <class Block>
inline void dequantize_group(const GgufGroup& group, float* values) {
  for (int j = 0; j < kGgufGroup; ++j) {
    int code = table_of<Block> == NO_TABLE ? group.codes[j] : code_tables[table_of<Block>][group.codes[j]];
    values[j] = group.scales[j / 16] * float(code - Block::zero) - group.min;
  }
}

inline int64_t gguf_row_bytes(int gguf_type, int64_t columns) {
  int64_t bytes = 0;
  visit_quantized_type(gguf_type, [&](auto block) { bytes = columns / decltype(block)::elements * decltype(block)::bytes; });
  visit_plain_type(gguf_type, [&](auto block) { bytes = columns * decltype(block)::bytes; });
  return bytes;
}

// columns values of a row. False when the type is unknown.
inline bool dequantize_row(int gguf_type, const uint8_t* row, int64_t columns, float* values) {
  auto read_quantized = [&](auto block) {
    GgufGroup group;
    for (int64_t i = 0; i < columns / kGgufGroup; ++i) {
      read_group<decltype(block)>(row, i, &group);
      dequantize_group<decltype(block)>(group, values + i * kGgufGroup);
    }
  };
  auto read_plain = [&](auto block) {
    for (int64_t i = 0; i < columns; ++i) values[i] = decltype(block)::read(row + i * decltype(block)::bytes);
  };
  return visit_quantized_type(gguf_type, read_quantized) || visit_plain_type(gguf_type, read_plain);
}

}  // namespace
}  // namespace octavo
