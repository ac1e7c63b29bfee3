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

inline int64_t weight_panels(const oct_weight* weight) { return panel_format(*weight).num_panels; }

inline int64_t weight_bytes(const oct_weight* weight) {
  PanelFormat format = panel_format(*weight);
  return format.num_panels * format.panel_bytes;
}

// Source row of a packed row.
inline const uint8_t* source_row(const oct_weight& weight, const void* blocks, const int32_t* row_order, int64_t row) {
  int64_t source = row_order ? row_order[row] : row;
  return static_cast<const uint8_t*>(blocks) + source * gguf_row_bytes(weight.gguf_type, weight.num_columns);
}

// One group of 32 of a panel, from the decoded groups of its columns.
inline void write_group(const oct_weight& weight, const PanelShape& shape, const GgufGroup* columns, uint8_t* dst) {
  int vectors = shape.columns / shape.lanes;
  for (int s = 0; s < kGroup / shape.step; ++s) {
    for (int c = 0; c < shape.columns; ++c) {
      int vector = c / shape.lanes, lane = c % shape.lanes;
      uint32_t codes;
      if (weight.code_bits == 8) {
        uint16_t pair;
        memcpy(&pair, columns[c].codes + 2 * s, 2);
        pair ^= 0x8080;  // codes less their zero, 128
        memcpy(dst + ((s * vectors + vector) * shape.lanes + lane) * 2, &pair, 2);
        continue;
      }
      memcpy(&codes, columns[c].codes + 4 * s, 4);
      if (weight.code_bits != 4) {
        memcpy(dst + ((s * vectors + vector) * shape.lanes + lane) * 4, &codes, 4);
      } else if (vector % 2 == 0) {
        uint32_t high;
        memcpy(&high, columns[c + shape.lanes].codes + 4 * s, 4);
        codes |= high << 4;
        memcpy(dst + ((s * vectors / 2 + vector / 2) * shape.lanes + lane) * 4, &codes, 4);
      }
    }
  }
  uint16_t* halves = reinterpret_cast<uint16_t*>(dst + shape.codes_bytes);
  for (int part = 0; part < kGroup / weight.group; ++part) {
    for (int c = 0; c < shape.columns; ++c) *halves++ = float_to_half(columns[c].scales[part]);
  }
  for (int c = 0; weight.has_min && c < shape.columns; ++c) *halves++ = float_to_half(columns[c].min);
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
  visit_quantized_type(weight.gguf_type, [&](auto block) {
    for (int64_t g = 0; g < format.num_groups; ++g) {
      for (int c = 0; c < present; ++c) read_group<decltype(block)>(sources[c], g, &columns[c]);
      write_group(weight, shape, columns, dst + g * shape.group_bytes);
    }
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

inline void pack(const oct_weight* weight, const void* gguf_blocks, const int32_t* row_order, int64_t first_panel,
                 int64_t last_panel) {
  for (int64_t panel = first_panel; panel < last_panel; ++panel) {
    if (weight->layout == OCT_LAYOUT_BF16) {
      pack_bf16_panel(*weight, gguf_blocks, row_order, panel);
    } else {
      pack_grouped_panel(*weight, gguf_blocks, row_order, panel);
    }
  }
}

// Values of 32 columns of K of one weight row.
inline void unpack_group(const oct_weight& weight, const PanelShape& shape, const uint8_t* group, int column,
                         float* values) {
  int vectors = shape.columns / shape.lanes, vector = column / shape.lanes, lane = column % shape.lanes;
  const uint16_t* halves = reinterpret_cast<const uint16_t*>(group + shape.codes_bytes);
  int parts = kGroup / weight.group;
  float scales[2] = {half_to_float(halves[column]), half_to_float(halves[(parts - 1) * shape.columns + column])};
  float min = weight.has_min ? half_to_float(halves[parts * shape.columns + column]) : 0.0f;
  bool nibbles = weight.code_bits == 4;
  int step_vectors = nibbles ? vectors / 2 : vectors, byte_vector = nibbles ? vector / 2 : vector;
  int shift = nibbles && vector % 2 ? 4 : 0, mask = nibbles ? 15 : 255;
  for (int k = 0; k < kGroup; ++k) {
    int s = k / shape.step;
    uint8_t byte = group[((s * step_vectors + byte_vector) * shape.lanes + lane) * shape.step + k % shape.step];
    int code = weight.code_bits == 8 ? int8_t(byte) : ((byte >> shift) & mask) - weight.zero;
    values[k] = scales[k / 16] * float(code) - min;
  }
}

inline void unpack_grouped_row(const oct_weight& weight, int64_t row, float* values) {
  PanelShape shape = grouped_shape(weight);
  PanelFormat format = panel_format(weight);
  const uint8_t* panel = weight.data + row / shape.columns * format.panel_bytes;
  for (int64_t g = 0; g < format.num_groups; ++g) {
    unpack_group(weight, shape, panel + g * shape.group_bytes, int(row % shape.columns), values + g * kGroup);
  }
}

inline void unpack_row(const oct_weight* weight, int64_t row, float* values_K) {
  if (weight->layout != OCT_LAYOUT_BF16) return unpack_grouped_row(*weight, row, values_K);
  const uint16_t* src = bf16_element(*weight, row / kBf16PanelColumns, row % kBf16PanelColumns, 0);
  for (int64_t k = 0; k < weight->num_columns; ++k) {
    values_K[k] = bf16_to_float(src[k / 2 * kBf16PanelColumns * 2 + k % 2]);
  }
}

}  // namespace
}  // namespace octavo
