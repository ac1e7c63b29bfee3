// How attention is shared out: the queries of a request are cut into tiles of a few tokens, and every thread finds the
// tiles, key/value heads and tiles of keys that fall to it from the batch alone.
#pragma once
#include "kernels.h"

namespace octavo {
namespace {

constexpr int kPage = OCT_BLOCK_TOKENS;
constexpr int kKeyTilePages = 16;
constexpr int kKeyTile = kKeyTilePages * kPage;  // tokens
constexpr int kQueryTileRows = 48;               // eight register tiles of six rows

// Rows a thread can hold at once.
inline int scratch_rows(int num_heads) { return num_heads > kQueryTileRows ? num_heads : kQueryTileRows; }

// Some consecutive queries of a request and the pages that hold what they see.
struct QueryTile {
  const int32_t* block_table;
  int first_token;  // of the step
  int num_tokens;
  int first_position;
  int first_page;
  int end_page;

  int first_key_tile() const { return first_page / kKeyTilePages; }
  int end_key_tile() const { return (end_page - 1) / kKeyTilePages + 1; }
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

// Whether the rows of all heads fit at once, as they do when a request decodes.
inline bool has_few_rows(const AttentionArgs& args, const QueryTile& queries) {
  return queries.num_tokens * args.num_heads <= scratch_rows(args.num_heads);
}

// The work on a query tile as a line of units, which may go to different threads. With few rows a unit is one key tile
// of one key/value head, heads innermost, since they share pages; with many, one head with all its keys.
class Units {
 public:
  Units(const AttentionArgs& args, const QueryTile& queries)
      : queries_(queries),
        num_heads_(args.kv.num_kv_heads),
        page_cost_(queries.num_tokens * (args.num_heads / args.kv.num_kv_heads) + 4),
        by_key_tile_(has_few_rows(args, queries)) {}

  int count() const {
    return by_key_tile_ ? num_heads_ * (queries_.end_key_tile() - queries_.first_key_tile()) : num_heads_;
  }
  int64_t cost() const { return (cost_of(queries_.first_page, queries_.end_page) + fixed_cost()) * num_heads_; }

  // Twice the cost of all units before this one and of half of it.
  int64_t twice_middle(int unit) const {
    if (!by_key_tile_) return (2 * unit + 1) * cost() / num_heads_;
    int tile = queries_.first_key_tile() + unit / num_heads_;
    int first = clamped(tile * kKeyTilePages), end = clamped((tile + 1) * kKeyTilePages);
    return 2 * cost_of(queries_.first_page, first) * num_heads_ + (2 * (unit % num_heads_) + 1) * cost_of(first, end);
  }

 private:
  int clamped(int page) const {
    return page < queries_.first_page ? queries_.first_page : page > queries_.end_page ? queries_.end_page : page;
  }
  // Of one head: a page is read and converted once, then multiplied with every row.
  int64_t cost_of(int first_page, int end_page) const { return int64_t(end_page - first_page) * page_cost_; }
  // Queries and outputs of a head take about as long as a page.
  int64_t fixed_cost() const { return page_cost_; }

  const QueryTile& queries_;
  int num_heads_;
  int page_cost_;
  bool by_key_tile_;
};

// What one thread does of a query tile: units [first, end). If other threads do the rest of a tile with few rows, each
// leaves its partial results in `slot`, and the last of the `sharers` merges them.
struct Item {
  QueryTile queries;
  int first;
  int end;
  int slot;  // -1: nothing to merge
  int sharers;
};

// Every unit of every query tile is laid end to end by cost and the line is cut evenly: a unit belongs to the thread in
// whose part its middle lies.
struct Line {
  int64_t total;
  int num_threads;
  int owner(int64_t twice_middle) const { return int(twice_middle * num_threads / (2 * total)); }
};

inline Item cut_item(const QueryTile& queries, const Units& units, const Line& line, int64_t start, int thread) {
  Item item{queries, 0, 0, -1, 0};
  for (int unit = 0, last_owner = -1; unit < units.count(); ++unit) {
    int owner = line.owner(2 * start + units.twice_middle(unit));
    if (owner != last_owner) ++item.sharers;
    last_owner = owner;
    if (owner < thread) item.first = unit + 1;
    if (owner <= thread) item.end = unit + 1;
  }
  return item;
}

// Calls function(item) for what falls to a thread.
template <class Function>
inline void for_each_item(const AttentionArgs& args, ThreadShare share, Function function) {
  int64_t start = 0;
  Line line{0, share.num_threads};
  for_each_query_tile(args, [&](const QueryTile& queries) { line.total += Units(args, queries).cost(); });
  for_each_query_tile(args, [&](const QueryTile& queries) {
    Units units(args, queries);
    int first_owner = line.owner(2 * start + units.twice_middle(0));
    int last_owner = line.owner(2 * start + units.twice_middle(units.count() - 1));
    if (first_owner == share.thread && last_owner == share.thread) {
      function(Item{queries, 0, units.count(), -1, 1});
    } else if (first_owner <= share.thread && share.thread <= last_owner) {
      Item item = cut_item(queries, units, line, start, share.thread);
      // No other tile that is cut begins with the same thread.
      if (has_few_rows(args, queries)) item.slot = first_owner;
      if (item.first < item.end) function(item);
    }
    start += units.cost();
  });
}

}  // namespace
}  // namespace octavo
