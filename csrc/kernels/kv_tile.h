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

// Fetches what lies `ahead` bytes from one step of vectors of `vector_bytes` each.
template <int vectors, int vector_bytes, class Element>
[[gnu::always_inline]] inline void prefetch_step(const Element* const (&right)[vectors], int64_t step, int64_t ahead) {
  constexpr int vectors_per_line = vector_bytes < 64 ? 64 / vector_bytes : 1;
#pragma GCC unroll 16
  for (int v = 0; v < vectors; v += vectors_per_line) {
    __builtin_prefetch(reinterpret_cast<const uint8_t*>(right[v] + step) + ahead);
  }
}

}  // namespace
}  // namespace octavo
