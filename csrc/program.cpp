#include "program.h"

#include <string.h>

#include <algorithm>
#include <chrono>
#include <string>

#include "error.h"
#include "moe.h"
#include "views.h"

using octavo::Error;
using octavo::guarded;

namespace octavo {
namespace {

constexpr int64_t alignment = 128;  // no two threads' scratch on one pair of cache lines

int64_t aligned(int64_t bytes) { return (bytes + alignment - 1) / alignment * alignment; }

int64_t now_ns() {
  return std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count();
}

Batch batch_of(const oct_step& step, int group) {
  const int32_t* block_tables = step.block_tables + int64_t(group) * step.num_table_rows * step.max_blocks;
  return {step.num_tokens, step.num_requests, step.positions, step.query_starts,
          block_tables,    step.table_rows,   step.max_blocks};
}

}  // namespace
}  // namespace octavo

oct_program::oct_program(oct_context& context, const oct_kv_cache* kv, std::vector<oct_buffer> buffers,
                         std::vector<oct_instruction> instructions, int max_tokens, int max_logit_rows,
                         int max_blocks)
    : context_(context),
      kv_(kv),
      buffers_(std::move(buffers)),
      instructions_(std::move(instructions)),
      limits_(octavo::validate_program({context.kernels, kv, buffers_, instructions_}, max_tokens, max_logit_rows,
                                       max_blocks)),
      sampler_(context.kernels, context.team, limits_.num_logits, max_logit_rows) {
  lay_out_arena();
}

int64_t oct_program::attention_scratch_bytes() const {
  int64_t bytes = 0;
  for (const oct_instruction& instruction : instructions_) {
    if (instruction.op != OCT_OP_ATTENTION) continue;
    const oct_attention& op = instruction.attention;
    bytes = std::max(bytes,
                     context_.kernels.attention_scratch_bytes(op.num_heads, op.num_kv_heads, op.head_size));
  }
  return bytes;
}

int64_t oct_program::attention_shared_bytes() const {
  int64_t bytes = 0;
  for (const oct_instruction& instruction : instructions_) {
    if (instruction.op != OCT_OP_ATTENTION) continue;
    const oct_attention& op = instruction.attention;
    bytes = std::max(bytes, context_.kernels.attention_shared_bytes(op.num_heads, op.num_kv_heads, op.head_size,
                                                                    limits_.max_blocks, context_.team.num_threads()));
  }
  return bytes;
}

int64_t oct_program::moe_scratch_bytes() const {
  int64_t bytes = 0;
  for (const oct_instruction& instruction : instructions_) {
    if (instruction.op != OCT_OP_MOE) continue;
    int max_rows = std::max(limits_.max_tokens, limits_.max_logit_rows);
    bytes = std::max(bytes, octavo::moe_scratch_bytes(instruction.moe, context_.kernels, max_rows));
  }
  return bytes;
}

void oct_program::lay_out_arena() {
  struct Piece {
    int64_t offset, bytes, end;
  };
  std::vector<Piece> pieces;
  int64_t used = 0;
  auto reserve = [&](int64_t bytes) {
    int64_t offset = used;
    used += octavo::aligned(bytes + int64_t(octavo::guard_gap_bytes));
    pieces.push_back({offset, bytes, used});
    return offset;
  };
  std::vector<int64_t> offsets;
  for (const oct_buffer& buffer : buffers_) {
    int rows = buffer.row_space == OCT_ROWS_TOKENS ? limits_.max_tokens : limits_.max_logit_rows;
    row_bytes_.push_back(buffer.kind == OCT_BUFFER_F32
                             ? buffer.columns * int64_t(sizeof(float))
                             : context_.kernels.operand_row_bytes(buffer.kind, buffer.columns));
    offsets.push_back(reserve(rows * row_bytes_.back()));
  }
  int num_threads = context_.team.num_threads();
  attention_scratch_stride_ = octavo::aligned(attention_scratch_bytes());
  int64_t attention_scratch = reserve(num_threads * attention_scratch_stride_);
  int64_t attention_shared = reserve(attention_shared_bytes());
  int64_t moe_scratch = reserve(moe_scratch_bytes());

  arena_ = octavo::Arena(size_t(std::max(used, octavo::alignment)));
  for (const Piece& piece : pieces) {
    octavo::guard_bytes(arena_.data() + piece.offset + piece.bytes, size_t(piece.end - piece.offset - piece.bytes));
  }
  for (int64_t offset : offsets) buffer_data_.push_back(arena_.data() + offset);
  attention_scratch_ = arena_.data() + attention_scratch;
  attention_shared_ = arena_.data() + attention_shared;
  moe_scratch_ = arena_.data() + moe_scratch;
}

float* oct_program::matrix_data(int buffer) const {
  if (buffer < 0 || size_t(buffer) >= buffers_.size() || buffers_[size_t(buffer)].kind != OCT_BUFFER_F32) {
    throw Error("buffer " + std::to_string(buffer) + " is not an fp32 buffer of this program");
  }
  return matrix(buffer).data;
}

octavo::Matrix oct_program::matrix(int buffer) const {
  int32_t columns = buffers_[size_t(buffer)].columns;
  return {reinterpret_cast<float*>(buffer_data_[size_t(buffer)]), columns, columns};
}

octavo::Operand oct_program::operand(int buffer) const {
  const oct_buffer& declared = buffers_[size_t(buffer)];
  return {declared.kind, declared.columns, row_bytes_[size_t(buffer)], buffer_data_[size_t(buffer)]};
}

octavo::Destination oct_program::destination(int buffer) const {
  octavo::Destination destination{};
  if (buffers_[size_t(buffer)].kind == OCT_BUFFER_F32) {
    destination.matrix = matrix(buffer);
  } else {
    destination.operand = operand(buffer);
  }
  return destination;
}

int oct_program::num_rows(int buffer, const oct_step& step) const {
  return buffers_[size_t(buffer)].row_space == OCT_ROWS_TOKENS ? step.num_tokens : step.num_logit_rows;
}

void oct_program::run(const oct_step& step) {
  octavo::validate_step(step, limits_);
  if (step.num_tokens == 0 && step.num_copies == 0) return;
  int num_threads = context_.team.num_threads();
  context_.team.run([&](int thread) { walk(step, {thread, num_threads}); });
}

void oct_program::walk(const oct_step& step, ThreadShare share) {
  if (step.num_copies > 0) {
    kv_->copy_blocks(step, share);
    context_.team.barrier();
  }
  if (step.num_tokens == 0) return;
  if (times_) return walk_timed(step, share, times_ + size_t(share.thread) * instructions_.size());
  for (const oct_instruction& instruction : instructions_) {
    execute(instruction, step, share);
    if (instruction.barrier) context_.team.barrier();
  }
}

void oct_program::walk_timed(const oct_step& step, ThreadShare share, oct_instruction_time* times) {
  int64_t began = octavo::now_ns();
  for (const oct_instruction& instruction : instructions_) {
    execute(instruction, step, share);
    int64_t worked = octavo::now_ns();
    if (instruction.barrier) context_.team.barrier();
    int64_t waited = octavo::now_ns();
    times->work_ns += worked - began;
    times->wait_ns += waited - worked;
    began = waited;
    ++times;
  }
}

void oct_program::execute(const oct_instruction& instruction, const oct_step& step, ThreadShare share) {
  switch (instruction.op) {
    case OCT_OP_EMBED: return execute(instruction.embed, step, share);
    case OCT_OP_ROTARY_TABLE: return execute(instruction.rotary_table, step, share);
    case OCT_OP_RMS_NORM: return execute(instruction.rms_norm, step, share);
    case OCT_OP_QUANTIZE: return execute(instruction.quantize, step, share);
    case OCT_OP_LINEAR: return execute(instruction.linear, step, share);
    case OCT_OP_GATED_LINEAR: return execute(instruction.gated_linear, step, share);
    case OCT_OP_ROPE_KV: return execute(instruction.rope_kv, step, share);
    case OCT_OP_ATTENTION: return execute(instruction.attention, step, share);
    case OCT_OP_SELECT_ROWS: return execute(instruction.select_rows, step, share);
    case OCT_OP_SAMPLE: return execute(instruction.sample, step, share);
    case OCT_OP_MOE: return execute(instruction.moe, step, share);
  }
}

void oct_program::execute(const oct_embed& op, const oct_step& step, ThreadShare share) {
  context_.kernels.embed({op.weight, step.token_ids, step.num_tokens, op.scale, matrix(op.dst)}, share);
}

void oct_program::execute(const oct_rotary_table& op, const oct_step& step, ThreadShare share) {
  context_.kernels.rotary_table({step.positions, step.num_tokens, op.inverse_frequencies, op.num_frequencies,
                                 op.magnitude, matrix(op.dst)},
                                share);
}

void oct_program::execute(const oct_rms_norm& op, const oct_step& step, ThreadShare share) {
  int rows = num_rows(op.src, step);
  if (rows == 0) return;
  octavo::Destination dst = destination(op.dst);
  if (op.dst2 != -1) (dst.operand.data ? dst.operand2 : dst.operand) = operand(op.dst2);
  context_.kernels.rms_norm({matrix(op.src), rows, op.weight, op.epsilon, op.accumulate != 0, dst}, share);
}

void oct_program::execute(const oct_quantize& op, const oct_step& step, ThreadShare share) {
  int rows = num_rows(op.src, step);
  if (rows > 0) context_.kernels.quantize({matrix(op.src), rows, operand(op.dst)}, share);
}

void oct_program::execute(const oct_linear& op, const oct_step& step, ThreadShare share) {
  int rows = num_rows(op.src, step);
  if (rows == 0) return;
  octavo::Matrix dst = octavo::columns_from(matrix(op.dst), op.dst_column, op.weight->num_rows);
  context_.kernels.linear({operand(op.src), rows, op.weight, op.bias, op.accumulate != 0, dst}, share);
}

void oct_program::execute(const oct_gated_linear& op, const oct_step& step, ThreadShare share) {
  int rows = num_rows(op.src, step);
  if (rows == 0) return;
  octavo::Operand src_up = operand(op.src_up == -1 ? op.src : op.src_up);
  context_.kernels.gated_linear(
      {operand(op.src), src_up, rows, op.gate, op.up, op.activation, destination(op.dst)}, share);
}

void oct_program::execute(const oct_rope_kv& op, const oct_step& step, ThreadShare share) {
  octavo::Matrix rotary = op.rotary == -1 ? octavo::Matrix{} : matrix(op.rotary);
  context_.kernels.rope_kv({matrix(op.qkv), rotary, op.q_norm, op.k_norm, op.key_divisors, op.epsilon, op.num_heads,
                            kv_->layer(op.kv_layer), octavo::batch_of(step, kv_->group_of(op.kv_layer))},
                           share);
}

void oct_program::execute(const oct_attention& op, const oct_step& step, ThreadShare share) {
  context_.kernels.attention({matrix(op.qkv), destination(op.dst), op.num_heads, op.scale, op.softcap, op.sinks,
                              kv_->layer(op.kv_layer), octavo::batch_of(step, kv_->group_of(op.kv_layer)),
                              attention_scratch_ + share.thread * attention_scratch_stride_, attention_shared_},
                             share);
}

void oct_program::execute(const oct_select_rows& op, const oct_step& step, ThreadShare share) {
  octavo::Matrix src = matrix(op.src), dst = matrix(op.dst);
  for (int row = share.thread; row < step.num_logit_rows; row += share.num_threads) {
    memcpy(dst.data + row * dst.stride, src.data + step.logit_rows[row] * src.stride, size_t(src.columns) * sizeof(float));
  }
}

void oct_program::execute(const oct_moe& op, const oct_step& step, ThreadShare share) {
  int rows = num_rows(op.src, step);
  if (rows > 0) octavo::run_moe(op, matrix(op.src), matrix(op.dst), rows, moe_scratch_, context_, share);
}

void oct_program::execute(const oct_sample& op, const oct_step& step, ThreadShare share) {
  sampler_.run(op, operand(op.src), step, share);
}

extern "C" {

oct_program* oct_program_create(oct_context* context, oct_kv_cache* kv, const oct_buffer* buffers, int num_buffers,
                                const oct_instruction* instructions, int num_instructions, int max_tokens,
                                int max_logit_rows, int max_blocks) {
  return guarded<oct_program*>(nullptr, [&] {
    return new oct_program(*context, kv, std::vector<oct_buffer>(buffers, buffers + num_buffers),
                           std::vector<oct_instruction>(instructions, instructions + num_instructions), max_tokens,
                           max_logit_rows, max_blocks);
  });
}

int64_t oct_program_arena_bytes(const oct_program* program) { return program->arena_bytes(); }

float* oct_program_buffer(oct_program* program, int buffer) {
  return guarded<float*>(nullptr, [&] { return program->matrix_data(buffer); });
}

void oct_program_profile(oct_program* program, oct_instruction_time* times) { program->profile(times); }

void oct_program_destroy(oct_program* program) { delete program; }

int oct_run(oct_program* program, const oct_step* step) {
  return guarded(-1, [&] {
    program->run(*step);
    return 0;
  });
}

}  // extern "C"
