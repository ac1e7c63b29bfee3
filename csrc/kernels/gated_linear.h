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

// out[rows of the tile][kGatedColumns] of the sweep's block of columns; those beyond the weight are zero.
inline void block_product(const Operand& src, const oct_weight& weight, const TiledFormat& format,
                          const Sweep& sweep, int64_t tile, float* out) {
  int64_t row = sweep.rows.begin(tile);
  int num_rows = int(sweep.rows.begin(tile + 1) - row), panels = kGatedColumns / format.columns;
  const uint8_t* rows = src.data + row * src.row_bytes;
  for (int p = 0; p < panels; ++p) {
    int64_t panel = sweep.block * panels + p;
    float* dst = out + p * format.columns;
    if (panel < format.num_panels) {
      const uint8_t* weights = weight.data + panel * format.panel_bytes;
      Prefetch ahead = prefetch_of(sweep, tile, weights, format.panel_bytes, format.num_groups);
      format.tiles[num_rows - 1](rows, src.row_bytes, weights, format.num_groups, ahead, dst, kGatedColumns);
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
  TiledFormat gate_format = tiled_format(*args.gate, args.src_gate.kind);
  TiledFormat up_format = tiled_format(*args.up, args.src_up.kind);
  int64_t columns = args.gate->num_rows;
  alignas(64) float gate[kMaxTileRows * kGatedColumns], up[kMaxTileRows * kGatedColumns];
  for_sweeps(args.num_rows, divide_up(columns, kGatedColumns), share, [&](const Sweep& sweep) {
    int64_t column = sweep.block * kGatedColumns;
    int64_t count = columns - column < kGatedColumns ? columns - column : kGatedColumns;
    for (int64_t tile = sweep.first; tile < sweep.last; ++tile) {
      int64_t row = sweep.rows.begin(tile);
      int num_rows = int(sweep.rows.begin(tile + 1) - row);
      block_product(args.src_gate, *args.gate, gate_format, sweep, tile, gate);
      block_product(args.src_up, *args.up, up_format, sweep, tile, up);
      apply_gate(args.activation, gate, up, num_rows * kGatedColumns);
      for (int r = 0; r < num_rows; ++r) write_columns(up + r * kGatedColumns, count, args.dst, row + r, column);
    }
  });
}

}  // namespace
}  // namespace octavo
