// What the machine can do, as the yardstick of every speed figure: barrier time, read bandwidth, peak rates.
#include <string.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <string>

#include "arena.h"
#include "context.h"
#include "error.h"

namespace octavo {
namespace {

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

double barrier_ns(Team& team, int rounds) {
  if (rounds < 1) throw Error("rounds is " + std::to_string(rounds) + "; it must be at least 1");
  double seconds = 0.0;
  team.run([&](int thread) {
    team.barrier();
    auto start = std::chrono::steady_clock::now();
    for (int round = 0; round < rounds; ++round) team.barrier();
    if (thread == 0) seconds = seconds_since(start);
  });
  return seconds * 1e9 / rounds;
}

double read_gbps(Team& team, const Kernels& kernels, int64_t bytes, PageSize page_size) {
  if (bytes < 1) throw Error("cannot time reading " + std::to_string(bytes) + " bytes");
  Arena arena{size_t(bytes), page_size};
  int64_t share = bytes / team.num_threads() / 4096 * 4096;
  double seconds = 0.0;
  std::atomic<uint64_t> sink{0};
  team.run([&](int thread) {
    uint8_t* mine = arena.data() + thread * share;
    memset(mine, 1, size_t(share));
    team.barrier();
    auto start = std::chrono::steady_clock::now();
    sink += kernels.read_sum(mine, share);
    team.barrier();
    if (thread == 0) seconds = seconds_since(start);
  });
  return double(share) * team.num_threads() / seconds * 1e-9;
}

// The best of a few bursts, each long enough for the clock to settle and short enough to be left alone.
double peak_gops(Team& team, const Kernels& kernels, int type) {
  if (type < OCT_PEAK_F32 || type > OCT_PEAK_INT8) throw Error("there is no peak " + std::to_string(type));
  constexpr int bursts = 5;
  constexpr int64_t rounds = 200'000;
  double best = 0.0;
  for (int burst = 0; burst < bursts; ++burst) {
    double seconds = 0.0;
    std::atomic<int64_t> operations{0};
    team.run([&](int thread) {
      team.barrier();
      auto start = std::chrono::steady_clock::now();
      operations += kernels.run_peak(type, rounds);
      team.barrier();
      if (thread == 0) seconds = seconds_since(start);
    });
    best = std::max(best, double(operations) / seconds * 1e-9);
  }
  return best;
}

}  // namespace
}  // namespace octavo

using octavo::guarded;

extern "C" {

double oct_measure_barrier_ns(oct_context* context, int rounds) {
  return guarded(-1.0, [&] { return octavo::barrier_ns(context->team, rounds); });
}

double oct_measure_read_gbps(oct_context* context, int64_t bytes, int use_huge_pages) {
  return guarded(-1.0, [&] {
    octavo::PageSize page_size = use_huge_pages ? octavo::PageSize::huge : octavo::PageSize::small;
    return octavo::read_gbps(context->team, context->kernels, bytes, page_size);
  });
}

double oct_measure_peak_gops(oct_context* context, int type) {
  return guarded(-1.0, [&] { return octavo::peak_gops(context->team, context->kernels, type); });
}

}  // extern "C"
