// A context: the kernels of one instruction set, a team to run them on, and the memory its weights are packed into.
#pragma once
#include <memory>
#include <mutex>

#include "arena.h"
#include "kernels/kernels.h"
#include "team.h"

namespace octavo {

// A piece of an arena that several pieces share; the arena lives as long as any of them.
struct SharedMemory {
  std::shared_ptr<Arena> arena;
  uint8_t* data;
};

// Cuts pieces off large arenas, so that small matrices lie on huge pages too.
class SharedArenas {
 public:
  SharedMemory allocate(size_t bytes);

 private:
  std::mutex mutex_;
  std::shared_ptr<Arena> arena_;
  size_t used_bytes_ = 0;
};

}  // namespace octavo

struct oct_context {
  oct_context(const octavo::Kernels& kernels, int num_threads) : kernels(kernels), team(num_threads) {}

  const octavo::Kernels& kernels;
  octavo::Team team;
  octavo::SharedArenas weight_memory;
};
