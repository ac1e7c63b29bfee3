// Causal attention over paged keys and values, tile by tile (arXiv 2205.14135).
//
// The queries of a request are cut into tiles of a few tokens; with the query heads that share a key/value head they
// are the rows of two small products, scores = q k and output = weights v. Key tiles are counted from position 0 and a
// row's numbers depend on nothing but its own request: what other rows of a query tile need and this one does not see
// adds exact zeros.
#pragma once
#include "attention_items.h"
#include "attention_rows.h"
#include "attention_tile.h"
#include "kernels.h"
#include "kv_bf16.h"
#include "kv_int8.h"
#include "operand.h"
#include "vec.h"

namespace octavo {
namespace {

// ---- memory ------------------------------------------------------------------------------------------------------

inline int64_t whole_lines(int64_t bytes) { return (bytes + 63) / 64 * 64; }

// Of one thread, for all rows it holds at once.
struct AttentionScratch {
  uint8_t* q;  // [rows, C in whole units] as Left, times scale and (without softcap) log2 e
  QueryScale* q_scales;  // [rows]
  TileRows tile_rows;
  MergeFactors factors;
  float* states;  // of one key/value head after the other
};

inline int64_t attention_scratch_bytes(int num_heads, int num_kv_heads, int head_size) {
  int rows = scratch_rows(num_heads);
  int64_t floats = int64_t(rows) * kKeyTile + 7 * padded_rows(rows) +
                   all_row_states_floats(num_heads, num_kv_heads, head_size);
  return whole_lines(int64_t(rows) * head_size * int64_t(sizeof(float))) + floats * int64_t(sizeof(float));
}

inline AttentionScratch attention_scratch(const AttentionArgs& args) {
  int rows = scratch_rows(args.num_heads), padded = padded_rows(rows);
  AttentionScratch scratch;
  scratch.q = args.scratch;
  float* floats = reinterpret_cast<float*>(
      args.scratch + whole_lines(int64_t(rows) * args.kv.head_size * int64_t(sizeof(float))));
  auto take = [&floats](int64_t count) {
    floats += count;
    return floats - count;
  };
  scratch.q_scales = reinterpret_cast<QueryScale*>(take(2 * padded));
  scratch.tile_rows.maximum = take(padded);
  scratch.tile_rows.sum = take(padded);
  scratch.tile_rows.weight_scale = take(padded);
  scratch.factors.keep = take(padded);
  scratch.factors.add = take(padded);
  scratch.tile_rows.scores = take(int64_t(rows) * kKeyTile);
  scratch.states = floats;
  return scratch;
}

// Shared by all threads: for each slot a counter of the sharers that are done, then for each slot the states that a
// query tile's key tiles leave, of all heads. Counters are zero between attentions.
constexpr int64_t kCounterBytes = 128;

inline int64_t slot_floats(int num_heads, int num_kv_heads, int head_size, int max_blocks) {
  int64_t max_key_tiles = (max_blocks + kKeyTilePages - 1) / kKeyTilePages;
  return max_key_tiles * all_row_states_floats(num_heads, num_kv_heads, head_size);
}

inline int64_t attention_shared_bytes(int num_heads, int num_kv_heads, int head_size, int max_blocks,
                                      int num_threads) {
  int64_t floats = slot_floats(num_heads, num_kv_heads, head_size, max_blocks);
  return (num_threads - 1) * (kCounterBytes + floats * int64_t(sizeof(float)));
}

struct Slot {
  uint32_t* counter;
  float* states;
};

inline Slot slot_at(const AttentionArgs& args, int index, int num_threads) {
  int64_t floats = slot_floats(args.num_heads, args.kv.num_kv_heads, args.kv.head_size, args.batch.max_blocks);
  uint8_t* states = args.shared + (num_threads - 1) * kCounterBytes;
  return {reinterpret_cast<uint32_t*>(args.shared + index * kCounterBytes),
          reinterpret_cast<float*>(states) + index * floats};
}

// ---- queries and outputs -----------------------------------------------------------------------------------------

// The query heads of a key/value head for the tokens of a tile: row token * group + head.
template <class Pages>
inline void load_queries(const AttentionArgs& args, const QueryTile& tile, int kv_head, int group,
                         typename Pages::Left* dst, QueryScale* scales) {
  int head_size = args.kv.head_size, first_column = kv_head * group * head_size;
  int64_t stride = whole_units<Pages>(head_size) * Pages::together;
  float scale = args.softcap > 0 ? args.scale : args.scale * kLog2E;
  for (int token = 0; token < tile.num_tokens; ++token) {
    const float* q = args.qkv.data + (tile.first_token + token) * args.qkv.stride + first_column;
    for (int head = 0; head < group; ++head) {
      int row = token * group + head;
      Pages::store_query(q + int64_t(head) * head_size, head_size, scale, dst + row * stride, scales + row);
    }
  }
}

inline void scale_output(const float* src, float factor, int head_size, float* dst) {
  constexpr int width = F32::width;
  int i = 0;
  for (; i + width <= head_size; i += width) (F32::load(src + i) * F32::set1(factor)).store(dst + i);
  for (; i < head_size; ++i) dst[i] = src[i] * factor;
}

// `states` are spent afterwards.
inline void store_outputs(const AttentionArgs& args, const QueryTile& tile, int kv_head, int group,
                          const RowStates& states) {
  int head_size = args.kv.head_size, rows = tile.num_tokens * group;
  const Matrix& matrix = args.dst.matrix;
  const Operand& operand = args.dst.operand;
  auto token_of = [&](int row) { return tile.first_token + row / group; };
  auto column_of = [&](int row) { return int64_t(kv_head * group + row % group) * head_size; };
  for (int row = 0; row < rows; ++row) {
    float* output = states.output + int64_t(row) * head_size;
    float* dst = matrix.data ? matrix.data + token_of(row) * matrix.stride + column_of(row) : output;
    scale_output(output, 1.0f / states.sum[row], head_size, dst);
    if (operand.kind != OCT_BUFFER_OPERAND_BF16) continue;
    quantize_columns(output, head_size, operand, token_of(row), column_of(row));
  }
  if (operand.kind != OCT_BUFFER_OPERAND_INT8) return;
  int groups = head_size / kGroup;
  auto place_of = [&](int64_t i) {
    int row = int(i) / groups;
    return group_at(operand, token_of(row), column_of(row)) + int(i) % groups;
  };
  quantize_groups(int64_t(rows) * groups, [&](int64_t i) { return states.output + i * kGroup; }, place_of);
}

// ---- key tiles ---------------------------------------------------------------------------------------------------

// The pages of a key tile as far as a query tile sees them. `first` and `end` count pages of the key tile.
struct TilePages {
  int first;
  int end;
  const uint8_t* pages[kKeyTilePages];
};

inline TilePages tile_pages(const KvLayer& kv, const QueryTile& queries, int key_tile) {
  int first_page = key_tile * kKeyTilePages;
  TilePages found;
  found.first = queries.first_page > first_page ? queries.first_page - first_page : 0;
  found.end = queries.end_page - first_page < kKeyTilePages ? queries.end_page - first_page : kKeyTilePages;
  for (int i = found.first; i < found.end; ++i) {
    found.pages[i] = kv.data + queries.block_table[first_page + i] * kv.page_bytes;
  }
  return found;
}

// One key/value head of a key tile.
struct Place {
  const TilePages* pages;
  int head;
};

// The key tile at `place`, which is number `index` of the request; the one at `next` follows it.
template <class Pages>
inline KeyTile key_tile(const KvLayer& kv, const QueryTile& queries, int index, const Place& place, const Place& next) {
  KeyTile tile;
  tile.first = place.pages->first;
  tile.end = place.pages->end;
  int end_token = queries.first_position + queries.num_tokens - (index * kKeyTilePages + tile.first) * kPage;
  int page_tokens = (tile.end - tile.first) * kPage;
  tile.num_tokens = end_token < page_tokens ? end_token : page_tokens;
  tile.keys_to_values = kv.keys_bytes;
  for (int i = tile.first; i < tile.end; ++i) {
    tile.keys[i] = place.pages->pages[i] + kv.keys_offset(place.head);
    bool exists = i >= next.pages->first && i < next.pages->end;
    const uint8_t* values = tile.keys[i] + tile.keys_to_values;
    tile.values_to_next[i] = exists ? next.pages->pages[i] + kv.keys_offset(next.head) - values : 0;
  }
  if constexpr (Pages::has_scales) Pages::load_value_scales(tile);
  return tile;
}

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

// One key/value head and key tile for all rows of a query tile, merged into `states`. `local_head` counts the heads whose
// queries are loaded.
template <class Pages, bool prefetches>
inline void attend_key_tile(const AttentionArgs& args, const QueryTile& queries, const KeyTile& tile, int index,
                            int local_head, const AttentionScratch& scratch, const RowStates& states) {
  using Left = typename Pages::Left;
  const TileRows& tile_rows = scratch.tile_rows;
  int head_size = args.kv.head_size, group = args.num_heads / args.kv.num_kv_heads, rows = queries.num_tokens * group;
  int64_t q_stride = whole_units<Pages>(head_size) * Pages::together;
  const Left* q = reinterpret_cast<const Left*>(scratch.q) + local_head * rows * q_stride;
  const QueryScale* q_scales = scratch.q_scales + local_head * rows;
  for_each_register_tile(rows, [&](int row, auto count) {
    score_rows<Pages, decltype(count)::value, prefetches>(q + row * q_stride, q_scales + row, head_size, tile,
                                                          tile_rows.scores + row * kKeyTile);
  });
  int first = tile.first * kPage / kSoftmaxStep * kSoftmaxStep;
  int end = (tile.end * kPage + kSoftmaxStep - 1) / kSoftmaxStep * kSoftmaxStep;
  if (args.softcap > 0) {
    for (int row = 0; row < rows; ++row) cap_scores(tile_rows.scores + row * kKeyTile, first, end, args.softcap);
  }
  auto seen_of = [&](int row) {
    int position = queries.first_position + row / group - index * kKeyTile;
    int first_seen = args.kv.window > 0 ? position - args.kv.window + 1 : 0;
    return Seen{first_seen < tile.first * kPage ? tile.first * kPage : first_seen, position + 1};
  };
  for (int row = 0; row < rows; row += kSoftmaxRows) {
    int num_rows = rows - row < kSoftmaxRows ? rows - row : kSoftmaxRows;
    softmax_rows<Pages>(tile_rows, row, num_rows, first, end, tile.value_scales, seen_of);
  }
  merge_sums(states, tile_rows.maximum, tile_rows.sum, rows, scratch.factors);
  for_each_register_tile(rows, [&](int row, auto count) {
    constexpr int num_rows = decltype(count)::value;
    int seen_tokens = seen_of(row + num_rows - 1).end - tile.first * kPage;  // by the last row
    add_values<Pages, num_rows, prefetches>(tile_rows, row, scratch.factors, tile,
                                            seen_tokens < tile.num_tokens ? seen_tokens : tile.num_tokens, head_size,
                                            states.output);
  });
}

// ---- items -------------------------------------------------------------------------------------------------------

// Heads [first_head, end_head) of a query tile, and of their key tiles, heads innermost, numbers [first, end).
struct Part {
  const QueryTile& queries;
  int first_head;
  int end_head;
  int first;
  int end;
};

// Attends to the key tiles of a part; `states_of(key tile, head)` are merged into. Then comes `after`, for prefetching.
template <class Pages, bool prefetches, class StatesOf>
inline void attend(const AttentionArgs& args, const Part& part, const Place& after, const AttentionScratch& scratch,
                   StatesOf states_of) {
  using Left = typename Pages::Left;
  const QueryTile& queries = part.queries;
  int group = args.num_heads / args.kv.num_kv_heads, rows = queries.num_tokens * group;
  int num_heads = part.end_head - part.first_head;
  int64_t q_stride = whole_units<Pages>(args.kv.head_size) * Pages::together;
  for (int i = 0; i < num_heads; ++i) {
    load_queries<Pages>(args, queries, part.first_head + i, group,
                        reinterpret_cast<Left*>(scratch.q) + i * rows * q_stride,
                        scratch.q_scales + i * rows);
  }
  TilePages pages{}, next_pages = tile_pages(args.kv, queries, queries.first_key_tile() + part.first / num_heads);
  for (int number = part.first; number < part.end; ++number) {
    int head = number % num_heads, index = queries.first_key_tile() + number / num_heads;
    if (head == 0 || number == part.first) {
      pages = next_pages;
      if (index + 1 < queries.end_key_tile()) next_pages = tile_pages(args.kv, queries, index + 1);
    }
    Place place{&pages, part.first_head + head}, next{&pages, place.head + 1};
    if (head + 1 == num_heads) next = {&next_pages, part.first_head};
    if (number + 1 == part.end) next = after;
    KeyTile tile = key_tile<Pages>(args.kv, queries, index, place, next);
    attend_key_tile<Pages, prefetches>(args, queries, tile, index, head, scratch, states_of(index, place.head));
  }
}

// No keys seen yet; a sink takes part as a key without a value.
inline void start(const AttentionArgs& args, const QueryTile& queries, int head, const RowStates& states) {
  int group = args.num_heads / args.kv.num_kv_heads, rows = queries.num_tokens * group;
  clear(states, rows, args.kv.head_size);
  if (!args.sinks) return;
  for (int row = 0; row < rows; ++row) {
    states.maximum[row] = args.sinks[head * group + row % group] * kLog2E;
    states.sum[row] = 1.0f;
  }
}

// Heads [first_head, end_head) with all their keys.
template <class Pages, bool prefetches>
inline void attend_heads(const AttentionArgs& args, const QueryTile& queries, int first_head, int end_head,
                         const Place& after, const AttentionScratch& scratch) {
  int group = args.num_heads / args.kv.num_kv_heads, rows = queries.num_tokens * group;
  auto states_of = [&](int, int head) {
    return row_states(scratch.states + (head - first_head) * row_states_floats(rows, args.kv.head_size), rows);
  };
  for (int head = first_head; head < end_head; ++head) start(args, queries, head, states_of(0, head));
  int num_key_tiles = queries.end_key_tile() - queries.first_key_tile();
  Part part{queries, first_head, end_head, 0, num_key_tiles * (end_head - first_head)};
  attend<Pages, prefetches>(args, part, after, scratch, states_of);
  for (int head = first_head; head < end_head; ++head) store_outputs(args, queries, head, group, states_of(0, head));
}

// A part of a query tile that several threads share. Whoever is last merges what all have left.
template <class Pages>
inline void attend_shared(const AttentionArgs& args, const Item& item, const Place& after,
                          const AttentionScratch& scratch, int num_threads) {
  const QueryTile& queries = item.queries;
  int num_heads = args.kv.num_kv_heads, head_size = args.kv.head_size, group = args.num_heads / num_heads;
  int rows = queries.num_tokens * group, first_key_tile = queries.first_key_tile();
  Slot slot = slot_at(args, item.slot, num_threads);
  int64_t floats = row_states_floats(rows, head_size);
  auto left_by = [&](int key_tile, int head) {
    return row_states(slot.states + ((key_tile - first_key_tile) * num_heads + head) * floats, rows);
  };
  attend<Pages, true>(args, {queries, 0, num_heads, item.first, item.end}, after, scratch, [&](int key_tile, int head) {
    clear(left_by(key_tile, head), rows, head_size);
    return left_by(key_tile, head);
  });
  if (__atomic_add_fetch(slot.counter, 1, __ATOMIC_ACQ_REL) != uint32_t(item.sharers)) return;
  __atomic_store_n(slot.counter, 0, __ATOMIC_RELAXED);
  RowStates states = row_states(scratch.states, rows);
  for (int head = 0; head < num_heads; ++head) {
    start(args, queries, head, states);
    for (int key_tile = first_key_tile; key_tile < queries.end_key_tile(); ++key_tile) {
      merge(states, left_by(key_tile, head), rows, head_size, scratch.factors);
    }
    store_outputs(args, queries, head, group, states);
  }
}

template <class Pages>
inline void attend_item(const AttentionArgs& args, const Item& item, const Place& after,
                        const AttentionScratch& scratch, int num_threads) {
  const QueryTile& queries = item.queries;
  if (item.slot >= 0) return attend_shared<Pages>(args, item, after, scratch, num_threads);
  if (has_few_rows(args, queries)) {
    return attend_heads<Pages, true>(args, queries, 0, args.kv.num_kv_heads, after, scratch);
  }
  int rows = queries.num_tokens * (args.num_heads / args.kv.num_kv_heads);
  int at_once = scratch_rows(args.num_heads) / rows;
  for (int head = item.first; head < item.end; head += at_once) {
    int end_head = head + at_once < item.end ? head + at_once : item.end;
    attend_heads<Pages, false>(args, queries, head, end_head, after, scratch);
  }
}

inline TilePages first_pages(const AttentionArgs& args, const Item& item) {
  int key_tile = has_few_rows(args, item.queries) ? item.first / args.kv.num_kv_heads : 0;
  return tile_pages(args.kv, item.queries, item.queries.first_key_tile() + key_tile);
}

template <class Pages>
inline void attention_over(const AttentionArgs& args, ThreadShare share) {
  AttentionScratch scratch = attention_scratch(args);
  Item current;
  bool has_current = false;
  for_each_item(args, share, [&](const Item& next) {
    if (has_current) {
      TilePages pages = first_pages(args, next);
      attend_item<Pages>(args, current, {&pages, next.first % args.kv.num_kv_heads}, scratch, share.num_threads);
    }
    current = next;
    has_current = true;
  });
  TilePages none{0, 0, {}};
  if (has_current) attend_item<Pages>(args, current, {&none, 0}, scratch, share.num_threads);
}

inline void attention(const AttentionArgs& args, ThreadShare share) {
  args.kv.dtype == OCT_KV_INT8 ? attention_over<Int8Pages>(args, share) : attention_over<Bf16Pages>(args, share);
}

}  // namespace
}  // namespace octavo
