// dst (+)= operand x weights + bias.
#pragma once
#include "split.h"

namespace octavo {
namespace {

// Adds bias and what dst holds, if asked, to `count` values of a row of the product.
inline void write_product(const float* product, int64_t count, const float* bias, bool accumulate, float* dst) {
  int64_t i = 0;
  for (; i + F32::width <= count; i += F32::width) {
    F32 value = F32::load(product + i);
    if (bias) value = value + F32::load(bias + i);
    if (accumulate) value = value + F32::load(dst + i);
    value.store(dst + i);
  }
  for (; i < count; ++i) {
    float value = product[i];
    if (bias) value = value + bias[i];
    if (accumulate) value = value + dst[i];
    dst[i] = value;
  }
}

inline int64_t columns_of_panel(const LinearArgs& args, const TiledFormat& format, int64_t panel) {
  int64_t count = args.weight->num_rows - panel * format.columns;
  return count < format.columns ? count : format.columns;
}

// Rows of the product with a panel, [num_rows][columns of a panel], to their place.
inline void write_columns(const LinearArgs& args, const TiledFormat& format, int64_t panel, int64_t row,
                          int64_t num_rows, const float* product) {
  int64_t column = panel * format.columns, count = columns_of_panel(args, format, panel);
  const float* bias = args.bias ? args.bias + column : nullptr;
  for (int64_t r = 0; r < num_rows; ++r, product += format.columns) {
    write_product(product, count, bias, args.accumulate, args.dst.data + (row + r) * args.dst.stride + column);
  }
}

// The lines to be written are on their way while the tile is computed; rows of logits share cache sets and miss.
inline void prefetch_for_writing(const float* dst, int64_t stride, int num_rows, int64_t count) {
  for (int r = 0; r < num_rows; ++r) {
    for (int64_t i = 0; i < count; i += 16) __builtin_prefetch(dst + r * stride + i, 1);
  }
}

inline void linear_tile(const LinearArgs& args, const TiledFormat& format, int64_t panel, int64_t row, int num_rows,
                        Prefetch ahead) {
  alignas(64) float product[kMaxTileRows * kMaxPanelColumns];
  int64_t column = panel * format.columns;
  int64_t count = columns_of_panel(args, format, panel);
  float* dst = args.dst.data + row * args.dst.stride + column;
  prefetch_for_writing(dst, args.dst.stride, num_rows, count);
  const uint8_t* rows = args.src.data + row * args.src.row_bytes;
  const uint8_t* weights = args.weight->data + panel * format.panel_bytes;
  bool straight = !args.bias && !args.accumulate && count == format.columns;
  float* out = straight ? dst : product;
  int64_t out_stride = straight ? args.dst.stride : format.columns;
  format.tiles[num_rows - 1](rows, args.src.row_bytes, weights, format.num_groups, ahead, out, out_stride);
  if (straight) return;
  write_columns(args, format, panel, row, num_rows, product);
}

// A panel that the second-level cache does not hold beside the rows is cut along K into parts of at most this size.
constexpr int64_t kMaxPartBytes = 256 * 1024;

inline bool is_cut(const TiledFormat& format, const Sweep& sweep) {
  return format.continuing && format.panel_bytes > 2 * kMaxPartBytes && sweep.last - sweep.first > 1;
}

// A sweep a part of K at a time: a part stays in the cache for all tiles, whose sums wait for the next part.
inline void linear_sweep_in_parts(const LinearArgs& args, const TiledFormat& format, const Sweep& sweep) {
  alignas(64) float sums[kMaxTilesOfRows * kMaxTileRows * kMaxPanelColumns];
  const Operand& src = args.src;
  const int64_t group_bytes = format.panel_bytes / format.num_groups;
  const int64_t row_group_bytes = kGroup * int64_t(sizeof(Bf16Element));
  const int64_t parts = divide_up(format.panel_bytes, kMaxPartBytes), first_row = sweep.rows.begin(sweep.first);
  const uint8_t* panel = args.weight->data + sweep.block * format.panel_bytes;
  for (int64_t part = 0; part < parts; ++part) {
    int64_t group = format.num_groups * part / parts, groups = format.num_groups * (part + 1) / parts - group;
    const uint8_t* weights = panel + group * group_bytes;
    bool is_first = sweep.is_first && part == 0, has_next = sweep.has_next || part + 1 < parts;
    Sweep part_sweep{sweep.rows, sweep.block, sweep.first, sweep.last, is_first, has_next};
    for (int64_t tile = sweep.first; tile < sweep.last; ++tile) {
      int64_t row = sweep.rows.begin(tile), num_rows = sweep.rows.begin(tile + 1) - row;
      const uint8_t* rows = src.data + row * src.row_bytes + group * row_group_bytes;
      Prefetch ahead = prefetch_of(part_sweep, tile, weights, groups * group_bytes, groups);
      const Tile* tiles = part == 0 ? format.tiles : format.continuing;
      float* out = sums + (row - first_row) * format.columns;
      tiles[num_rows - 1](rows, src.row_bytes, weights, groups, ahead, out, format.columns);
    }
  }
  write_columns(args, format, sweep.block, first_row, sweep.rows.begin(sweep.last) - first_row, sums);
}

inline void linear(const LinearArgs& args, ThreadShare share) {
  TiledFormat format = tiled_format(*args.weight, args.src.kind);
  for_sweeps(args.num_rows, format.num_panels, share, [&](const Sweep& sweep) {
    if (is_cut(format, sweep)) return linear_sweep_in_parts(args, format, sweep);
    const uint8_t* panel = args.weight->data + sweep.block * format.panel_bytes;
    for (int64_t tile = sweep.first; tile < sweep.last; ++tile) {
      int64_t row = sweep.rows.begin(tile);
      Prefetch ahead = prefetch_of(sweep, tile, panel, format.panel_bytes, format.num_groups);
      linear_tile(args, format, sweep.block, row, int(sweep.rows.begin(tile + 1) - row), ahead);
    }
  });
}

}  // namespace
}  // namespace octavo
