// Causal attention over paged keys and values: a softmax computed online (arXiv 1805.02867, 2205.14135) over tiles of
// keys.
//
// The queries of a request are cut into tiles of a few tokens; with the query heads that share a key/value head they
// are the rows of two small products, scores = q k and output = weights v. Key tiles are counted from position 0 and a
// row's numbers depend on nothing but its own request: what other rows of a query tile need and this one does not see
// adds exact zeros.
#pragma once
#include "attention_items.h"
#include "attention_tile.h"
#include "kernels.h"
#include "pair_product.h"
#include "vec.h"

namespace octavo {
namespace {

// ---- rows of a query tile ----------------------------------------------------------------------------------------

struct AttentionScratch {
  Left* q;            // [rows, C], times scale and (without softcap) log2 e
  float* output;      // [rows, C], to be divided by sum
  float* scores;      // [rows of one key/value head, kKeyTile], to base 2; weights replace them in place, as Left
  float* maximum;     // [rows] largest score so far
  float* sum;         // [rows] of 2^(score - maximum)
  float* correction;  // [rows] what a new maximum multiplies output and sum by
};

inline int64_t whole_lines(int64_t bytes) { return (bytes + 63) / 64 * 64; }

inline int64_t attention_scratch_bytes(int num_heads, int, int head_size) {
  int64_t rows = scratch_rows(num_heads), left_bytes = sizeof(Left), float_bytes = sizeof(float);
  return whole_lines(rows * head_size * left_bytes) + whole_lines(rows * head_size * float_bytes) +
         rows * kKeyTile * float_bytes + 3 * whole_lines(rows * float_bytes);
}

inline AttentionScratch attention_scratch(uint8_t* memory, int num_heads, int head_size) {
  int64_t rows = scratch_rows(num_heads), left_bytes = sizeof(Left), float_bytes = sizeof(float);
  int64_t row_floats = whole_lines(rows * float_bytes) / float_bytes;
  AttentionScratch scratch;
  scratch.q = reinterpret_cast<Left*>(memory);
  scratch.output = reinterpret_cast<float*>(memory + whole_lines(rows * head_size * left_bytes));
  scratch.scores = scratch.output + whole_lines(rows * head_size * float_bytes) / float_bytes;
  scratch.maximum = scratch.scores + rows * kKeyTile;
  scratch.sum = scratch.maximum + row_floats;
  scratch.correction = scratch.sum + row_floats;
  return scratch;
}

// The query heads of a key/value head for the tokens of a tile: row token * group + head.
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

// ---- a query tile ------------------------------------------------------------------------------------------------

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
inline void attend_key_tile(const AttentionArgs& args, const QueryTile& queries, const KeyTile& tile, int group,
                            int tile_page, const AttentionScratch& scratch) {
  int head_size = args.kv.head_size, rows = queries.num_tokens * group;
  for_each_register_tile(rows, [&](int row, auto count) {
    score_rows<decltype(count)::value>(scratch.q + int64_t(row) * head_size, head_size, tile,
                                       scratch.scores + row * kKeyTile);
  });
  int first = tile.first * kPage, end = tile.end * kPage;
  for (int row = 0; row < rows; ++row) {
    int position = queries.first_position + row / group - tile_page * kPage;
    int first_seen = args.kv.window > 0 ? position - args.kv.window + 1 : 0;
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
inline void attend(const AttentionArgs& args, const Item& item, const Item& next_item,
                   const AttentionScratch& scratch) {
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
