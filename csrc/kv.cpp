#include "kv.h"

#include <string.h>
#include <sys/mman.h>

#include <algorithm>
#include <string>
#include <utility>

#include "error.h"

namespace octavo {
namespace {

int64_t values_bytes(const oct_kv_group& group) {
  return int64_t(OCT_BLOCK_TOKENS) * group.head_size * (group.dtype == OCT_KV_INT8 ? 1 : int64_t(sizeof(uint16_t)));
}

int64_t keys_bytes(const oct_kv_group& group) {
  if (group.dtype != OCT_KV_INT8) return values_bytes(group);
  int64_t padding = OCT_BLOCK_TOKENS * (group.head_size % 4), scales = 2 * OCT_BLOCK_TOKENS;  // of keys and of values
  return values_bytes(group) + padding + scales * int64_t(sizeof(float));
}

int64_t page_bytes(const oct_kv_group& group) {
  return group.num_kv_heads * (keys_bytes(group) + values_bytes(group));
}

void check_group(const oct_kv_group& group) {
  bool positive = group.num_blocks >= 1 && group.num_kv_heads >= 1 && group.head_size >= 2 && group.window >= 0;
  if (group.dtype != OCT_KV_BF16 && group.dtype != OCT_KV_INT8) {
    throw Error("a KV cache of dtype " + std::to_string(group.dtype) + " is impossible");
  }
  if (positive && group.head_size % 2 == 0) return;
  throw Error("a KV cache of " + std::to_string(group.num_blocks) + " blocks, " + std::to_string(group.num_kv_heads) +
              " heads of " + std::to_string(group.head_size) + " and a window of " + std::to_string(group.window) +
              " is impossible: all must be positive, but for the window, which may be 0, and the head size even");
}

void check_layers(const std::vector<oct_kv_group>& groups, const std::vector<int32_t>& layer_groups) {
  if (layer_groups.empty()) throw Error("a KV cache without layers is impossible");
  for (size_t layer = 0; layer < layer_groups.size(); ++layer) {
    int32_t group = layer_groups[layer];
    if (group >= 0 && size_t(group) < groups.size()) continue;
    throw Error("layer " + std::to_string(layer) + " of the KV cache is in group " + std::to_string(group) +
                ", but there are " + std::to_string(groups.size()));
  }
}

}  // namespace
}  // namespace octavo

oct_kv_cache::oct_kv_cache(std::vector<oct_kv_group> groups, std::vector<int32_t> layer_groups)
    : groups_(std::move(groups)), layer_groups_(std::move(layer_groups)) {
  for (const oct_kv_group& group : groups_) octavo::check_group(group);
  octavo::check_layers(groups_, layer_groups_);
  for (int32_t index : layer_groups_) {
    const oct_kv_group& group = groups_[size_t(index)];
    memory_.emplace_back(size_t(group.num_blocks) * size_t(octavo::page_bytes(group)));
  }
}

octavo::KvLayer oct_kv_cache::layer(int index) const {
  const oct_kv_group& group = groups_[size_t(group_of(index))];
  return {memory_[size_t(index)].data(), octavo::keys_bytes(group), octavo::values_bytes(group),
          octavo::page_bytes(group), group.num_kv_heads, group.head_size, group.window, group.dtype};
}

void oct_kv_cache::copy_blocks(const oct_step& step, octavo::ThreadShare share) const {
  for (int index = share.thread; index < num_layers(); index += share.num_threads) {
    octavo::KvLayer pages = layer(index);
    for (int i = 0; i < step.num_copies; ++i) {
      if (step.copy_groups[i] != group_of(index)) continue;
      memcpy(pages.data + step.copy_destinations[i] * pages.page_bytes,
             pages.data + step.copy_sources[i] * pages.page_bytes, size_t(pages.page_bytes));
    }
  }
}

template <typename Visit>
void oct_kv_cache::for_each_page(int group, int block, Visit&& visit) const {
  if (group < 0 || size_t(group) >= groups_.size()) {
    throw octavo::Error("layer group " + std::to_string(group) + " does not exist; there are " +
                        std::to_string(groups_.size()));
  }
  if (block < 0 || block >= groups_[size_t(group)].num_blocks) {
    throw octavo::Error("block " + std::to_string(block) + " does not exist; layer group " + std::to_string(group) +
                        " has " + std::to_string(groups_[size_t(group)].num_blocks));
  }
  size_t offset = 0;
  for (int index = 0; index < num_layers(); ++index) {
    if (group_of(index) != group) continue;
    octavo::KvLayer pages = layer(index);
    visit(pages.data + block * pages.page_bytes, offset, size_t(pages.page_bytes));
    offset += size_t(pages.page_bytes);
  }
}

int64_t oct_kv_cache::populate(int64_t bytes) {
  int64_t populated = 0;
  while (populated < bytes && populate_next(&populated)) {
  }
  return populated;
}

bool oct_kv_cache::populate_next(int64_t* bytes) {
  constexpr size_t page = octavo::Arena::huge_page_bytes;
  size_t longest = 0;
  for (const octavo::Arena& layer : memory_) longest = std::max(longest, layer.bytes());
  for (; num_populated_ / memory_.size() * page < longest; ++num_populated_) {
    const octavo::Arena& layer = memory_[num_populated_ % memory_.size()];
    size_t first = num_populated_ / memory_.size() * page;
    if (first >= layer.bytes()) continue;
    size_t count = std::min(page, layer.bytes() - first);
    // Fails on kernels before 5.14: then memory is taken as it is written to.
    if (madvise(layer.data() + first, count, MADV_POPULATE_WRITE) != 0) return false;
    *bytes += int64_t(count);
    ++num_populated_;
    return true;
  }
  return false;
}

using octavo::guarded;

extern "C" {

oct_kv_cache* oct_kv_cache_create(const oct_kv_group* groups, int num_groups, const int32_t* layer_groups,
                                  int num_layers) {
  return guarded<oct_kv_cache*>(nullptr, [&] {
    return new oct_kv_cache(std::vector<oct_kv_group>(groups, groups + num_groups),
                            std::vector<int32_t>(layer_groups, layer_groups + num_layers));
  });
}

int64_t oct_kv_page_bytes(const oct_kv_group* group) { return octavo::page_bytes(*group); }

int oct_kv_read_block(const oct_kv_cache* cache, int group, int block, void* pages) {
  return guarded(-1, [&] {
    cache->for_each_page(group, block, [&](const uint8_t* page, size_t offset, size_t bytes) {
      memcpy(static_cast<char*>(pages) + offset, page, bytes);
    });
    return 0;
  });
}

int oct_kv_write_block(oct_kv_cache* cache, int group, int block, const void* pages) {
  return guarded(-1, [&] {
    cache->for_each_page(group, block, [&](uint8_t* page, size_t offset, size_t bytes) {
      memcpy(page, static_cast<const char*>(pages) + offset, bytes);
    });
    return 0;
  });
}

int64_t oct_kv_cache_populate(oct_kv_cache* cache, int64_t bytes) { return cache->populate(bytes); }

void oct_kv_cache_destroy(oct_kv_cache* cache) { delete cache; }

}  // extern "C"
