// The weights of a row of logits, exp((logit - largest) / temperature), so the largest is 1 and nothing overflows. Sums
// are made in sixteen lanes on every instruction set: equal logits give equal sums.
#pragma once
#include "math.h"
#include "vec.h"

namespace octavo {
namespace {

constexpr int kSampleChunk = 256;  // logits; a whole number of vectors

inline int64_t chunk_at(int64_t first, int64_t count) {
  return count - first < kSampleChunk ? count - first : kSampleChunk;
}

inline float largest_of(const float* logits, int64_t count) {
  constexpr int width = F32::width;
  F32 lanes = F32::set1(-INFINITY);
  int64_t i = 0;
  for (; i + width <= count; i += width) lanes = max(F32::load(logits + i), lanes);  // NaN leaves the lane as it is
  float largest = lanes.max();
  for (; i < count; ++i) largest = logits[i] > largest ? logits[i] : largest;
  return largest;
}

struct WeightRule {
  float largest;
  float temperature;
  float min_p;  // lighter ones weigh 0: the largest weighs 1
};

// A vector of logits to weights; NaN weighs 0.
inline F32 weights_of(F32 logits, const WeightRule& rule) {
  return exp((max(logits, F32::set1(-INFINITY)) - F32::set1(rule.largest)) / F32::set1(rule.temperature));
}

// The weights of up to kSampleChunk logits, and their sum.
inline float weigh_chunk(const float* logits, int64_t count, const WeightRule& rule, float* weights) {
  constexpr int width = F32::width, lanes = 16;
  float padded[kSampleChunk];
  const float* src = logits;
  if (count % lanes != 0) {
    memcpy(padded, logits, size_t(count) * sizeof(float));
    for (int64_t i = count; i < kSampleChunk; ++i) padded[i] = -INFINITY;
    src = padded;
  }
  float weighed[kSampleChunk], sums[lanes] = {};
  int64_t end = (count + lanes - 1) / lanes * lanes;
  for (int64_t i = 0; i < end; i += width) weights_of(F32::load(src + i), rule).store(weighed + i);
  for (int64_t i = 0; i < end; i += lanes) {
    for (int lane = 0; lane < lanes; ++lane) {
      float weight = weighed[i + lane] < rule.min_p ? 0.0f : weighed[i + lane];
      weighed[i + lane] = weight;
      sums[lane] += weight;
    }
  }
  memcpy(weights, weighed, size_t(count) * sizeof(float));
  for (int half = lanes / 2; half > 0; half /= 2) {
    for (int lane = 0; lane < half; ++lane) sums[lane] += sums[lane + half];
  }
  return sums[0];
}

// All weights; chunk_sums may be null. Returns the total.
inline double weigh(const float* logits, int64_t count, const WeightRule& rule, float* weights, float* chunk_sums) {
  double total = 0;
  for (int64_t first = 0; first < count; first += kSampleChunk) {
    float sum = weigh_chunk(logits + first, chunk_at(first, count), rule, weights + first);
    if (chunk_sums) chunk_sums[first / kSampleChunk] = sum;
    total += sum;
  }
  return total;
}

// The token at `target` in the running sum of all weights.
inline int32_t draw_from_all(const float* weights, const float* chunk_sums, int64_t count, double target) {
  double before = 0;
  int64_t chunk = 0, last_chunk = (count - 1) / kSampleChunk;
  for (int64_t next = 0; next <= last_chunk; ++next) {
    if (chunk_sums[next] > 0) chunk = next;
    if (before + chunk_sums[next] > target) break;
    before += chunk_sums[next];
  }
  int64_t first = chunk * kSampleChunk, end = first + chunk_at(first, count);
  int64_t token = first;
  for (int64_t i = first; i < end; ++i) {
    if (weights[i] > 0) token = i;
    before += weights[i];
    if (before > target) break;
  }
  return int32_t(token);
}

}  // namespace
}  // namespace octavo
