// dst = activation(operand x gate) * (operand x up), the products never leaving the first-level cache.
#pragma once
#include "math.h"
#include "split.h"

namespace octavo {
namespace {

// Columns computed together: whole panels of every format and whole groups of an operand.
constexpr int kGatedColumns = kBf16PanelColumns > kGroup ? kBf16PanelColumns : kGroup;
static_assert(kGatedColumns % kBf16PanelColumns == 0 && kGatedColumns % kGroup == 0, "whole panels and groups");

inline F32 silu(F32 x) { return x / (F32::set1(1.0f) + exp(F32::zero() - x)); }

inline F32 gelu_tanh(F32 x) {
  F32 inner = x * fma(F32::set1(0.044715f) * x, x, F32::set1(1.0f));
  return F32::set1(0.5f) * x * (F32::set1(1.0f) + tanh(F32::set1(0.7978845608f) * inner));
}

// out[num_rows][kGatedColumns] of column block `block`; columns beyond the weight are zero.
inline void block_product(const Operand& src, const oct_weight& weight, const PanelFormat& format, int64_t block,
                          int64_t row, int num_rows, float* out) {
  int panels = kGatedColumns / format.columns;
  for (int p = 0; p < panels; ++p) {
    int64_t panel = block * panels + p;
    float* dst = out + p * format.columns;
    if (panel < format.num_panels) {
      const uint8_t* rows = src.data + row * src.row_bytes;
      format.tiles[num_rows - 1](rows, src.row_bytes, weight.data + panel * format.panel_bytes, format.num_groups, dst,
                                 kGatedColumns);
    } else {
      for (int r = 0; r < num_rows; ++r) memset(dst + r * kGatedColumns, 0, size_t(format.columns) * sizeof(float));
    }
  }
}

inline void apply_gate(int activation, const float* gate, float* up, int count) {
  for (int i = 0; i < count; i += F32::width) {
    F32 x = F32::load(gate + i);
    F32 gated = activation == OCT_SILU ? silu(x) : gelu_tanh(x);
    (gated * F32::load(up + i)).store(up + i);
  }
}

inline void write_columns(const float* values, int64_t count, const Destination& dst, int64_t row, int64_t column) {
  if (dst.matrix.data) {
    memcpy(dst.matrix.data + row * dst.matrix.stride + column, values, size_t(count) * sizeof(float));
  }
  if (dst.operand.data) quantize_columns(values, count, dst.operand, int(row), column);
  if (dst.operand2.data) quantize_columns(values, count, dst.operand2, int(row), column);
}

inline void gated_linear(const GatedLinearArgs& args, ThreadShare share) {
  PanelFormat gate_format = panel_format(*args.gate), up_format = panel_format(*args.up);
  int64_t columns = args.gate->num_rows;
  Rectangle mine = share_of_product(args.num_rows, divide_up(columns, kGatedColumns), share);
  int64_t step = rows_at_a_time(args.src_gate.row_bytes);
  alignas(64) float gate[kMaxTileRows * kGatedColumns], up[kMaxTileRows * kGatedColumns];
  for (int64_t first = mine.first_row; first < mine.last_row; first += step) {
    int64_t last = first + step < mine.last_row ? first + step : mine.last_row;
    for (int64_t block = mine.first_block; block < mine.last_block; ++block) {
      int64_t column = block * kGatedColumns;
      int64_t count = columns - column < kGatedColumns ? columns - column : kGatedColumns;
      for_row_tiles(first, last, [&](int64_t row, int num_rows) {
        block_product(args.src_gate, *args.gate, gate_format, block, row, num_rows, gate);
        block_product(args.src_up, *args.up, up_format, block, row, num_rows, up);
        apply_gate(args.activation, gate, up, num_rows * kGatedColumns);
        for (int r = 0; r < num_rows; ++r) write_columns(up + r * kGatedColumns, count, args.dst, row + r, column);
      });
    }
  }
}

}  // namespace
}  // namespace octavo
