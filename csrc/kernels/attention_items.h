// How attention is shared out: the queries of a request are cut into tiles of a few tokens, and every thread finds the
// tiles and key/value heads that fall to it from the batch alone.
#pragma once
#include "kernels.h"

namespace octavo {
namespace {

constexpr int kPage = OCT_BLOCK_TOKENS;
constexpr int kQueryTileRows = 48;  // eight register tiles of six rows

// Rows a thread can hold at once.
inline int64_t scratch_rows(int num_heads) { return num_heads > kQueryTileRows ? num_heads : kQueryTileRows; }

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
  tile.block_table = batch.block_table(request);
  tile.first_token = first_token;
  tile.num_tokens = remaining < max_tokens ? remaining : max_tokens;
  tile.first_position = batch.positions[first_token];
  int first_seen = args.kv.window > 0 ? tile.first_position - args.kv.window + 1 : 0;
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

}  // namespace
}  // namespace octavo
