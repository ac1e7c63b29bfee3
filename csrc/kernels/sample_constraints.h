// What a request does to its logits before temperature: mask, biases, penalties.
#pragma once
#include "kernels.h"
#include "vec.h"

namespace octavo {
namespace {

inline void apply_mask(float* logits, int64_t count, const uint32_t* mask) {
  int64_t first = 0;
  for (; first + 32 <= count; first += 32) {
    uint32_t allowed = mask[first / 32];
    if (allowed == 0xffffffffu) continue;
    for (int bit = 0; bit < 32; ++bit) {  // so many that the compiler makes vectors of them
      logits[first + bit] = (allowed >> bit & 1) ? logits[first + bit] : -INFINITY;
    }
  }
  for (int64_t i = first; i < count; ++i) {
    if (!(mask[i / 32] >> (i % 32) & 1)) logits[i] = -INFINITY;
  }
}

inline void add_biases(float* logits, const SampleRow& row) {
  for (int i = 0; i < row.sampling->num_biases; ++i) logits[row.bias_token_ids[i]] += row.bias_values[i];
}

inline bool has_penalties(const oct_sampling& row) {
  return row.repetition_penalty != 1.0f || row.frequency_penalty != 0.0f || row.presence_penalty != 0.0f;
}

inline float penalize_repetition(float logit, float penalty) { return logit > 0 ? logit / penalty : logit * penalty; }

// The tokens of the request, without those the head has no logit for.
template <class Body>
inline void for_tokens(const int32_t* tokens, int64_t num_tokens, int64_t count, Body body) {
  for (int64_t i = 0; i < num_tokens; ++i) {
    if (tokens[i] >= 0 && tokens[i] < count) body(tokens[i]);
  }
}

// As vLLM defines them: repetition over prompt and output, then frequency and presence over the output. Counted afresh
// from the tokens, so there is no state to keep right; a token already dealt with counts -1.
inline void apply_penalties(float* logits, int64_t count, const oct_sampling& row, int32_t* counts) {
  const int32_t* output = row.token_ids + row.num_prompt_tokens;
  int64_t num_output = row.position - row.num_prompt_tokens;
  for_tokens(output, num_output, count, [&](int32_t token) { ++counts[token]; });
  for_tokens(output, num_output, count, [&](int32_t token) {
    if (counts[token] <= 0) return;
    float logit = penalize_repetition(logits[token], row.repetition_penalty);
    logits[token] = logit - row.frequency_penalty * float(counts[token]) - row.presence_penalty;
    counts[token] = -1;
  });
  int64_t num_prompt = row.repetition_penalty != 1.0f ? row.num_prompt_tokens : 0;
  for_tokens(row.token_ids, num_prompt, count, [&](int32_t token) {
    if (counts[token] == 0) logits[token] = penalize_repetition(logits[token], row.repetition_penalty);
    counts[token] = -1;
  });
  for_tokens(output, num_output, count, [&](int32_t token) { counts[token] = 0; });
  for_tokens(row.token_ids, num_prompt, count, [&](int32_t token) { counts[token] = 0; });
}

}  // namespace
}  // namespace octavo
