// One key tile of attention for some rows of one key/value head: scores, their softmax, and the weighted values, all in
// register tiles straight on the pages.
#pragma once
#include "attention_items.h"
#include "math.h"
#include "pair_product.h"
#include "vec.h"

namespace octavo {
namespace {

constexpr float kLog2E = 1.44269504f;
constexpr int kKeyTilePages = 4;
constexpr int kKeyTile = kKeyTilePages * kPage;  // tokens
constexpr int64_t kWeightsStride = kKeyTile * int64_t(sizeof(float) / sizeof(Left));

// ---- scores = q k ------------------------------------------------------------------------------------------------

// The pages of a key tile that a query tile looks at; `first` and `end` count pages of the key tile.
struct KeyTile {
  int first;
  int end;
  int num_tokens;  // stored in these pages by the last query's position
  const uint16_t* keys[kKeyTilePages];
  const uint16_t* values[kKeyTilePages];
  int64_t keys_to_values;                // elements
  int64_t values_to_next[kKeyTilePages];  // to the keys that are needed next, or 0: for prefetching
};

template <int rows, int pages>
[[gnu::noinline]] void score_pages(const Left* q, int head_size, const uint16_t* const* keys, int64_t ahead,
                                   float* scores) {
  constexpr int vectors_per_page = kPage / F32::width, vectors = pages * vectors_per_page;
  const uint16_t* right[vectors];
  F32 sum[rows][vectors];
#pragma GCC unroll 16
  for (int v = 0; v < vectors; ++v) right[v] = keys[v / vectors_per_page] + v % vectors_per_page * (2 * F32::width);
#pragma GCC unroll 8
  for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 16
    for (int v = 0; v < vectors; ++v) sum[r][v] = F32::zero();
  }
  add_pair_products<rows, vectors>(sum, q, head_size, right, 2 * kPage, head_size / 2, ahead);
#pragma GCC unroll 8
  for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 16
    for (int v = 0; v < vectors; ++v) sum[r][v].store(scores + r * kKeyTile + v * F32::width);
  }
}

template <int rows>
inline void score_rows(const Left* q, int head_size, const KeyTile& tile, float* scores) {
  constexpr int at_once = tile_vectors(rows) * F32::width / kPage;
  int page = tile.first;
  for (; page + at_once <= tile.end; page += at_once) {
    score_pages<rows, at_once>(q, head_size, tile.keys + page, tile.keys_to_values, scores + page * kPage);
  }
  for (; page < tile.end; ++page) {
    score_pages<rows, 1>(q, head_size, tile.keys + page, tile.keys_to_values, scores + page * kPage);
  }
}

// ---- weights = softmax(scores) -----------------------------------------------------------------------------------

inline void cap_scores(float* scores, int first, int end, float softcap) {
  F32 cap = F32::set1(softcap * kLog2E), inverse = F32::set1(1.0f / softcap);
  for (int i = first; i < end; i += F32::width) (cap * tanh(F32::load(scores + i) * inverse)).store(scores + i);
}

// One row of scores [first, end) of a key tile, of which it sees [first_seen, end_seen), to weights in place. Returns
// the correction. Sums by position within a page, so that what lies before `first` and after `end` need not be there.
inline float softmax_row(float* scores, int first, int end, int first_seen, int end_seen, float* maximum, float* sum) {
  constexpr int width = F32::width, vectors = kPage / width;
  if (first_seen < first) first_seen = first;
  if (end_seen > end) end_seen = end;
  for (int i = first; i < first_seen && i < end; ++i) scores[i] = -INFINITY;
  for (int i = end_seen > first ? end_seen : first; i < end; ++i) scores[i] = -INFINITY;
  F32 largest = F32::set1(*maximum);
  for (int i = first; i < end; i += width) largest = max(F32::load(scores + i), largest);
  float new_maximum = largest.max();
  float base = new_maximum == -INFINITY ? 0.0f : new_maximum;
  F32 bases = F32::set1(base), sums[vectors];
  for (int v = 0; v < vectors; ++v) sums[v] = F32::zero();
  Left* weights = reinterpret_cast<Left*>(scores);
  for (int i = first; i < end; i += kPage) {
#pragma GCC unroll 16
    for (int v = 0; v < vectors; ++v) {
      F32 weight = exp2(F32::load(scores + i + v * width) - bases);
      sums[v] = sums[v] + weight;
      store_left(weight, weights + i + v * width);
    }
  }
  for (int v = 1; v < vectors; ++v) sums[0] = sums[0] + sums[v];
  float correction = 1.0f;
  if (new_maximum != *maximum) {
    float lanes[width];
    exp2(F32::set1(*maximum - base)).store(lanes);
    correction = lanes[0];
  }
  *maximum = new_maximum;
  *sum = *sum * correction + sums[0].sum();
  return correction;
}

// ---- output = correction * output + weights v --------------------------------------------------------------------

template <int rows, int vectors>
[[gnu::noinline]] void add_value_vectors(const Left* weights, const float* correction, const KeyTile& tile,
                                         int head_size, int column, float* output) {
  F32 sum[rows][vectors];
#pragma GCC unroll 8
  for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 16
    for (int v = 0; v < vectors; ++v) {
      sum[r][v] = F32::load(output + r * head_size + column + v * F32::width) * F32::set1(correction[r]);
    }
  }
  const uint16_t* right[vectors];
  int tokens = tile.num_tokens;
  for (int page = tile.first; page < tile.end; ++page, tokens -= kPage) {
#pragma GCC unroll 16
    for (int v = 0; v < vectors; ++v) right[v] = tile.values[page] + 2 * (column + v * F32::width);
    const Left* page_weights = weights + page * kPage;
    int pairs = tokens < kPage ? tokens / 2 : kPage / 2;
    add_pair_products<rows, vectors>(sum, page_weights, kWeightsStride, right, 2 * head_size, pairs,
                                     tile.values_to_next[page]);
    if (tokens < kPage && tokens % 2 == 1) {
#pragma GCC unroll 16
      for (int v = 0; v < vectors; ++v) right[v] += pairs * 2 * head_size;
      add_half_pair_product<rows, vectors>(sum, page_weights + 2 * pairs, kWeightsStride, right);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 16
    for (int v = 0; v < vectors; ++v) sum[r][v].store(output + r * head_size + column + v * F32::width);
  }
}

// The columns a vector is too wide for.
inline void add_value_column(const Left* weights, float correction, const KeyTile& tile, int head_size, int column,
                             float* output) {
  float sum = output[column] * correction;
  for (int token = 0; token < tile.num_tokens; ++token) {
    const uint16_t* values = tile.values[tile.first + token / kPage] + token % kPage / 2 * (2 * head_size);
    sum += left_to_float(weights[tile.first * kPage + token]) * bf16_to_float(values[2 * column + token % 2]);
  }
  output[column] = sum;
}

template <int rows, int vectors>
inline int add_value_vectors_from(int column, const Left* weights, const float* correction, const KeyTile& tile,
                                  int head_size, float* output) {
  for (; column + vectors * F32::width <= head_size; column += vectors * F32::width) {
    add_value_vectors<rows, vectors>(weights, correction, tile, head_size, column, output);
  }
  if constexpr (vectors > 1) {
    column = add_value_vectors_from<rows, vectors / 2>(column, weights, correction, tile, head_size, output);
  }
  return column;
}

template <int rows>
inline void add_values(const Left* weights, const float* correction, const KeyTile& tile, int head_size,
                       float* output) {
  int column = add_value_vectors_from<rows, tile_vectors(rows)>(0, weights, correction, tile, head_size, output);
  for (; column < head_size; ++column) {
    for (int r = 0; r < rows; ++r) {
      add_value_column(weights + r * kWeightsStride, correction[r], tile, head_size, column, output + r * head_size);
    }
  }
}

}  // namespace
}  // namespace octavo
