// The KV cache: for every layer, an array of pages of 16 tokens. Layers of one group have the same shape and as many pages,
// which one block table finds. Memory becomes resident as pages are written, or ahead of that by populate().
#pragma once
#include <vector>

#include "arena.h"
#include "kernels/kernels.h"

struct oct_kv_cache {
  oct_kv_cache(std::vector<oct_kv_group> groups, std::vector<int32_t> layer_groups);

  int num_layers() const { return int(layer_groups_.size()); }
  const std::vector<oct_kv_group>& groups() const { return groups_; }
  int group_of(int layer) const { return layer_groups_[size_t(layer)]; }
  octavo::KvLayer layer(int index) const;
  // Called by all threads: each copies its share of the layers, one copy after the other.
  void copy_blocks(const oct_step& step, octavo::ThreadShare share) const;
  // Calls visit(page, offset, bytes) for the block's page in each layer of the group; offset counts from the first.
  template <typename Visit>
  void for_each_page(int group, int block, Visit&& visit) const;

  // Makes at least `bytes` more resident: a huge page of each layer, then the next of each. Gives how many.
  int64_t populate(int64_t bytes);

 private:
  bool populate_next(int64_t* bytes);

  const std::vector<oct_kv_group> groups_;
  const std::vector<int32_t> layer_groups_;
  std::vector<octavo::Arena> memory_;  // of each layer
  size_t num_populated_ = 0;           // huge pages, counted through the layers
};
