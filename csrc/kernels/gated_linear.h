// dst = activation(operand x gate) * (operand x up), the products never leaving the first-level cache.
#pragma once
#include "math.h"
#include "split.h"

namespace octavo {
namespace {

// The most columns computed together: whole panels of every format and whole groups of an operand.
constexpr int kGatedColumns = kBf16PanelColumns > kGroup ? kBf16PanelColumns : kGroup;
static_assert(kGatedColumns % kBf16PanelColumns == 0 && kGatedColumns % kGroup == 0, "whole panels and groups");

// As few of them as can be, so that the panels stay in the first-level cache from one tile of rows to the next.
inline int gated_block_columns(const PanelFormat& gate, const PanelFormat& up) {
  int columns = gate.columns > up.columns ? gate.columns : up.columns;
  return columns > kGroup ? columns : kGroup;
}

// exp(-x) as a power of two: off by 1e-7 |x| more, which only shows where the result is next to nothing.
inline F32 silu(F32 x) {
  return x / (F32::set1(1.0f) + exp2(min(F32::set1(127.0f), x * F32::set1(-kLog2E))));
}

inline F32 gelu_tanh(F32 x) {
  F32 inner = x * fma(F32::set1(0.044715f) * x, x, F32::set1(1.0f));
  return F32::set1(0.5f) * x * (F32::set1(1.0f) + tanh(F32::set1(0.7978845608f) * inner));
}

// out[rows of the tile][kGatedColumns] of the sweep's block of columns; those beyond the weight are zero.
inline void block_product(const Operand& src, const oct_weight& weight, const TiledFormat& format, int block_columns,
                          const Sweep& sweep, int64_t tile, float* out) {
  int64_t row = sweep.rows.begin(tile);
  int num_rows = int(sweep.rows.begin(tile + 1) - row), panels = block_columns / format.columns;
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

// up[num_rows][kGatedColumns] *= activation(gate), in the first `columns` columns.
inline void apply_gate(int activation, const float* gate, float* up, int num_rows, int columns) {
  for (int r = 0; r < num_rows; ++r, gate += kGatedColumns, up += kGatedColumns) {
    for (int i = 0; i < columns; i += F32::width) {
      F32 x = F32::load(gate + i);
      F32 gated = activation == OCT_SILU ? silu(x) : gelu_tanh(x);
      (gated * F32::load(up + i)).store(up + i);
    }
  }
}

// values[num_rows][kGatedColumns], of which `count` columns are there, to columns of rows of the destination.
inline void write_block(const float* values, int num_rows, int64_t count, const Destination& dst, int64_t row,
                        int64_t column) {
  for (int r = 0; dst.matrix.data && r < num_rows; ++r) {
    float* dst_row = dst.matrix.data + (row + r) * dst.matrix.stride;
    memcpy(dst_row + column, values + r * kGatedColumns, size_t(count) * sizeof(float));
  }
  if (!dst.operand.data) return;
  if (dst.operand.kind == OCT_BUFFER_OPERAND_INT8 && count % kGroup == 0) {
    int groups = int(count / kGroup);
    auto values_of = [=](int64_t i) { return values + int(i) / groups * kGatedColumns + int(i) % groups * kGroup; };
    auto place_of = [&](int64_t i) { return group_at(dst.operand, row + int(i) / groups, column) + int(i) % groups; };
    return quantize_groups(int64_t(num_rows) * groups, values_of, place_of);
  }
  for (int r = 0; r < num_rows; ++r) quantize_columns(values + r * kGatedColumns, count, dst.operand, int(row) + r, column);
}

inline void gated_linear(const GatedLinearArgs& args, ThreadShare share) {
  TiledFormat gate_format = tiled_format(*args.gate, args.src_gate.kind);
  TiledFormat up_format = tiled_format(*args.up, args.src_up.kind);
  int64_t columns = args.gate->num_rows;
  int block_columns = gated_block_columns(gate_format, up_format);
  alignas(64) float gate[kMaxTileRows * kGatedColumns], up[kMaxTileRows * kGatedColumns];
  for_sweeps(args.num_rows, divide_up(columns, block_columns), share, [&](const Sweep& sweep) {
    int64_t column = sweep.block * block_columns;
    int64_t count = columns - column < block_columns ? columns - column : block_columns;
    for (int64_t tile = sweep.first; tile < sweep.last; ++tile) {
      int64_t row = sweep.rows.begin(tile);
      int num_rows = int(sweep.rows.begin(tile + 1) - row);
      block_product(args.src_gate, *args.gate, gate_format, block_columns, sweep, tile, gate);
      block_product(args.src_up, *args.up, up_format, block_columns, sweep, tile, up);
      apply_gate(args.activation, gate, up, num_rows, block_columns);
      write_block(up, num_rows, count, args.dst, row, column);
    }
  });
}

}  // namespace
}  // namespace octavo
