// Which tiles of a product a thread computes, and what is fetched meanwhile.
#pragma once
#include <algorithm>

#include "tile.h"

namespace octavo {
namespace {

inline int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Rows in tiles that differ by at most one row in size.
struct RowTiles {
  int64_t first_row, num_rows, count;

  int64_t begin(int64_t tile) const { return first_row + num_rows * tile / count; }
};

// Tiles [first, last) of the rows, with one block of columns.
struct Sweep {
  const RowTiles& rows;
  int64_t block;
  int64_t first, last;
  bool is_first;  // nothing has fetched the block for the thread
  bool has_next;  // the thread's next block of columns is block + 1
};

// Rows of which all blocks of columns are computed before the next rows: their activations stay in the second-level
// cache.
constexpr int64_t kMaxTilesOfRows = 32;

// Calls body(sweep) for what a thread computes: the tiles of the product in the order rows within columns, cut evenly.
// Blocks of columns that cannot be dealt out evenly are thus cut by rows.
template <class Body>
inline void for_sweeps_by_columns(int64_t num_rows, int64_t num_blocks, ThreadShare share, Body body) {
  int64_t num_tiles = divide_up(num_rows, kMaxTileRows), parts = divide_up(num_tiles, kMaxTilesOfRows);
  for (int64_t part = 0; part < parts; ++part) {
    int64_t first_row = num_rows * part / parts, part_rows = num_rows * (part + 1) / parts - first_row;
    RowTiles rows{first_row, part_rows, divide_up(part_rows, kMaxTileRows)};
    int64_t tiles = rows.count * num_blocks;
    int64_t begin = tiles * share.thread / share.num_threads, end = tiles * (share.thread + 1) / share.num_threads;
    for (bool is_first = true; begin < end; is_first = false) {
      int64_t block = begin / rows.count, first = begin % rows.count;
      int64_t last = first + end - begin < rows.count ? first + end - begin : rows.count;
      begin += last - first;
      body(Sweep{rows, block, first, last, is_first, begin < end});
    }
  }
}

// The same with the tiles in the order columns within rows. The tile of rows at which two threads part has its first
// columns computed by one and its last by the other.
template <class Body>
inline void for_sweeps_by_rows(int64_t num_rows, int64_t num_blocks, ThreadShare share, Body body) {
  RowTiles rows{0, num_rows, divide_up(num_rows, kMaxTileRows)};
  int64_t tiles = rows.count * num_blocks;
  int64_t begin = tiles * share.thread / share.num_threads, end = tiles * (share.thread + 1) / share.num_threads;
  int64_t first_tile = begin / num_blocks, num_tiles = divide_up(end, num_blocks) - first_tile;
  int64_t parts = divide_up(num_tiles, kMaxTilesOfRows);
  for (int64_t part = 0; part < parts; ++part) {
    int64_t part_first = first_tile + num_tiles * part / parts, part_last = first_tile + num_tiles * (part + 1) / parts;
    for (int64_t block = 0; block < num_blocks; ++block) {
      int64_t first = std::max(part_first, divide_up(begin - block, num_blocks));
      int64_t last = std::min(part_last, divide_up(end - block, num_blocks));
      if (first < last) body(Sweep{rows, block, first, last, block == 0, block + 1 < num_blocks});
    }
  }
}

// From so many rows a thread on, products are shared by rows: it costs more to fetch what another core wrote than to
// read the weights with each thread.
constexpr int64_t kMinRowsOfThread = 16;

// Few rows are shared by columns, so that each weight is read once; many like all that is done row by row, so that a
// core reads what it wrote itself. Results do not depend on it.
template <class Body>
inline void for_sweeps(int64_t num_rows, int64_t num_blocks, ThreadShare share, Body body) {
  if (num_rows < kMinRowsOfThread * share.num_threads) return for_sweeps_by_columns(num_rows, num_blocks, share, body);
  for_sweeps_by_rows(num_rows, num_blocks, share, body);
}

// What tile number `tile` of a sweep fetches. A panel that nothing has fetched before is a stream, fetched a little ahead.
// While several tiles read a panel, the first of those that need not fetch it fetch the next one, a part each.
inline Prefetch prefetch_of(const Sweep& sweep, int64_t tile, const uint8_t* panel, int64_t panel_bytes,
                            int64_t num_groups) {
  constexpr int64_t distance = 4096, max_parts = 4;
  int64_t tiles = sweep.last - sweep.first, part = tile - sweep.first;
  if (tiles == 1 || (sweep.is_first && part == 0)) return {panel + distance, panel_bytes / num_groups};
  if (sweep.is_first) tiles -= 1, part -= 1;
  int64_t parts = tiles < max_parts ? tiles : max_parts;
  if (!sweep.has_next || part >= parts) return {panel, 0};
  int64_t lines = divide_up(panel_bytes, 64 * num_groups * parts);  // of a part, with each group
  return {panel + panel_bytes + part * lines * num_groups * 64, lines * 64};
}

}  // namespace
}  // namespace octavo
