// Weights: from GGUF blocks into panels, and single rows back out of them.
#pragma once
#include "../gguf_blocks.h"
#include "tile.h"

namespace octavo {
namespace {

// Round to nearest, ties to even; too large becomes infinity.
inline uint16_t float_to_half(float value) {
  uint32_t bits = float_to_bits(value);
  uint32_t sign = (bits >> 16) & 0x8000, rest = bits & 0x7fffffff;
  if (rest >= 0x47800000) return uint16_t(sign | (rest > 0x7f800000 ? 0x7e00 : 0x7c00));
  if (rest < 0x38800000) {  // subnormal: adding 0.5 leaves multiples of 2^-24 in the low bits
    uint32_t magnitude = float_to_bits(bits_to_float(rest) + 0.5f) - 0x3f000000;
    return uint16_t(sign | magnitude);
  }
  uint32_t rounded = rest + 0xfff + ((rest >> 13) & 1);
  return uint16_t(sign | ((rounded - 0x38000000) >> 13));
}

inline int64_t panel_rows(const oct_weight* weight) { return panel_format(*weight).columns; }
static_assert(OCT_SLICE_ROWS % kMaxPanelColumns == 0, "slices of whole panels");

inline int64_t weight_bytes(const oct_weight* weight) {
  PanelFormat format = panel_format(*weight);
  return format.num_panels * format.panel_bytes;
}

// Source row of a packed row.
inline const uint8_t* source_row(const oct_weight& weight, const void* blocks, const int32_t* row_order, int64_t row) {
  int64_t source = row_order ? row_order[row] : row;
  return static_cast<const uint8_t*>(blocks) + source * gguf_row_bytes(weight.gguf_type, weight.num_columns);
}

// Four consecutive codes of a column.
inline uint32_t code_word(const GgufGroup& group, int step) {
  uint32_t word;
  memcpy(&word, group.codes + 4 * step, 4);
  return word;
}

inline void write_codes_of_8_bits(const PanelShape& shape, const GgufGroup* columns, uint8_t* dst) {
  for (int s = 0; s < kSteps; ++s) {
    for (int c = 0; c < shape.columns; ++c, dst += 4) {
      uint32_t word = code_word(columns[c], s);
      memcpy(dst, &word, 4);
    }
  }
}

inline void write_nibbles(const PanelShape& shape, const GgufGroup* columns, uint8_t* dst) {
  for (int s = 0; s < kSteps; ++s) {
    for (int lane = 0; lane < shape.lanes; ++lane, dst += 4) {
      uint32_t low = code_word(columns[lane], s), high = code_word(columns[lane + shape.lanes], s);
      uint32_t word = (low & 0x0f0f0f0fu) | ((high & 0x0f0f0f0fu) << 4);
      memcpy(dst, &word, 4);
    }
  }
}

inline void write_high_bits(const PanelShape& shape, const GgufGroup* columns, uint8_t* group) {
  int64_t first = int64_t(kSteps) * shape.lanes * 4;
  memset(group + first, 0, size_t(shape.codes_bytes - first));
  uint32_t mask = shape.bits == 5 ? 0x01010101u : 0x03030303u;
  for (int s = 0; s < kSteps; ++s) {
    for (int c = 0; c < shape.columns; ++c) {
      HighBits where = high_bits(shape.lanes, shape.bits, s, c / shape.lanes);
      uint8_t* dst = group + where.offset + c % shape.lanes * 4;
      uint32_t word;
      memcpy(&word, dst, 4);
      word |= ((code_word(columns[c], s) >> 4) & mask) << where.shift;
      memcpy(dst, &word, 4);
    }
  }
}

// One group of 32 of a panel, from the decoded groups of its columns.
inline void write_group(const oct_weight& weight, const PanelShape& shape, const GgufGroup* columns, uint8_t* dst) {
  if (shape.bits == 8) {
    write_codes_of_8_bits(shape, columns, dst);
  } else {
    write_nibbles(shape, columns, dst);
    if (shape.bits > 4) write_high_bits(shape, columns, dst);
  }
  uint16_t* halves = reinterpret_cast<uint16_t*>(dst + shape.codes_bytes);
  for (int part = 0; part < kGroup / weight.group; ++part) {
    for (int c = 0; c < shape.columns; ++c) *halves++ = float_to_half(columns[c].scales[part]);
  }
  for (int c = 0; weight.has_min && c < shape.columns; ++c) *halves++ = float_to_half(columns[c].min);
}

// Columns [32 * index, 32 * index + 32) of a row of plain values as codes of 8 bits, the largest becoming 127 or -127.
template <class Block>
inline void quantize_plain_group(const uint8_t* row, int64_t columns, int64_t index, GgufGroup* group) {
  float values[kGroup] = {};
  int64_t first = index * kGroup, present = columns - first < kGroup ? columns - first : kGroup;
  for (int64_t i = 0; i < present; ++i) values[i] = Block::read(row + (first + i) * Block::bytes);
  float scale = half_to_float(float_to_half(largest_magnitude(values, kGroup) * (1.0f / 127.0f)));
  for (int i = 0; i < kGroup; ++i) {
    float code = scale > 0.0f ? nearbyintf(values[i] / scale) : 0.0f;
    code = code > 127.0f ? 127.0f : code < -127.0f ? -127.0f : code;  // the scale was rounded
    group->codes[i] = uint8_t(int(code) + 128);
  }
  set_scale(group, scale, 0.0f);
}

inline void pack_grouped_panel(const oct_weight& weight, const void* blocks, const int32_t* row_order, int64_t panel) {
  PanelShape shape = grouped_shape(weight);
  PanelFormat format = panel_format(weight);
  uint8_t* dst = weight.data + panel * format.panel_bytes;
  const uint8_t* sources[kMaxPanelColumns];
  int present = 0;
  for (; present < shape.columns && panel * shape.columns + present < weight.num_rows; ++present) {
    sources[present] = source_row(weight, blocks, row_order, panel * shape.columns + present);
  }
  GgufGroup columns[kMaxPanelColumns] = {};
  auto write = [&](auto read) {
    for (int64_t g = 0; g < format.num_groups; ++g) {
      for (int c = 0; c < present; ++c) read(sources[c], g, &columns[c]);
      write_group(weight, shape, columns, dst + g * shape.group_bytes);
    }
  };
  visit_quantized_type(weight.gguf_type, [&](auto block) { write(read_group<decltype(block)>); });
  visit_plain_type(weight.gguf_type, [&](auto block) {
    write([&](const uint8_t* row, int64_t g, GgufGroup* group) {
      quantize_plain_group<decltype(block)>(row, weight.num_columns, g, group);
    });
  });
}

// [K / 2][columns][2], so that two consecutive columns of K share 4 bytes.
inline uint16_t* bf16_element(const oct_weight& weight, int64_t panel, int64_t lane, int64_t k) {
  uint16_t* values = reinterpret_cast<uint16_t*>(weight.data + panel * panel_format(weight).panel_bytes);
  return values + (k / 2 * kBf16PanelColumns + lane) * 2 + k % 2;
}

inline void pack_bf16_column(const oct_weight& weight, const uint8_t* source, int64_t panel, int64_t lane) {
  constexpr int64_t chunk = 256;  // a multiple of every block
  float values[chunk];
  uint16_t* dst = bf16_element(weight, panel, lane, 0);
  int64_t padded = padded_columns(weight.num_columns);
  for (int64_t first = 0; first < padded; first += chunk) {
    int64_t count = padded - first < chunk ? padded - first : chunk;
    int64_t present = weight.num_columns - first < count ? weight.num_columns - first : count;
    memset(values, 0, sizeof(values));
    if (source) {
      dequantize_row(weight.gguf_type, source + gguf_row_bytes(weight.gguf_type, first), present, values);
    }
    for (int64_t i = 0; i < count; ++i) {
      int64_t k = first + i;
      dst[k / 2 * kBf16PanelColumns * 2 + k % 2] = float_to_bf16(values[i]);
    }
  }
}

inline void pack_bf16_panel(const oct_weight& weight, const void* blocks, const int32_t* row_order, int64_t panel) {
  for (int64_t lane = 0; lane < kBf16PanelColumns; ++lane) {
    int64_t row = panel * kBf16PanelColumns + lane;
    const uint8_t* source = row < weight.num_rows ? source_row(weight, blocks, row_order, row) : nullptr;
    pack_bf16_column(weight, source, panel, lane);
  }
}

inline void pack_channel_panel(const oct_weight& weight, const void* blocks, const int32_t* row_order, int64_t panel) {
  PanelFormat format = panel_format(weight);
  uint8_t* dst = weight.data + panel * format.panel_bytes;
  for (int column = 0; column < format.columns; ++column) {
    int64_t row = panel * format.columns + column;
    const uint8_t* source = row < weight.num_rows ? source_row(weight, blocks, row_order, row) : nullptr;
    pack_channel(weight, source, dst, format.num_groups, column);
  }
}

inline void pack(const oct_weight* weight, const void* gguf_blocks, const int32_t* row_order, int64_t first_panel,
                 int64_t last_panel) {
  for (int64_t panel = first_panel; panel < last_panel; ++panel) {
    if (weight->layout == OCT_LAYOUT_BF16) {
      pack_bf16_panel(*weight, gguf_blocks, row_order, panel);
    } else if (weight->layout == OCT_LAYOUT_INT8_CHANNEL) {
      pack_channel_panel(*weight, gguf_blocks, row_order, panel);
    } else {
      pack_grouped_panel(*weight, gguf_blocks, row_order, panel);
    }
  }
}

// Values of 32 columns of K of one weight row.
template <class Format>
inline void unpack_group(const uint8_t* group, int column, float* values) {
  constexpr PanelShape shape = panel_shape(kLanes, Format::bits, Format::group, Format::has_min);
  const uint16_t* halves = reinterpret_cast<const uint16_t*>(group + shape.codes_bytes) + column;
  float scales[Format::scale_rows];
  for (int part = 0; part < Format::scale_rows; ++part) scales[part] = half_to_float(halves[part * shape.columns]);
  float min = Format::has_min ? half_to_float(halves[Format::scale_rows * shape.columns]) : 0.0f;
  int vector = column / shape.lanes, lane = column % shape.lanes;
#pragma GCC unroll 32
  for (int k = 0; k < kGroup; ++k) {
    int code = code_at(shape, Format::table, group, vector, lane, k) - Format::zero;
    values[k] = scales[k / Format::group] * float(code) - min;
  }
}

inline void unpack_grouped_row(const oct_weight& weight, int64_t row, float* values) {
  PanelFormat format = panel_format(weight);
  const uint8_t* panel = weight.data + row / format.columns * format.panel_bytes;
  int64_t group_bytes = format.panel_bytes / format.num_groups;
  visit_format(weight, [&](auto tag) {
    for (int64_t g = 0; g < format.num_groups; ++g) {
      float group[kGroup];
      unpack_group<decltype(tag)>(panel + g * group_bytes, int(row % format.columns), group);
      int64_t present = weight.num_columns - g * kGroup;
      memcpy(values + g * kGroup, group, size_t(present < kGroup ? present : kGroup) * sizeof(float));
    }
  });
}

inline void unpack_row(const oct_weight* weight, int64_t row, float* values_K) {
  if (weight->layout == OCT_LAYOUT_INT8_CHANNEL) {
    return unpack_channel_row(*weight, row, panel_format(*weight).num_groups, values_K);
  }
  if (weight->layout != OCT_LAYOUT_BF16) return unpack_grouped_row(*weight, row, values_K);
  const uint16_t* src = bf16_element(*weight, row / kBf16PanelColumns, row % kBf16PanelColumns, 0);
  for (int64_t k = 0; k < weight->num_columns; ++k) {
    values_K[k] = bf16_to_float(src[k / 2 * kBf16PanelColumns * 2 + k % 2]);
  }
}

}  // namespace
}  // namespace octavo
