// The end of a step: logits by the head's weight, and of each row a token. Rows of which only the largest logit is asked
// keep nothing else; the logits of the others are in memory a chunk of rows at a time.
#pragma once
#include "arena.h"
#include "kernels/kernels.h"
#include "team.h"

namespace octavo {

class Sampler {
 public:
  // For at most max_rows rows of num_logits logits each; num_logits 0 is a program that does not sample.
  Sampler(const Kernels& kernels, Team& team, int64_t num_logits, int max_rows);

  // Called by all threads of the team. `src` has a row for each logit row of the step.
  void run(const oct_sample& op, const Operand& src, const oct_step& step, ThreadShare share);

  int64_t bytes() const { return int64_t(arena_.bytes()); }

 private:
  // Rows [first, last) of the step, computed together.
  struct Chunk {
    int first, last;
  };

  Chunk assign_slots(const oct_sample& op, const oct_step& step, int first, int32_t* slots) const;
  void sample_row(const oct_sample& op, const oct_step& step, int row, float* logits, int thread);
  Largest largest_of_all_threads(int row) const;

  int32_t* slots(int thread) const { return slots_ + int64_t(thread) * max_rows_; }
  Largest* largest(int thread) const { return largest_ + int64_t(thread) * max_rows_; }

  const Kernels& kernels_;
  Team& team_;
  const int64_t num_logits_;
  const int64_t max_rows_;
  Arena arena_;
  int64_t logits_stride_ = 0;
  float* logits_ = nullptr;     // [rows of a chunk, logits_stride_]
  float* scratch_ = nullptr;    // [threads, arrays of SampleScratch, logits_stride_]
  int32_t* slots_ = nullptr;    // [threads, max_rows_]: where in a chunk the logits of a row go; -1: nowhere
  Largest* largest_ = nullptr;  // [threads, max_rows_]
};

}  // namespace octavo
