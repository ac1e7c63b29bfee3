// The ends of a mixture of experts: which experts a row goes to, and the sum of what they gave.
#pragma once
#include "kernels.h"
#include "math.h"

namespace octavo {
namespace {

// The order of summation depends on `count` alone.
inline float dot(const float* x, const float* y, int count) {
  constexpr int width = F32::width;
  F32 sums[4] = {F32::zero(), F32::zero(), F32::zero(), F32::zero()};
  int i = 0;
  for (; i + 4 * width <= count; i += 4 * width) {
    for (int j = 0; j < 4; ++j) sums[j] = fma(F32::load(x + i + j * width), F32::load(y + i + j * width), sums[j]);
  }
  float sum = ((sums[0] + sums[1]) + (sums[2] + sums[3])).sum();
  for (; i < count; ++i) sum += x[i] * y[i];
  return sum;
}

// values[count] becomes exp(value) over their sum. Room for whole vectors is there.
inline void softmax(float* values, int count) {
  float largest = values[0];
  for (int i = 1; i < count; ++i) largest = values[i] > largest ? values[i] : largest;
  for (int i = 0; i < count; i += F32::width) exp(F32::load(values + i) - F32::set1(largest)).store(values + i);
  float sum = 0.0f;
  for (int i = 0; i < count; ++i) sum += values[i];
  for (int i = 0; i < count; ++i) values[i] /= sum;
}

// The largest of those not yet taken (the first of equals); what is not a number counts as least.
inline int take_largest(const float* values, bool* taken, int count) {
  int best = -1;
  for (int i = 0; i < count; ++i) {
    if (!taken[i] && (best < 0 || values[i] > values[best])) best = i;
  }
  taken[best] = true;
  return best;
}

inline void route_row(const RouteArgs& args, int64_t row) {
  alignas(64) float shares[OCT_MAX_EXPERTS] = {};
  bool taken[OCT_MAX_EXPERTS] = {};
  int columns = args.src.columns;
  const float* x = args.src.data + row * args.src.stride;
  for (int e = 0; e < args.num_experts; ++e) shares[e] = dot(x, args.router + int64_t(e) * columns, columns);
  softmax(shares, args.num_experts);
  int32_t* experts = args.experts + row * args.num_active;
  float* dst = args.shares + row * args.num_active;
  float total = 0.0f;
  for (int i = 0; i < args.num_active; ++i) {
    experts[i] = take_largest(shares, taken, args.num_experts);
    dst[i] = shares[experts[i]];
    total += dst[i];
  }
  for (int i = 0; args.renormalise && i < args.num_active; ++i) dst[i] /= total;
}

inline void route(const RouteArgs& args, ThreadShare share) {
  for (int64_t row = share.thread; row < args.num_rows; row += share.num_threads) route_row(args, row);
}

inline void combine_row(const CombineArgs& args, int64_t row) {
  constexpr int width = F32::width;
  const int32_t* slots = args.slots + row * args.num_active;
  const float* shares = args.shares + row * args.num_active;
  float* dst = args.dst.data + row * args.dst.stride;
  auto given_by = [&](int i) { return args.src.data + slots[i] * args.src.stride; };
  int column = 0;
  for (; column + width <= args.dst.columns; column += width) {
    F32 sum = F32::zero();
    for (int i = 0; i < args.num_active; ++i) sum = fma(F32::set1(shares[i]), F32::load(given_by(i) + column), sum);
    if (args.accumulate) sum = F32::load(dst + column) + sum;
    sum.store(dst + column);
  }
  for (; column < args.dst.columns; ++column) {
    float sum = 0.0f;
    for (int i = 0; i < args.num_active; ++i) sum = fmaf(shares[i], given_by(i)[column], sum);
    dst[column] = args.accumulate ? dst[column] + sum : sum;
  }
}

inline void combine(const CombineArgs& args, ThreadShare share) {
  for (int64_t row = share.thread; row < args.num_rows; row += share.num_threads) combine_row(args, row);
}

}  // namespace
}  // namespace octavo
