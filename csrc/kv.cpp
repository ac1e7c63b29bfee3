#include "kv.h"

#include <string.h>

#include <string>

#include "error.h"

namespace octavo {
namespace {

int64_t page_elements(int num_kv_heads, int head_size) {
  return int64_t(2) * num_kv_heads * OCT_BLOCK_TOKENS * head_size;
}

int64_t block_bytes(int num_layers, int num_kv_heads, int head_size) {
  return num_layers * page_elements(num_kv_heads, head_size) * int64_t(sizeof(uint16_t));
}

void check_geometry(int num_layers, int num_blocks, int num_kv_heads, int head_size) {
  if (num_layers >= 1 && num_blocks >= 1 && num_kv_heads >= 1 && head_size >= 2 && head_size % 2 == 0) return;
  throw Error("a KV cache of " + std::to_string(num_layers) + " layers, " + std::to_string(num_blocks) + " blocks and " +
              std::to_string(num_kv_heads) + " heads of " + std::to_string(head_size) +
              " is impossible: all must be positive and the head size even");
}

}  // namespace
}  // namespace octavo

oct_kv_cache::oct_kv_cache(int num_layers, int num_blocks, int num_kv_heads, int head_size)
    : num_layers(num_layers), num_blocks(num_blocks), num_kv_heads(num_kv_heads), head_size(head_size) {
  octavo::check_geometry(num_layers, num_blocks, num_kv_heads, head_size);
  memory_ = octavo::Arena(size_t(num_blocks) * size_t(octavo::block_bytes(num_layers, num_kv_heads, head_size)));
}

octavo::KvLayer oct_kv_cache::layer(int index) const {
  int64_t elements = octavo::page_elements(num_kv_heads, head_size);
  uint16_t* data = reinterpret_cast<uint16_t*>(memory_.data()) + index * num_blocks * elements;
  return {data, elements, num_kv_heads, head_size};
}

void oct_kv_cache::copy_blocks(const oct_step& step, octavo::ThreadShare share) const {
  for (int index = share.thread; index < num_layers; index += share.num_threads) {
    octavo::KvLayer pages = layer(index);
    for (int i = 0; i < step.num_copies; ++i) {
      memcpy(pages.data + step.copy_destinations[i] * pages.page_elements,
             pages.data + step.copy_sources[i] * pages.page_elements, size_t(pages.page_elements) * sizeof(uint16_t));
    }
  }
}

using octavo::guarded;

extern "C" {

oct_kv_cache* oct_kv_cache_create(int num_layers, int num_blocks, int num_kv_heads, int head_size) {
  return guarded<oct_kv_cache*>(nullptr,
                                [&] { return new oct_kv_cache(num_layers, num_blocks, num_kv_heads, head_size); });
}

int64_t oct_kv_block_bytes(int num_layers, int num_kv_heads, int head_size) {
  return octavo::block_bytes(num_layers, num_kv_heads, head_size);
}

void oct_kv_cache_destroy(oct_kv_cache* cache) { delete cache; }

}  // extern "C"
