// Which part of a product a thread computes: a rectangle of rows and column blocks.
#pragma once
#include "tile.h"

namespace octavo {
namespace {

struct Rectangle {
  int64_t first_row, last_row;
  int64_t first_block, last_block;
};

inline int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Cuts rows into row_parts and blocks into num_threads / row_parts so that the largest share is smallest; columns are
// cut first, since a thread then reads only its own weights. Results do not depend on the cut.
inline Rectangle share_of_product(int64_t num_rows, int64_t num_blocks, ThreadShare share) {
  int64_t best_parts = 1, best_cost = INT64_MAX;
  for (int64_t parts = 1; parts <= share.num_threads; ++parts) {
    if (share.num_threads % parts != 0) continue;
    int64_t rows = divide_up(divide_up(num_rows, kMaxTileRows), parts) * kMaxTileRows;
    int64_t cost = rows * divide_up(num_blocks, share.num_threads / parts);
    if (cost < best_cost) {
      best_cost = cost;
      best_parts = parts;
    }
  }
  int64_t column_parts = share.num_threads / best_parts;
  int64_t row_part = share.thread / column_parts, column_part = share.thread % column_parts;
  return {num_rows * row_part / best_parts, num_rows * (row_part + 1) / best_parts,
          num_blocks * column_part / column_parts, num_blocks * (column_part + 1) / column_parts};
}

// Rows handled before the next column block, so that their activations stay in the second-level cache.
inline int64_t rows_at_a_time(int64_t row_bytes) {
  constexpr int64_t cache_bytes = 256 << 10;
  int64_t tiles = cache_bytes / (row_bytes * kMaxTileRows);
  if (tiles < 4) tiles = 4;
  if (tiles > 32) tiles = 32;
  return tiles * kMaxTileRows;
}

// Calls body(row, count) for tiles of rows that differ by at most one row in size.
template <class Body>
inline void for_row_tiles(int64_t first_row, int64_t last_row, Body body) {
  int64_t num_rows = last_row - first_row, tiles = divide_up(num_rows, kMaxTileRows);
  for (int64_t t = 0; t < tiles; ++t) {
    int64_t begin = num_rows * t / tiles, end = num_rows * (t + 1) / tiles;
    body(first_row + begin, int(end - begin));
  }
}

}  // namespace
}  // namespace octavo
