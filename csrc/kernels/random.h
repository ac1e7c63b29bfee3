// Philox4x32-10: counter-based random numbers (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2,
// 3", SC 2011). The numbers of a (seed, position) are the same whatever else has been drawn.
#pragma once
#include <stdint.h>

namespace octavo {
namespace {

struct PhiloxBlock {
  uint32_t words[4];
};

inline PhiloxBlock philox4x32(PhiloxBlock counter, uint32_t key0, uint32_t key1) {
  for (int round = 0; round < 10; ++round) {
    uint64_t product0 = uint64_t(0xD2511F53u) * counter.words[0];
    uint64_t product1 = uint64_t(0xCD9E8D57u) * counter.words[2];
    counter = {{uint32_t(product1 >> 32) ^ counter.words[1] ^ key0, uint32_t(product1),
                uint32_t(product0 >> 32) ^ counter.words[3] ^ key1, uint32_t(product0)}};
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  return counter;
}

// Uniform in [0, 1), 53 bits.
inline double uniform(uint64_t seed, int64_t position) {
  PhiloxBlock counter{{uint32_t(position), uint32_t(uint64_t(position) >> 32), 0, 0}};
  PhiloxBlock block = philox4x32(counter, uint32_t(seed), uint32_t(seed >> 32));
  uint64_t bits = uint64_t(block.words[1]) << 32 | block.words[0];
  return double(bits >> 11) * 0x1p-53;
}

}  // namespace
}  // namespace octavo
