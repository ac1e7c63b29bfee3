// Register tiles of the portable build: plain loops over the same panels, in the same order.
#pragma once
#include "outliers.h"

namespace octavo {
namespace {

constexpr int kLanes = 4;
constexpr int kMaxTileRows = 4;
constexpr int kBf16PanelColumns = 8;

template <class Format>
inline float weight_at(const uint8_t* panel, const uint16_t* halves, int column, int k) {
  constexpr PanelShape shape = panel_shape(kLanes, Format::bits, Format::group, Format::has_min);
  int code = code_at(shape, Format::table, panel, column / kLanes, column % kLanes, k) - Format::zero;
  float scale = half_to_float(halves[k / Format::group * shape.columns + column]);
  if (!Format::has_min) return float(code) * scale;
  return fmaf(float(code), scale, -half_to_float(halves[Format::scale_rows * shape.columns + column]));
}

// Adds what the outliers of a group give.
template <class Format>
inline float add_outliers(float sum, const Int8Group& row, const float* kept, const uint8_t* panel, const uint16_t* halves,
                          int column) {
  for (uint32_t left = row.outliers; left != 0; left &= left - 1) {
    int k = __builtin_ctz(left);
    sum = fmaf(kept[k], weight_at<Format>(panel, halves, column, k), sum);
  }
  return sum;
}

// A dot times its row's scale for the group.
template <bool has_outliers>
inline float scaled_dot(int dot, const Int8Group& row) {
  if (!has_outliers) return float(dot) * row.scale;
  return bits_to_float(float_to_bits(float(dot)) + uint32_t(row.doublings));
}

// Adds the product of a group; `kept` are its outliers.
template <class Format, bool has_outliers>
inline float add_group(float sum, const Int8Group& row, const float* kept, const uint8_t* panel, int column) {
  constexpr PanelShape shape = panel_shape(kLanes, Format::bits, Format::group, Format::has_min);
  const uint16_t* halves = reinterpret_cast<const uint16_t*>(panel + shape.codes_bytes);
  constexpr int parts = Format::scale_rows, part_columns = kGroup / parts;
  if (has_outliers) sum = add_outliers<Format>(sum, row, kept, panel, halves, column);
  if (Format::has_min) sum = fmaf(-half_to_float(halves[parts * shape.columns + column]), row.sum, sum);
  for (int part = 0; part < parts; ++part) {
    int dot = Format::zero * row.negated_sums[parts == 1 ? 2 : part];
    for (int k = part * part_columns; k < (part + 1) * part_columns; ++k) {
      dot += code_at(shape, Format::table, panel, column / kLanes, column % kLanes, k) * row.codes[k];
    }
    sum = fmaf(scaled_dot<has_outliers>(dot, row), half_to_float(halves[part * shape.columns + column]), sum);
  }
  return sum;
}

// out[R][columns] = rows x panel.
template <class Format, bool has_outliers, int R>
inline void grouped_tile(const uint8_t* rows, int64_t row_bytes, const uint8_t* panel, int64_t num_groups, Prefetch,
                         float* out, int64_t out_stride) {
  constexpr PanelShape shape = panel_shape(kLanes, Format::bits, Format::group, Format::has_min);
  for (int r = 0; r < R; ++r) {
    const Int8Group* row = &group_of_row(rows, row_bytes, r);
    const float* kept = reinterpret_cast<const float*>(rows + r * row_bytes + outliers_offset(num_groups));
    for (int c = 0; c < shape.columns; ++c) {
      float sum = 0.0f;
      for (int64_t g = 0; g < num_groups; ++g) {
        sum = add_group<Format, has_outliers>(sum, row[g], kept + g * kGroup, panel + g * shape.group_bytes, c);
      }
      if (has_outliers) sum *= unit_of_row(rows, row_bytes, r, num_groups);
      out[r * out_stride + c] = sum;
    }
  }
}

template <int R, bool continues>
inline void bf16_tile(const uint8_t* rows, int64_t row_bytes, const uint8_t* panel, int64_t num_groups, Prefetch,
                      float* out, int64_t out_stride) {
  const uint16_t* weights = reinterpret_cast<const uint16_t*>(panel);
  for (int r = 0; r < R; ++r) {
    const float* row = reinterpret_cast<const float*>(rows + r * row_bytes);
    for (int c = 0; c < kBf16PanelColumns; ++c) {
      float sum = continues ? out[r * out_stride + c] : 0.0f;
      for (int64_t k = 0; k < num_groups * kGroup; ++k) {
        sum = fmaf(row[k], bf16_to_float(weights[(k / 2 * kBf16PanelColumns + c) * 2 + k % 2]), sum);
      }
      out[r * out_stride + c] = sum;
    }
  }
}

}  // namespace
}  // namespace octavo
