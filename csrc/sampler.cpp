#include "sampler.h"

#include <string.h>

#include <algorithm>

#include "views.h"

namespace octavo {
namespace {

constexpr int chunk_rows = 64;  // of logits
constexpr int scratch_arrays = sizeof(SampleScratch) / sizeof(void*);
constexpr int64_t alignment = 128;  // no two threads' arrays on one pair of cache lines

int64_t aligned(int64_t bytes) { return (bytes + alignment - 1) / alignment * alignment; }

bool asks_for_largest_only(const oct_sample& op, const oct_step& step, const oct_sampling& row) {
  bool unpenalized = row.repetition_penalty == 1 && row.frequency_penalty == 0 && row.presence_penalty == 0;
  return row.temperature <= 0 && row.scored_token < 0 && row.num_logprobs < 0 && row.num_biases == 0 && !row.mask &&
         unpenalized && op.softcap == 0 && !step.logits;
}

}  // namespace

Sampler::Sampler(const Kernels& kernels, Team& team, int64_t num_logits, int max_rows)
    : kernels_(kernels), team_(team), num_logits_(num_logits), max_rows_(aligned(max_rows)) {
  if (num_logits == 0) return;
  int64_t row_bytes = aligned(num_logits * int64_t(sizeof(float)));
  logits_stride_ = row_bytes / int64_t(sizeof(float));
  int64_t logits_bytes = std::min(chunk_rows, max_rows) * row_bytes;
  int64_t scratch_bytes = team.num_threads() * scratch_arrays * row_bytes;
  int64_t slots_bytes = team.num_threads() * max_rows_ * int64_t(sizeof(int32_t));
  int64_t largest_bytes = team.num_threads() * max_rows_ * int64_t(sizeof(Largest));
  arena_ = Arena(size_t(logits_bytes + scratch_bytes + slots_bytes + largest_bytes));
  logits_ = reinterpret_cast<float*>(arena_.data());
  scratch_ = reinterpret_cast<float*>(arena_.data() + logits_bytes);
  slots_ = reinterpret_cast<int32_t*>(arena_.data() + logits_bytes + scratch_bytes);
  largest_ = reinterpret_cast<Largest*>(arena_.data() + logits_bytes + scratch_bytes + slots_bytes);
}

void Sampler::run(const oct_sample& op, const Operand& src, const oct_step& step, ThreadShare share) {
  for (int first = 0; first < step.num_logit_rows;) {
    if (first > 0) team_.barrier();  // the chunk before has been sampled
    int32_t* slots = this->slots(share.thread);
    Chunk chunk = assign_slots(op, step, first, slots);
    kernels_.head({rows_from(src, first), chunk.last - first, op.weight, slots,
                   {logits_, logits_stride_, int32_t(num_logits_)}, largest(share.thread)},
                  share);
    team_.barrier();
    for (int row = first + share.thread; row < chunk.last; row += share.num_threads) {
      int32_t slot = slots[row - first];
      if (slot < 0) {
        step.sampled_token_ids[row] = largest_of_all_threads(row - first).token;
      } else {
        sample_row(op, step, row, logits_ + slot * logits_stride_, share.thread);
      }
    }
    first = chunk.last;
  }
}

// As many rows from `first` on as there is room for the logits of.
Sampler::Chunk Sampler::assign_slots(const oct_sample& op, const oct_step& step, int first, int32_t* slots) const {
  int32_t num_used = 0;
  int row = first;
  for (; row < step.num_logit_rows; ++row) {
    bool plain = asks_for_largest_only(op, step, step.sampling[row]);
    if (!plain && num_used == chunk_rows) break;
    slots[row - first] = plain ? -1 : num_used++;
  }
  return {first, row};
}

Largest Sampler::largest_of_all_threads(int row) const {
  Largest best = largest(0)[row];
  for (int thread = 1; thread < team_.num_threads(); ++thread) {
    const Largest& other = largest(thread)[row];
    if (other.logit > best.logit || (other.logit == best.logit && other.token < best.token)) best = other;
  }
  return best;
}

void Sampler::sample_row(const oct_sample& op, const oct_step& step, int row, float* logits, int thread) {
  const oct_sampling& sampling = step.sampling[row];
  float* scratch = scratch_ + thread * scratch_arrays * logits_stride_;
  SampleRow args{&sampling,
                 op.softcap,
                 step.bias_token_ids + sampling.first_bias,
                 step.bias_values + sampling.first_bias,
                 {step.logprobs + row, step.ranks + row, step.top_token_ids + sampling.first_logprob,
                  step.top_logprobs + sampling.first_logprob}};
  SampleScratch arrays{scratch, reinterpret_cast<int32_t*>(scratch + logits_stride_), scratch + 2 * logits_stride_,
                       reinterpret_cast<int32_t*>(scratch + 3 * logits_stride_)};
  step.sampled_token_ids[row] = kernels_.sample(logits, num_logits_, args, arrays);
  if (step.logits) memcpy(step.logits + row * num_logits_, logits, size_t(num_logits_) * sizeof(float));
}

}  // namespace octavo
