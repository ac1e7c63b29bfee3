// The KV cache: for every layer, an array of pages of 16 tokens. Memory becomes resident as pages are written.
#pragma once
#include "arena.h"
#include "kernels/kernels.h"

struct oct_kv_cache {
  oct_kv_cache(int num_layers, int num_blocks, int num_kv_heads, int head_size);
  octavo::KvLayer layer(int index) const;
  // Called by all threads: each copies its share of the layers, page copy_sources[i] to copy_destinations[i] in order.
  void copy_blocks(const oct_step& step, octavo::ThreadShare share) const;

  const int num_layers;
  const int num_blocks;
  const int num_kv_heads;
  const int head_size;

 private:
  octavo::Arena memory_;
};
