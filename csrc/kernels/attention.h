// Causal attention over paged keys and values: a softmax computed online (arXiv 1805.02867, 2205.14135) over tiles of keys.
//
// The queries of a request are cut into tiles of a few tokens; with the query heads that share a key/value head they are
// the rows of two small products, scores = q k and output = weights v, done in register tiles straight on the pages.
// Key tiles are counted from position 0 and a row's numbers depend on nothing but its own request: what other rows of
// a query tile need and this one does not see adds exact zeros.
#pragma once
#include "kernels.h"
#include "math.h"
#include "pair_product.h"
#include "vec.h"

namespace octavo {
namespace {

constexpr float kLog2E = 1.44269504f;
constexpr int kPage = OCT_BLOCK_TOKENS;
constexpr int kKeyTilePages = 4;
constexpr int kKeyTile = kKeyTilePages * kPage;  // tokens
constexpr int kQueryTileRows = 48;               // eight register tiles of six rows

// ---- what one thread does ------------------------------------------------------------------------------------------

// Some consecutive queries of a request and the pages that hold what they see.
struct QueryTile {
  const int32_t* block_table;
  int first_token;  // of the step
  int num_tokens;
  int first_position;
  int first_page;
  int end_page;
};

inline QueryTile query_tile(const AttentionArgs& args, int request, int first_token, int max_tokens) {
  const Batch& batch = args.batch;
  int remaining = batch.query_starts[request + 1] - first_token;
  QueryTile tile;
  tile.block_table = batch.block_tables + int64_t(request) * batch.max_blocks;
  tile.first_token = first_token;
  tile.num_tokens = remaining < max_tokens ? remaining : max_tokens;
  tile.first_position = batch.positions[first_token];
  int first_seen = args.window > 0 ? tile.first_position - args.window + 1 : 0;
  tile.first_page = first_seen > 0 ? first_seen / kPage : 0;
  tile.end_page = (tile.first_position + tile.num_tokens - 1) / kPage + 1;
  return tile;
}

// What one thread does in one go: key/value heads [first_head, end_head) of a query tile.
struct Item {
  QueryTile queries;
  int first_head;
  int end_head;
};

// Of one key/value head: pages are read and converted once, then multiplied with every row.
inline int64_t cost(const QueryTile& tile, int group) {
  return int64_t(tile.end_page - tile.first_page) * (tile.num_tokens * group + 4) + 8;
}

inline int query_tile_tokens(int group) { return group < kQueryTileRows ? kQueryTileRows / group : 1; }

template <class Function>
inline void for_each_query_tile(const AttentionArgs& args, Function function) {
  int max_tokens = query_tile_tokens(args.num_heads / args.kv.num_kv_heads);
  for (int request = 0; request < args.batch.num_requests; ++request) {
    int end = args.batch.query_starts[request + 1];
    for (int token = args.batch.query_starts[request]; token < end; token += max_tokens) {
      function(query_tile(args, request, token, max_tokens));
    }
  }
}

// ---- rows of a query tile ------------------------------------------------------------------------------------------

struct AttentionScratch {
  Left* q;        // [rows, C], times scale and (without softcap) log2 e
  float* output;  // [rows, C], to be divided by sum
  float* scores;  // [rows of one key/value head, kKeyTile] as logarithms to base 2; weights replace them in place as Left
  float* maximum;     // [rows] largest score so far
  float* sum;         // [rows] of 2^(score - maximum)
  float* correction;  // [rows] what a new maximum multiplies output and sum by
};
constexpr int64_t kWeightsStride = kKeyTile * int64_t(sizeof(float) / sizeof(Left));

inline int64_t scratch_rows(int num_heads) { return num_heads > kQueryTileRows ? num_heads : kQueryTileRows; }
inline int64_t whole_lines(int64_t bytes) { return (bytes + 63) / 64 * 64; }

inline int64_t attention_scratch_bytes(int num_heads, int, int head_size) {
  int64_t rows = scratch_rows(num_heads);
  return whole_lines(rows * head_size * int64_t(sizeof(Left))) + whole_lines(rows * head_size * int64_t(sizeof(float))) +
         rows * kKeyTile * int64_t(sizeof(float)) + 3 * whole_lines(rows * int64_t(sizeof(float)));
}

inline AttentionScratch attention_scratch(uint8_t* memory, int num_heads, int head_size) {
  int64_t rows = scratch_rows(num_heads), row_floats = whole_lines(rows * int64_t(sizeof(float))) / int64_t(sizeof(float));
  AttentionScratch scratch;
  scratch.q = reinterpret_cast<Left*>(memory);
  scratch.output = reinterpret_cast<float*>(memory + whole_lines(rows * head_size * int64_t(sizeof(Left))));
  scratch.scores = scratch.output + whole_lines(rows * head_size * int64_t(sizeof(float))) / int64_t(sizeof(float));
  scratch.maximum = scratch.scores + rows * kKeyTile;
  scratch.sum = scratch.maximum + row_floats;
  scratch.correction = scratch.sum + row_floats;
  return scratch;
}

// Heads [first_head, first_head + num_heads) of q, which share key/value heads, for the tokens of a tile.
// Row (token, head) of key/value head g is (g * num_tokens + token) * group + head.
inline void load_queries(const AttentionArgs& args, const QueryTile& tile, int kv_head, int group, Left* dst) {
  constexpr int width = F32::width;
  int64_t count = int64_t(group) * args.kv.head_size;
  float scale = args.softcap > 0 ? args.scale : args.scale * kLog2E;
  for (int token = 0; token < tile.num_tokens; ++token) {
    const float* q = args.qkv.data + (tile.first_token + token) * args.qkv.stride + kv_head * count;
    int64_t i = 0;
    for (; i + width <= count; i += width) store_left(F32::load(q + i) * F32::set1(scale), dst + i);
    for (; i < count; ++i) store_left(q[i] * scale, dst + i);
    dst += count;
  }
}

inline void store_outputs(const AttentionArgs& args, const QueryTile& tile, int kv_head, int group, const float* output,
                          const float* sum) {
  constexpr int width = F32::width;
  int head_size = args.kv.head_size;
  for (int row = 0; row < tile.num_tokens * group; ++row) {
    float* dst = args.dst.data + (tile.first_token + row / group) * args.dst.stride +
                 int64_t(kv_head * group + row % group) * head_size;
    const float* src = output + int64_t(row) * head_size;
    float inverse = 1.0f / sum[row];
    int i = 0;
    for (; i + width <= head_size; i += width) (F32::load(src + i) * F32::set1(inverse)).store(dst + i);
    for (; i < head_size; ++i) dst[i] = src[i] * inverse;
  }
}

// ---- scores = q k ----------------------------------------------------------------------------------------------------

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
[[gnu::noinline]] void score_pages(const Left* q, int head_size, const uint16_t* const* keys, int64_t ahead, float* scores) {
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

// ---- weights = softmax(scores) ---------------------------------------------------------------------------------------

inline void cap_scores(float* scores, int first, int end, float softcap) {
  F32 cap = F32::set1(softcap * kLog2E), inverse = F32::set1(1.0f / softcap);
  for (int i = first; i < end; i += F32::width) (cap * tanh(F32::load(scores + i) * inverse)).store(scores + i);
}

// One row of scores [first, end) of a key tile, of which it sees [first_seen, end_seen), to weights in place. Returns the
// correction. Sums by position within a page, so that what lies before `first` and after `end` need not be there.
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

// ---- output = correction * output + weights v ------------------------------------------------------------------------

template <int rows, int vectors>
[[gnu::noinline]] void add_value_vectors(const Left* weights, const float* correction, const KeyTile& tile, int head_size, int column,
                              float* output) {
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
    add_pair_products<rows, vectors>(sum, page_weights, kWeightsStride, right, 2 * head_size, pairs, tile.values_to_next[page]);
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
inline void add_values(const Left* weights, const float* correction, const KeyTile& tile, int head_size, float* output) {
  int column = add_value_vectors_from<rows, tile_vectors(rows)>(0, weights, correction, tile, head_size, output);
  for (; column < head_size; ++column) {
    for (int r = 0; r < rows; ++r) {
      add_value_column(weights + r * kWeightsStride, correction[r], tile, head_size, column, output + r * head_size);
    }
  }
}

// ---- a query tile ------------------------------------------------------------------------------------------------------

// Calls function(first row, rows as a compile-time constant) for register tiles of nearly equal height.
template <int rows>
struct RowCount {
  static constexpr int value = rows;
};
template <class Function>
inline void for_each_register_tile(int num_rows, Function function) {
  int tiles = (num_rows + kTileRows - 1) / kTileRows;
  for (int i = 0; i < tiles; ++i) {
    int first = num_rows * i / tiles;
    switch (num_rows * (i + 1) / tiles - first) {
      case 1: function(first, RowCount<1>()); break;
      case 2: function(first, RowCount<2>()); break;
#ifndef OCT_VEC_SCALAR
      case 3: function(first, RowCount<3>()); break;
      case 4: function(first, RowCount<4>()); break;
      case 5: function(first, RowCount<5>()); break;
      case 6: function(first, RowCount<6>()); break;
#endif
    }
  }
}

inline const uint16_t* page_keys(const KvLayer& kv, const QueryTile& queries, int page, int kv_head) {
  return kv.data + queries.block_table[page] * kv.page_elements + int64_t(kv_head) * kPage * kv.head_size;
}

// Where a key tile is: key/value head `head`, pages from `page` on.
struct KeyTilePlace {
  const QueryTile* queries;
  int head;
  int page;
};

// The key tile at `place`; the one at `next` follows it.
inline KeyTile key_tile(const KvLayer& kv, const KeyTilePlace& place, const KeyTilePlace& next) {
  const QueryTile& queries = *place.queries;
  KeyTile tile;
  tile.first = queries.first_page > place.page ? queries.first_page - place.page : 0;
  tile.end = queries.end_page - place.page < kKeyTilePages ? queries.end_page - place.page : kKeyTilePages;
  int end_token = queries.first_position + queries.num_tokens - (place.page + tile.first) * kPage;
  int page_tokens = (tile.end - tile.first) * kPage;
  tile.num_tokens = end_token < page_tokens ? end_token : page_tokens;
  tile.keys_to_values = int64_t(kv.num_kv_heads) * kPage * kv.head_size;
  for (int i = tile.first; i < tile.end; ++i) {
    tile.keys[i] = page_keys(kv, queries, place.page + i, place.head);
    tile.values[i] = tile.keys[i] + tile.keys_to_values;
    int page = next.page + i;
    bool exists = page >= next.queries->first_page && page < next.queries->end_page;
    tile.values_to_next[i] = exists ? page_keys(kv, *next.queries, page, next.head) - tile.values[i] : 0;
  }
  return tile;
}

// One key/value head and key tile for all rows of a query tile; `scratch` starts at the head's rows.
inline void attend_key_tile(const AttentionArgs& args, const QueryTile& queries, const KeyTile& tile, int group, int tile_page,
                            const AttentionScratch& scratch) {
  int head_size = args.kv.head_size, rows = queries.num_tokens * group;
  for_each_register_tile(rows, [&](int row, auto count) {
    score_rows<decltype(count)::value>(scratch.q + int64_t(row) * head_size, head_size, tile, scratch.scores + row * kKeyTile);
  });
  int first = tile.first * kPage, end = tile.end * kPage;
  for (int row = 0; row < rows; ++row) {
    int position = queries.first_position + row / group - tile_page * kPage;
    int first_seen = args.window > 0 ? position - args.window + 1 : 0;
    float* scores = scratch.scores + row * kKeyTile;
    if (args.softcap > 0) cap_scores(scores, first, end, args.softcap);
    scratch.correction[row] =
        softmax_row(scores, first, end, first_seen, position + 1, scratch.maximum + row, scratch.sum + row);
  }
  const Left* weights = reinterpret_cast<const Left*>(scratch.scores);
  for_each_register_tile(rows, [&](int row, auto count) {
    add_values<decltype(count)::value>(weights + row * kWeightsStride, scratch.correction + row, tile, head_size,
                                       scratch.output + int64_t(row) * head_size);
  });
}

inline AttentionScratch rows_from(const AttentionScratch& scratch, int row, int head_size) {
  return {scratch.q + int64_t(row) * head_size, scratch.output + int64_t(row) * head_size, scratch.scores,
          scratch.maximum + row, scratch.sum + row, scratch.correction + row};
}

inline int first_tile_page(const QueryTile& queries) { return queries.first_page / kKeyTilePages * kKeyTilePages; }

// All heads of an item tile by tile: their pages are neighbours in memory. The next item is only for prefetching.
inline void attend(const AttentionArgs& args, const Item& item, const Item& next_item, const AttentionScratch& scratch) {
  const QueryTile& queries = item.queries;
  int head_size = args.kv.head_size, group = args.num_heads / args.kv.num_kv_heads;
  int rows = queries.num_tokens * group, num_heads = item.end_head - item.first_head;
  for (int i = 0; i < num_heads; ++i) {
    load_queries(args, queries, item.first_head + i, group, scratch.q + int64_t(i) * rows * head_size);
  }
  for (int row = 0; row < rows * num_heads; ++row) {
    scratch.maximum[row] = -INFINITY;
    scratch.sum[row] = 0;
  }
  memset(scratch.output, 0, size_t(num_heads) * rows * head_size * sizeof(float));
  for (int page = first_tile_page(queries); page < queries.end_page; page += kKeyTilePages) {
    for (int i = 0; i < num_heads; ++i) {
      KeyTilePlace place{&queries, item.first_head + i, page}, next{&queries, place.head + 1, page};
      if (next.head == item.end_head) next = {&queries, item.first_head, page + kKeyTilePages};
      if (next.page >= queries.end_page) {
        next = {&next_item.queries, next_item.first_head, first_tile_page(next_item.queries)};
      }
      KeyTile tile = key_tile(args.kv, place, next);
      attend_key_tile(args, queries, tile, group, page, rows_from(scratch, i * rows, head_size));
    }
  }
  for (int i = 0; i < num_heads; ++i) {
    AttentionScratch part = rows_from(scratch, i * rows, head_size);
    store_outputs(args, queries, item.first_head + i, group, part.output, part.sum);
  }
}

// Calls function(item) for what falls to a thread: every key/value head of every query tile is laid end to end by cost,
// the line is cut evenly, and a head goes to the thread in whose part it starts.
template <class Function>
inline void for_each_item(const AttentionArgs& args, ThreadShare share, Function function) {
  int kv_heads = args.kv.num_kv_heads, group = args.num_heads / kv_heads;
  int64_t total = 0, start = 0;
  for_each_query_tile(args, [&](const QueryTile& tile) { total += cost(tile, group) * kv_heads; });
  int64_t begin = total * share.thread / share.num_threads, end = total * (share.thread + 1) / share.num_threads;
  for_each_query_tile(args, [&](const QueryTile& tile) {
    int64_t head_cost = cost(tile, group);
    auto heads_before = [&](int64_t limit) {
      int64_t heads = limit <= start ? 0 : (limit - start + head_cost - 1) / head_cost;
      return heads < kv_heads ? int(heads) : kv_heads;
    };
    int head = heads_before(begin), end_head = heads_before(end);
    int at_once = int(scratch_rows(args.num_heads)) / (tile.num_tokens * group);
    for (; head < end_head; head += at_once) {
      function(Item{tile, head, head + at_once < end_head ? head + at_once : end_head});
    }
    start += head_cost * kv_heads;
  });
}

inline void attention(const AttentionArgs& args, ThreadShare share) {
  AttentionScratch scratch = attention_scratch(args.scratch, args.num_heads, args.kv.head_size);
  Item current;
  bool has_current = false;
  for_each_item(args, share, [&](const Item& next) {
    if (has_current) attend(args, current, next, scratch);
    current = next;
    has_current = true;
  });
  if (has_current) attend(args, current, current, scratch);
}

}  // namespace
}  // namespace octavo
