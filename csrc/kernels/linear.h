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
  int64_t count = args.weight->num_rows - column;
  if (count > format.columns) count = format.columns;
  float* dst = args.dst.data + row * args.dst.stride + column;
  prefetch_for_writing(dst, args.dst.stride, num_rows, count);
  const uint8_t* rows = args.src.data + row * args.src.row_bytes;
  const uint8_t* weights = args.weight->data + panel * format.panel_bytes;
  bool straight = !args.bias && !args.accumulate && count == format.columns;
  float* out = straight ? dst : product;
  int64_t out_stride = straight ? args.dst.stride : format.columns;
  format.tiles[num_rows - 1](rows, args.src.row_bytes, weights, format.num_groups, ahead, out, out_stride);
  if (straight) return;
  const float* bias = args.bias ? args.bias + column : nullptr;
  for (int r = 0; r < num_rows; ++r) {
    write_product(product + r * format.columns, count, bias, args.accumulate, dst + r * args.dst.stride);
  }
}

inline void linear(const LinearArgs& args, ThreadShare share) {
  TiledFormat format = tiled_format(*args.weight, args.src.kind);
  for_sweeps(args.num_rows, format.num_panels, share, [&](const Sweep& sweep) {
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
