// The product with the head's weights. A row of which nothing but its largest logit is asked never has its logits
// written: each thread keeps the largest of the columns it computes.
#pragma once
#include "linear.h"
#include "sample_weights.h"

namespace octavo {
namespace {

inline void keep_largest(const float* logits, int64_t count, int64_t first_token, Largest& best) {
  float logit = largest_of(logits, count);
  if (!(logit > best.logit)) return;
  int64_t index = 0;
  while (logits[index] != logit) ++index;
  best = {logit, int32_t(first_token + index)};
}

// Whether the rows of a tile are adjacent rows of logits.
inline bool adjacent_slots(const int32_t* slots, int num_rows) {
  for (int r = 0; r < num_rows; ++r) {
    if (slots[r] < 0 || slots[r] != slots[0] + r) return false;
  }
  return true;
}

inline void head_tile(const HeadArgs& args, const TiledFormat& format, int64_t panel, int64_t row, int num_rows,
                      Prefetch ahead) {
  alignas(64) float product[kMaxTileRows * kMaxPanelColumns];
  int64_t column = panel * format.columns;
  int64_t count = args.weight->num_rows - column;
  if (count > format.columns) count = format.columns;
  const int32_t* slots = args.slots + row;
  bool straight = count == format.columns && adjacent_slots(slots, num_rows);
  float* dst = args.logits.data + column;
  if (straight) prefetch_for_writing(dst + slots[0] * args.logits.stride, args.logits.stride, num_rows, count);
  float* out = straight ? dst + slots[0] * args.logits.stride : product;
  int64_t out_stride = straight ? args.logits.stride : format.columns;
  format.tiles[num_rows - 1](args.src.data + row * args.src.row_bytes, args.src.row_bytes,
                             args.weight->data + panel * format.panel_bytes, format.num_groups, ahead, out, out_stride);
  if (straight) return;
  for (int r = 0; r < num_rows; ++r) {
    const float* logits = product + r * format.columns;
    if (slots[r] < 0) {
      keep_largest(logits, count, column, args.largest[row + r]);
    } else {
      memcpy(dst + slots[r] * args.logits.stride, logits, size_t(count) * sizeof(float));
    }
  }
}

inline void head(const HeadArgs& args, ThreadShare share) {
  TiledFormat format = tiled_format(*args.weight, args.src.kind);
  for (int row = 0; row < args.num_rows; ++row) args.largest[row] = {-INFINITY, 0};
  // By columns however many the rows: the head has more weights than rows are worth.
  for_sweeps_by_columns(args.num_rows, format.num_panels, share, [&](const Sweep& sweep) {
    const uint8_t* panel = args.weight->data + sweep.block * format.panel_bytes;
    for (int64_t tile = sweep.first; tile < sweep.last; ++tile) {
      int64_t row = sweep.rows.begin(tile);
      Prefetch ahead = prefetch_of(sweep, tile, panel, format.panel_bytes, format.num_groups);
      head_tile(args, format, sweep.block, row, int(sweep.rows.begin(tile + 1) - row), ahead);
    }
  });
}

}  // namespace
}  // namespace octavo
