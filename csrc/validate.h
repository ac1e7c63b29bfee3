// Checks done once when a program is made, so that running it can trust every number in it, and the cheap ones done on
// every step, so that a wrong step is an error and never a touch of foreign memory.
#pragma once
#include <vector>

#include "kernels/kernels.h"
#include "kv.h"

namespace octavo {

struct ProgramParts {
  const Kernels& kernels;
  const oct_kv_cache* kv;  // may be nullptr when no instruction uses it
  const std::vector<oct_buffer>& buffers;
  const std::vector<oct_instruction>& instructions;
};

// What a step may contain, found while checking the program.
struct StepLimits {
  int max_tokens = 0;
  int max_logit_rows = 0;
  int max_blocks = 0;         // of a request
  int64_t num_token_ids = 0;  // rows of the smallest embedding; 0: the program reads no token ids
  int64_t num_logits = 0;     // rows of the head; 0: the program does not sample
  std::vector<oct_kv_group> kv_groups;  // empty: the program does not use the KV cache
};

const char* op_name(int op);

// Throws Error naming the instruction, the buffer and what is wrong.
StepLimits validate_program(const ProgramParts& parts, int max_tokens, int max_logit_rows, int max_blocks);

// Throws Error naming the entry of the step that is out of range.
void validate_step(const oct_step& step, const StepLimits& limits);

}  // namespace octavo
