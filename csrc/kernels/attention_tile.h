// One key tile of attention for some rows of one key/value head: scores, their softmax, and the weighted values, all in
// register tiles straight on the pages. `Pages` is how elements are stored and multiplied: kv_bf16.h, kv_int8.h.
#pragma once
#include "attention_rows.h"
#include "kv_bf16.h"
#include "math.h"
#include "vec.h"

namespace octavo {
namespace {

template <class Pages>
constexpr int64_t kWeightsStride = kKeyTile * int64_t(sizeof(float) / sizeof(typename Pages::Left));

// The pages of a key tile that a query tile looks at, of one key/value head; `first` and `end` count pages of the tile.
struct KeyTile {
  int first;
  int end;
  int num_tokens;  // stored from page `first` on by the last query's position
  const uint8_t* keys[kKeyTilePages];
  int64_t keys_to_values;                 // bytes
  int64_t values_to_next[kKeyTilePages];  // to the keys that are needed next, or 0: for prefetching
  float value_scales[kKeyTile];           // where elements are integers
};

// So far above kHidden that 2^(kHidden - kHiddenBase) is zero.
constexpr float kHiddenBase = -1e29f;

// Of the rows of one key/value head: what a key tile leaves.
struct TileRows {
  float* scores;        // [rows, kKeyTile], to base 2; weights replace them in place, as Left
  float* maximum;       // largest score
  float* sum;           // of 2^(score - maximum)
  float* weight_scale;  // what weights count, where they are integers
};

// ---- scores = q k ------------------------------------------------------------------------------------------------

template <class Pages, int rows, int pages, bool prefetches>
[[gnu::noinline]] void score_pages(const typename Pages::Left* q, int head_size, const uint8_t* const* keys,
                                   int64_t keys_to_values, const QueryScale* q_scales, float* scores) {
  using Element = typename Pages::Element;
  constexpr int vectors_per_page = kPage / F32::width, vectors = pages * vectors_per_page;
  constexpr int together = Pages::together, step_bytes = together * kPage * sizeof(Element);
  const int num_units = whole_units<Pages>(head_size), q_stride = num_units * together;
  const Element* right[vectors];
  typename Pages::Sum sum[rows][vectors];
#pragma GCC unroll 16
  for (int v = 0; v < vectors; ++v) {
    right[v] = reinterpret_cast<const Element*>(keys[v / vectors_per_page]);
    right[v] += v % vectors_per_page * (together * F32::width);
  }
#pragma GCC unroll 8
  for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 16
    for (int v = 0; v < vectors; ++v) sum[r][v] = Pages::Sum::zero();
  }
  for (int k = 0; k < num_units; ++k) {
    const Element* step[vectors];
#pragma GCC unroll 16
    for (int v = 0; v < vectors; ++v) step[v] = right[v] + int64_t(k) * (together * kPage);
    if constexpr (prefetches) {
#pragma GCC unroll 4
      for (int v = 0; v < vectors; v += vectors_per_page) {
        prefetch_step<step_bytes>(right[v], int64_t(k) * step_bytes, keys_to_values);
      }
    }
    Pages::template add_key_products<rows, vectors>(sum, q + together * k, q_stride, step);
  }
#pragma GCC unroll 8
  for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 16
    for (int v = 0; v < vectors; ++v) {
      const uint8_t* keys_end = keys[v / vectors_per_page] + keys_to_values;
      const float* key_scales = reinterpret_cast<const float*>(keys_end) - 2 * kPage + v % vectors_per_page * F32::width;
      Pages::score(sum[r][v], q_scales[r], key_scales).store(scores + r * kKeyTile + v * F32::width);
    }
  }
}

// Scores pages [page, tile.end) where they are fewer than `pages`.
template <class Pages, int rows, int pages, bool prefetches>
inline void score_last_pages(const typename Pages::Left* q, const QueryScale* q_scales, int head_size, const KeyTile& tile,
                             int page, float* scores) {
  if constexpr (pages > 1) {
    if (tile.end - page < pages - 1) {
      return score_last_pages<Pages, rows, pages - 1, prefetches>(q, q_scales, head_size, tile, page, scores);
    }
    score_pages<Pages, rows, pages - 1, prefetches>(q, head_size, tile.keys + page, tile.keys_to_values, q_scales,
                                                    scores + page * kPage);
  }
}

template <class Pages, int rows, bool prefetches>
inline void score_rows(const typename Pages::Left* q, const QueryScale* q_scales, int head_size, const KeyTile& tile,
                       float* scores) {
  constexpr int at_once = Pages::tile_vectors(rows) * F32::width / kPage;
  int page = tile.first;
  for (; page + at_once <= tile.end; page += at_once) {
    score_pages<Pages, rows, at_once, prefetches>(q, head_size, tile.keys + page, tile.keys_to_values, q_scales,
                                                  scores + page * kPage);
  }
  score_last_pages<Pages, rows, at_once, prefetches>(q, q_scales, head_size, tile, page, scores);
}

// ---- weights = softmax(scores) -----------------------------------------------------------------------------------

inline void cap_scores(float* scores, int first, int end, float softcap) {
  F32 cap = F32::set1(softcap * kLog2E), inverse = F32::set1(1.0f / softcap);
  for (int i = first; i < end; i += F32::width) (cap * tanh(F32::load(scores + i) * inverse)).store(scores + i);
}

// Two pages at a time, so that a vector of narrow weights is whole.
constexpr int kSoftmaxStep = 2 * kPage;
// Rows that go through the steps of a softmax together: each step has long chains that different rows hide.
constexpr int kSoftmaxRows = 8;

// Hides what a row does not see of keys from `first` to `end`.
inline void hide(float* scores, int first, int end, Seen seen) {
  constexpr int width = F32::width;
  for (int i = first; i < seen.first && i < end; i += width) load_seen(scores, i, seen).store(scores + i);
  int partly_seen = seen.end - (seen.end & (width - 1));
  for (int i = partly_seen > first ? partly_seen : first; i < end; i += width) {
    load_seen(scores, i, seen).store(scores + i);
  }
}

inline float largest_score(const float* scores, int first, int end) {
  constexpr int width = F32::width;
  F32 largest[2] = {F32::set1(kHidden), F32::set1(kHidden)};
  for (int i = first; i < end; i += 2 * width) {
    largest[0] = max(F32::load(scores + i), largest[0]);
    largest[1] = max(F32::load(scores + i + width), largest[1]);
  }
  return max(largest[0], largest[1]).max();
}

// Up to kSoftmaxRows rows of scores to weights in place, over whole steps from `first` to `end`; row r sees seen_of(r).
// Sums by position within a step, so that what lies before and after need not be there.
template <class Pages, class SeenOf>
inline void softmax_rows(const TileRows& tile_rows, int first_row, int num_rows, int first, int end,
                         const float* value_scales, SeenOf seen_of) {
  constexpr int width = F32::width, vectors = kSoftmaxStep / width;
  typename Pages::RowWeights weights[kSoftmaxRows];
  F32 sums[kSoftmaxRows];
  Seen before{0, 0};
  for (int r = 0; r < num_rows; ++r) {
    int row = first_row + r;
    Seen seen = seen_of(row);
    float* scores = tile_rows.scores + row * kKeyTile;
    hide(scores, first, end, seen);
    tile_rows.maximum[row] = largest_score(scores, first, end);
    if (r > 0 && seen.first == before.first && seen.end == before.end) {
      weights[r] = weights[r - 1];
      tile_rows.weight_scale[row] = tile_rows.weight_scale[row - 1];
    } else {
      weights[r] = Pages::row_weights(value_scales, {seen.first, seen.end < end ? seen.end : end},
                                      tile_rows.weight_scale + row);
    }
    before = seen;
  }
  for (int r = 0; r < num_rows; ++r) {
    float* scores = tile_rows.scores + (first_row + r) * kKeyTile;
    F32 base = max(F32::set1(tile_rows.maximum[first_row + r]), F32::set1(kHiddenBase)), sum[vectors];
    base = base - F32::set1(Pages::exponent(weights[r]));
    for (int v = 0; v < vectors; ++v) sum[v] = F32::zero();
    for (int i = first; i < end; i += kSoftmaxStep) {
#pragma GCC unroll 16
      for (int v = 0; v < vectors; v += 2) {
        F32 one = exp2_finite(F32::load(scores + i + v * width) - base);
        F32 other = exp2_finite(F32::load(scores + i + (v + 1) * width) - base);
        sum[v] = sum[v] + one;
        sum[v + 1] = sum[v + 1] + other;
        Pages::store_weights(scores, i + v * width, one, other, weights[r]);
      }
    }
    for (int v = 1; v < vectors; ++v) sum[0] = sum[0] + sum[v];
    sums[r] = sum[0];
  }
  for (int r = 0; r < num_rows; ++r) {
    int row = first_row + r;
    tile_rows.sum[row] = Pages::sum_of_weights(sums[r].sum(), tile_rows.weight_scale[row]);
  }
}

// ---- output = keep * output + add * weights v --------------------------------------------------------------------

template <class Pages, int rows, int vectors, bool prefetches>
[[gnu::noinline]] void add_value_vectors(const TileRows& tile_rows, int row, const MergeFactors& factors,
                                         const KeyTile& tile, int num_tokens, int head_size, int column,
                                         float* output) {
  using Left = typename Pages::Left;
  using Element = typename Pages::Element;
  const Left* weights = reinterpret_cast<const Left*>(tile_rows.scores + row * kKeyTile);
  typename Pages::Sum sum[rows][vectors];
#pragma GCC unroll 8
  for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 16
    for (int v = 0; v < vectors; ++v) sum[r][v] = Pages::Sum::zero();
  }
  constexpr int together = Pages::together, step_bytes = together * vectors * F32::width * sizeof(Element);
  int tokens = num_tokens;
  for (int page = tile.first; tokens > 0; ++page, tokens -= kPage) {
    const Element* values = reinterpret_cast<const Element*>(tile.keys[page] + tile.keys_to_values) + together * column;
    const Left* page_weights = weights + page * kPage;
    int seen = tokens < kPage ? tokens : kPage;
    int num_units = Pages::skips_parts_of_units ? seen / together : (seen + together - 1) / together;
    const Element* right[vectors];
    for (int unit = 0; unit < num_units; ++unit, values += together * head_size, page_weights += together) {
#pragma GCC unroll 16
      for (int v = 0; v < vectors; ++v) right[v] = values + together * v * F32::width;
      if constexpr (prefetches) prefetch_step<step_bytes>(values, 0, tile.values_to_next[page]);
      Pages::template add_products<rows, vectors>(sum, page_weights, kWeightsStride<Pages>, right);
    }
    if constexpr (Pages::skips_parts_of_units) {
      if (seen % together == 0) continue;
#pragma GCC unroll 16
      for (int v = 0; v < vectors; ++v) right[v] = values + together * v * F32::width;
      Pages::template add_first_products<rows, vectors>(sum, page_weights, kWeightsStride<Pages>, right);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < rows; ++r) {
    float keep = factors.keep[row + r], add = factors.add[row + r];
    float* dst = output + int64_t(row + r) * head_size + column;
#pragma GCC unroll 16
    for (int v = 0; v < vectors; ++v) {
      F32 part = Pages::output(sum[r][v], tile_rows.weight_scale[row + r]);
      merged_output(F32::load(dst + v * F32::width), part, keep, add).store(dst + v * F32::width);
    }
  }
}

// The columns a vector is too wide for.
template <class Pages>
inline void add_value_column(const TileRows& tile_rows, int row, const MergeFactors& factors, const KeyTile& tile,
                             int num_tokens, int head_size, int column, float* output) {
  using Left = typename Pages::Left;
  using Element = typename Pages::Element;
  const Left* weights = reinterpret_cast<const Left*>(tile_rows.scores + row * kKeyTile) + tile.first * kPage;
  constexpr int together = Pages::together;
  float sum = 0;
  for (int token = 0; token < num_tokens; ++token) {
    const uint8_t* values = tile.keys[tile.first + token / kPage] + tile.keys_to_values;
    int unit = token % kPage / together;
    const Element* elements = reinterpret_cast<const Element*>(values) + (unit * head_size + column) * together;
    sum += Pages::product(weights, token, elements[token % together]);
  }
  float* dst = output + int64_t(row) * head_size + column;
  sum = Pages::output(sum, tile_rows.weight_scale[row]);
  *dst = merged_output(*dst, sum, factors.keep[row], factors.add[row]);
}

template <class Pages, int rows, int vectors, bool prefetches>
inline int add_value_vectors_from(int column, const TileRows& tile_rows, int row, const MergeFactors& factors,
                                  const KeyTile& tile, int num_tokens, int head_size, float* output) {
  for (; column + vectors * F32::width <= head_size; column += vectors * F32::width) {
    add_value_vectors<Pages, rows, vectors, prefetches>(tile_rows, row, factors, tile, num_tokens, head_size, column,
                                                        output);
  }
  if constexpr (vectors > 1) {
    column = add_value_vectors_from<Pages, rows, vectors / 2, prefetches>(column, tile_rows, row, factors, tile,
                                                                          num_tokens, head_size, output);
  }
  return column;
}

// For rows [row, row + rows) of the key/value head whose output begins at `output`, of the first `num_tokens` of the tile.
template <class Pages, int rows, bool prefetches>
inline void add_values(const TileRows& tile_rows, int row, const MergeFactors& factors, const KeyTile& tile,
                       int num_tokens, int head_size, float* output) {
  int column = add_value_vectors_from<Pages, rows, Pages::tile_vectors(rows), prefetches>(0, tile_rows, row, factors, tile,
                                                                                   num_tokens, head_size, output);
  for (; column < head_size; ++column) {
    for (int r = 0; r < rows; ++r) {
      add_value_column<Pages>(tile_rows, row + r, factors, tile, num_tokens, head_size, column, output);
    }
  }
}

}  // namespace
}  // namespace octavo
