// A program: checked instructions, the arena of their buffers, and the walk over them that is one step.
#pragma once
#include <vector>

#include "arena.h"
#include "context.h"
#include "kernels/kernels.h"
#include "kv.h"
#include "sampler.h"
#include "validate.h"

struct oct_program {
  oct_program(oct_context& context, const oct_kv_cache* kv, std::vector<oct_buffer> buffers,
              std::vector<oct_instruction> instructions, int max_tokens, int max_logit_rows,
              int max_blocks);

  void run(const oct_step& step);
  float* matrix_data(int buffer) const;
  void profile(oct_instruction_time* times) { times_ = times; }
  int64_t arena_bytes() const { return int64_t(arena_.bytes()) + sampler_.bytes(); }

 private:
  using ThreadShare = octavo::ThreadShare;

  void lay_out_arena();
  int64_t attention_scratch_bytes() const;
  int64_t attention_shared_bytes() const;
  int64_t moe_scratch_bytes() const;

  void walk(const oct_step& step, ThreadShare share);
  void walk_timed(const oct_step& step, ThreadShare share, oct_instruction_time* times);
  void execute(const oct_instruction& instruction, const oct_step& step, ThreadShare share);
  void execute(const oct_embed& op, const oct_step& step, ThreadShare share);
  void execute(const oct_rotary_table& op, const oct_step& step, ThreadShare share);
  void execute(const oct_rms_norm& op, const oct_step& step, ThreadShare share);
  void execute(const oct_quantize& op, const oct_step& step, ThreadShare share);
  void execute(const oct_linear& op, const oct_step& step, ThreadShare share);
  void execute(const oct_gated_linear& op, const oct_step& step, ThreadShare share);
  void execute(const oct_rope_kv& op, const oct_step& step, ThreadShare share);
  void execute(const oct_attention& op, const oct_step& step, ThreadShare share);
  void execute(const oct_select_rows& op, const oct_step& step, ThreadShare share);
  void execute(const oct_moe& op, const oct_step& step, ThreadShare share);
  void execute(const oct_sample& op, const oct_step& step, ThreadShare share);

  octavo::Matrix matrix(int buffer) const;
  octavo::Operand operand(int buffer) const;
  octavo::Destination destination(int buffer) const;
  int num_rows(int buffer, const oct_step& step) const;

  oct_context& context_;
  const oct_kv_cache* kv_;
  const std::vector<oct_buffer> buffers_;
  const std::vector<oct_instruction> instructions_;
  octavo::StepLimits limits_;
  octavo::Sampler sampler_;

  oct_instruction_time* times_ = nullptr;  // [threads][instructions], while profiled

  octavo::Arena arena_;
  std::vector<uint8_t*> buffer_data_;
  std::vector<int64_t> row_bytes_;
  int64_t attention_scratch_stride_ = 0;
  uint8_t* attention_scratch_ = nullptr;  // [threads, attention_scratch_stride_]
  uint8_t* attention_shared_ = nullptr;
  uint8_t* moe_scratch_ = nullptr;
};
