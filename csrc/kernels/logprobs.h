// Natural log probabilities of a row of logits: of one token with its rank, and of the k likeliest. Nothing but a chunk of
// rows of logits is ever in memory.
#pragma once
#include "kernels.h"
#include "sample_filters.h"
#include "sample_weights.h"

namespace octavo {
namespace {

constexpr float kLowestLogprob = -9999.0f;  // as OpenAI reports what is next to impossible; JSON knows no infinity

inline float finite_logprob(double logprob) { return logprob >= kLowestLogprob ? float(logprob) : kLowestLogprob; }

// 1 and up; of equal logits the lower index ranks first.
inline int32_t rank_of(const float* logits, int64_t count, int32_t token) {
  float logit = logits[token];
  int32_t before = 0;
  for (int64_t i = 0; i < token; ++i) before += logits[i] >= logit;
  for (int64_t i = token + 1; i < count; ++i) before += logits[i] > logit;
  return before + 1;
}

inline void sort_by_rank(const float* logits, int32_t* tokens, int64_t first, int64_t end) {
  while (end - first > 1) {
    int64_t pivot = partition_by_rank(logits, tokens, first, end);
    if (pivot - first < end - pivot - 1) {
      sort_by_rank(logits, tokens, first, pivot);
      first = pivot + 1;
    } else {
      sort_by_rank(logits, tokens, pivot + 1, end);
      end = pivot;
    }
  }
}

// Tokens whose logit is at least `threshold`, by index.
inline int64_t gather_at_least(const float* logits, int64_t count, float threshold, int32_t* tokens) {
  int64_t found = 0;
  for (int64_t first = 0; first < count; first += kStretch) {
    int64_t end = stretch_end(first, count);
    if (largest_of(logits + first, end - first) < threshold) continue;
    for (int64_t i = first; i < end; ++i) {
      tokens[found] = int32_t(i);
      found += int(logits[i] >= threshold);
    }
  }
  return found;
}

// The k likeliest tokens to the front of `tokens`, likeliest first. Returns how many there are: fewer than k for NaN.
inline int64_t find_likeliest(const float* logits, int64_t count, int64_t k, int32_t* tokens) {
  float threshold = reached_by_k(logits, count, k, tokens);
  int64_t found = gather_at_least(logits, count, threshold, tokens);
  if (found > k) {
    logit_of_rank(logits, tokens, found, k);
    found = k;
  }
  sort_by_rank(logits, tokens, 0, found);
  return found;
}

inline void report_logprobs(const float* logits, int64_t count, float largest, int32_t token, int32_t num_top,
                            const LogprobReport& report, const SampleScratch& scratch) {
  double total = weigh(logits, count, {largest, 1.0f, 0.0f}, scratch.weights, nullptr);
  double normalizer = double(largest) + log(total);
  *report.logprob = finite_logprob(double(logits[token]) - normalizer);
  *report.rank = rank_of(logits, count, token);
  if (num_top == 0) return;
  int64_t found = find_likeliest(logits, count, num_top, scratch.tokens);
  for (int64_t i = 0; i < num_top; ++i) {
    report.top_token_ids[i] = i < found ? scratch.tokens[i] : -1;
    report.top_logprobs[i] = i < found ? finite_logprob(double(logits[scratch.tokens[i]]) - normalizer) : kLowestLogprob;
  }
}

}  // namespace
}  // namespace octavo
