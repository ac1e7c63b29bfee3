// Register tiles of products with keys and values.
#pragma once
#include <math.h>

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

// What a row of queries counts, where its elements are integers, and what is to be added to sums of products with keys.
struct QueryScale {
  float scale;
  int32_t start;
};

// How many units of elements it takes for a head; what the last one has besides are zeros in queries.
template <class Pages>
constexpr int whole_units(int head_size) {
  return (head_size + Pages::together - 1) / Pages::together;
}

// Values rounded to whole numbers, ties to even, as int16 codes. They are in the range of int16.
inline void store_int16(F32 values, int16_t* dst) {
#if defined(OCT_VEC_SCALAR)
  *dst = int16_t(nearbyintf(values.v));
#elif defined(OCT_VEC_AVX512)
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(dst), _mm512_cvtepi32_epi16(_mm512_cvtps_epi32(values.v)));
#else
  __m256i codes = _mm256_cvtps_epi32(values.v);
  __m256i packed = _mm256_permute4x64_epi64(_mm256_packs_epi32(codes, codes), 0x08);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(dst), _mm256_castsi256_si128(packed));
#endif
}

// Fetches what lies `ahead` bytes from `bytes` at an offset, where offsets advance by as many or more.
template <int bytes, class Element>
[[gnu::always_inline]] inline void prefetch_step(const Element* start, int64_t offset, int64_t ahead) {
  if (bytes < 64 && offset % 64 >= bytes) return;  // fetched the step before
#pragma GCC unroll 16
  for (int i = 0; i < bytes; i += 64) __builtin_prefetch(reinterpret_cast<const uint8_t*>(start) + offset + ahead + i);
}

// What a row sees of a key tile: keys [first, end).
struct Seen {
  int first;
  int end;
};

// Stands for minus infinity: far below any score.
constexpr float kHidden = -1e30f;

// What a row does not see is the smaller of itself and a limit. Of these, any number of hidden lanes is followed by as many
// others as a vector has, and the other way round.
constexpr int kLimitLanes = 16;
static_assert(kLimitLanes % F32::width == 0, "the lanes of a vector");
alignas(64) constexpr float kLimits[3 * kLimitLanes] = {
    kHidden,  kHidden,  kHidden,  kHidden,  kHidden,  kHidden,  kHidden,  kHidden,  kHidden,  kHidden,
    kHidden,  kHidden,  kHidden,  kHidden,  kHidden,  kHidden,  INFINITY, INFINITY, INFINITY, INFINITY,
    INFINITY, INFINITY, INFINITY, INFINITY, INFINITY, INFINITY, INFINITY, INFINITY, INFINITY, INFINITY,
    INFINITY, INFINITY, kHidden,  kHidden,  kHidden,  kHidden,  kHidden,  kHidden,  kHidden,  kHidden,
    kHidden,  kHidden,  kHidden,  kHidden,  kHidden,  kHidden,  kHidden,  kHidden};

inline int clamp_lanes(int count) { return count < 0 ? 0 : count > F32::width ? F32::width : count; }

// values[key] and so on, kHidden where they are not seen, whatever they are there.
inline F32 load_seen(const float* values, int key, Seen seen) {
  F32 before = F32::load(kLimits + kLimitLanes - clamp_lanes(seen.first - key));
  F32 from = F32::load(kLimits + 2 * kLimitLanes - clamp_lanes(seen.end - key));
  return min(min(F32::load(values + key), before), from);
}

// The largest of positive values, 0 without any.
inline float largest_seen(const float* values, Seen seen) {
  if (seen.first >= seen.end) return 0.0f;
  int i = seen.first - (seen.first & (F32::width - 1));
  F32 largest = max(F32::zero(), load_seen(values, i, seen));
  for (i += F32::width; i + F32::width <= seen.end; i += F32::width) largest = max(F32::load(values + i), largest);
  if (i < seen.end) largest = max(load_seen(values, i, seen), largest);
  return largest.max();
}

}  // namespace
}  // namespace octavo
