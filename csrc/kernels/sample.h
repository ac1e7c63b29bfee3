// Draws a token from a row of logits: softcap, mask, biases, penalties, then the largest (temperature 0), or temperature,
// min_p, top_k and top_p, in vLLM's order, and one random number keyed by seed and position; and reports the log
// probabilities that the logits had before all that. Equal logits give equal tokens on every instruction set.
#pragma once
#include "kernels.h"
#include "logprobs.h"
#include "math.h"
#include "random.h"
#include "sample_constraints.h"
#include "sample_filters.h"
#include "sample_weights.h"
#include "vec.h"

namespace octavo {
namespace {

inline void cap_logits(float* logits, int64_t count, float softcap) {
  constexpr int width = F32::width;
  F32 cap = F32::set1(softcap), inverse = F32::set1(1.0f / softcap);
  int64_t i = 0;
  for (; i + width <= count; i += width) (cap * tanh(F32::load(logits + i) * inverse)).store(logits + i);
  if (i == count) return;
  float lanes[width] = {};
  for (int64_t j = i; j < count; ++j) lanes[j - i] = logits[j];
  (cap * tanh(F32::load(lanes) * inverse)).store(lanes);
  for (int64_t j = i; j < count; ++j) logits[j] = lanes[j - i];
}

inline Largest find_largest(const float* logits, int64_t count) {
  Largest best{-INFINITY, 0};
  int64_t start = 0;
  for (int64_t first = 0; first < count; first += kSampleChunk) {
    float logit = largest_of(logits + first, chunk_at(first, count));
    if (logit > best.logit) {
      best.logit = logit;
      start = first;
    }
  }
  while (start < count && logits[start] != best.logit) ++start;
  if (start < count) best.token = int32_t(start);
  return best;
}

inline bool changes_logits(const oct_sampling& row) { return row.mask || row.num_biases > 0 || has_penalties(row); }

inline void change_logits(float* logits, int64_t count, const SampleRow& row, const SampleScratch& scratch) {
  if (row.sampling->mask) apply_mask(logits, count, row.sampling->mask);
  add_biases(logits, row);
  if (has_penalties(*row.sampling)) apply_penalties(logits, count, *row.sampling, scratch.counts);
}

inline int32_t draw(const float* logits, int64_t count, const oct_sampling& row, const SampleScratch& scratch) {
  Largest largest = find_largest(logits, count);
  bool decided = largest.logit == INFINITY || largest.logit == -INFINITY;
  if (row.temperature <= 0 || decided) return largest.token;
  WeightRule rule{largest.logit, row.temperature, row.min_p < 1 ? row.min_p : 1.0f};
  double number = uniform(row.seed, row.position);
  if (row.top_k > 0 || row.top_p < 1.0f) return draw_filtered(logits, count, row, rule, number, scratch);
  float* chunk_sums = reinterpret_cast<float*>(scratch.tokens);
  double total = weigh(logits, count, rule, scratch.weights, chunk_sums);
  return draw_from_all(scratch.weights, chunk_sums, count, number * total);
}

inline int32_t sample(float* logits, int64_t count, const SampleRow& row, const SampleScratch& scratch) {
  const oct_sampling& sampling = *row.sampling;
  if (row.softcap > 0) cap_logits(logits, count, row.softcap);
  bool reports = sampling.num_logprobs >= 0, draws = sampling.scored_token < 0;
  const float* raw = logits;
  if (reports && draws && changes_logits(sampling)) {
    memcpy(scratch.raw_logits, logits, size_t(count) * sizeof(float));
    raw = scratch.raw_logits;
  }
  int32_t token = sampling.scored_token;
  if (draws) {
    change_logits(logits, count, row, scratch);
    token = draw(logits, count, sampling, scratch);
  }
  if (reports) {
    float largest = find_largest(raw, count).logit;
    report_logprobs(raw, count, largest, token, sampling.num_logprobs, row.report, scratch);
  }
  return token;
}

}  // namespace
}  // namespace octavo
