// Register tiles of the portable build: plain loops over the same panels, in the same order.
#pragma once
#include "format.h"

namespace octavo {
namespace {

constexpr int kLanes = 4;
constexpr int kMaxTileRows = 4;
constexpr int kBf16PanelColumns = 8;
constexpr int grouped_panel_columns(int) { return 8; }

template <class Format>
inline int dot_codes(const int8_t* activations, const uint8_t* codes, int column, int first, int last) {
  int vector = column / kLanes, lane = column % kLanes, total = 0;
  constexpr int vectors = grouped_panel_columns(Format::bits) / kLanes;
  for (int k = first; k < last; ++k) {
    int code;
    if (Format::bits == 4) {
      int byte = codes[((k / 4 * (vectors / 2) + vector / 2) * kLanes + lane) * 4 + k % 4];
      code = vector % 2 ? byte >> 4 : byte & 15;
    } else {
      code = codes[((k / 4 * vectors + vector) * kLanes + lane) * 4 + k % 4];
    }
    total += code * activations[k];
  }
  return total;
}

template <class Format>
inline float add_group(float sum, const Int8Group& row, const uint8_t* codes, const uint16_t* scales, int column) {
  constexpr int columns = grouped_panel_columns(Format::bits);
  int dots[kParts];
  for (int part = 0; part < kParts; ++part) {
    dots[part] = dot_codes<Format>(row.codes, codes, column, part * kScaleColumns, (part + 1) * kScaleColumns);
  }
  if (Format::group == kScaleColumns) {
    for (int part = 0; part < kParts; ++part) {
      float offset = row.part_sums[part] * float(-Format::zero);
      float value = fmaf(float(dots[part]), row.scale * row.factors[part], offset);
      sum = fmaf(value, half_to_float(scales[part * columns + column]), sum);
    }
    return sum;
  }
  float dot = float(dots[0] * int(row.factors[0]) + dots[1] * int(row.factors[1]));
  float scale = half_to_float(scales[column]);
  if (!Format::has_min) return fmaf(fmaf(dot, row.scale, row.sum * float(-Format::zero)), scale, sum);
  sum = fmaf(dot * row.scale, scale, sum);
  return fmaf(-half_to_float(scales[columns + column]), row.sum, sum);
}

// out[R][columns] = rows x panel.
template <class Format, int R>
inline void grouped_tile(const uint8_t* rows, int64_t row_bytes, const uint8_t* panel, int64_t num_groups, Prefetch,
                         float* out, int64_t out_stride) {
  constexpr int columns = grouped_panel_columns(Format::bits);
  constexpr PanelShape shape = panel_shape(kLanes, columns, Format::bits, Format::group, Format::has_min);
  for (int r = 0; r < R; ++r) {
    const Int8Group* row = reinterpret_cast<const Int8Group*>(rows + r * row_bytes);
    for (int c = 0; c < columns; ++c) {
      float sum = 0.0f;
      for (int64_t g = 0; g < num_groups; ++g) {
        const uint8_t* codes = panel + g * shape.group_bytes;
        sum = add_group<Format>(sum, row[g], codes, reinterpret_cast<const uint16_t*>(codes + shape.codes_bytes), c);
      }
      out[r * out_stride + c] = sum;
    }
  }
}

// The same for signed codes of 8 bits.
template <int R>
inline void signed_tile(const uint8_t* rows, int64_t row_bytes, const uint8_t* panel, int64_t num_groups, Prefetch,
                        float* out, int64_t out_stride) {
  constexpr int columns = grouped_panel_columns(8);
  constexpr PanelShape shape = panel_shape(kLanes, columns, 8, kGroup, false);
  for (int r = 0; r < R; ++r) {
    const Int16Group* row = reinterpret_cast<const Int16Group*>(rows + r * row_bytes);
    for (int c = 0; c < columns; ++c) {
      float sum = 0.0f;
      for (int64_t g = 0; g < num_groups; ++g) {
        const uint8_t* codes = panel + g * shape.group_bytes;
        int dot = 0;
        for (int k = 0; k < kGroup; ++k) dot += int8_t(codes[(k / 2 * columns + c) * 2 + k % 2]) * row[g].codes[k];
        float scale = half_to_float(reinterpret_cast<const uint16_t*>(codes + shape.codes_bytes)[c]);
        sum = fmaf(float(dot) * row[g].scale, scale, sum);
      }
      out[r * out_stride + c] = sum;
    }
  }
}

template <int R>
inline void bf16_tile(const uint8_t* rows, int64_t row_bytes, const uint8_t* panel, int64_t num_groups, Prefetch,
                      float* out, int64_t out_stride) {
  const uint16_t* weights = reinterpret_cast<const uint16_t*>(panel);
  for (int r = 0; r < R; ++r) {
    const float* row = reinterpret_cast<const float*>(rows + r * row_bytes);
    for (int c = 0; c < kBf16PanelColumns; ++c) {
      float sum = 0.0f;
      for (int64_t k = 0; k < num_groups * kGroup; ++k) {
        sum = fmaf(row[k], bf16_to_float(weights[(k / 2 * kBf16PanelColumns + c) * 2 + k % 2]), sum);
      }
      out[r * out_stride + c] = sum;
    }
  }
}

}  // namespace
}  // namespace octavo
