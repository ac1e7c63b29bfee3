// Register tiles of products with keys and values.
#pragma once
#include "vec.h"

namespace octavo {
namespace {

// How many rows a register tile has at most, and how many vectors wide it is at best for a number of rows.
#if defined(OCT_VEC_SCALAR)
constexpr int kTileRows = 2;
constexpr int tile_vectors(int) { return 16; }
#elif defined(OCT_VEC_AVX512)
constexpr int kTileRows = 6;
constexpr int tile_vectors(int) { return 4; }
#else
constexpr int kTileRows = 6;
constexpr int tile_vectors(int rows) { return rows == 1 ? 8 : rows <= 3 ? 4 : 2; }
#endif

// Fetches what lies `ahead` bytes from `bytes` at an offset, where offsets advance by as many or more.
template <int bytes, class Element>
[[gnu::always_inline]] inline void prefetch_step(const Element* start, int64_t offset, int64_t ahead) {
  if (bytes < 64 && offset % 64 >= bytes) return;  // fetched the step before
#pragma GCC unroll 16
  for (int i = 0; i < bytes; i += 64) __builtin_prefetch(reinterpret_cast<const uint8_t*>(start) + offset + ahead + i);
}

}  // namespace
}  // namespace octavo
