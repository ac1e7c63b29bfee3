#include "moe.h"

#include <string.h>

#include "views.h"

namespace octavo {
namespace {

constexpr int64_t alignment = 128;

int64_t aligned(int64_t bytes) { return (bytes + alignment - 1) / alignment * alignment; }

// The input of the experts comes from a norm, whose outliers are kept apart; what they compute in between is written a few
// columns at a time.
int input_kind(const oct_weight& weight) {
  return weight.layout == OCT_LAYOUT_BF16 ? OCT_BUFFER_OPERAND_BF16 : OCT_BUFFER_OPERAND_INT8_OUTLIERS;
}
int hidden_kind(const oct_weight& weight) {
  return weight.layout == OCT_LAYOUT_BF16 ? OCT_BUFFER_OPERAND_BF16 : OCT_BUFFER_OPERAND_INT8;
}

// Everything between the steps. A slot is a row sent to one of its experts; slots are sorted by expert.
struct Scratch {
  int32_t* experts;  // [rows, active]
  float* shares;     // [rows, active]
  int32_t* slots;    // [rows, active]
  Operand inputs;    // [slots]
  Operand up_inputs;  // the same again if ups take another kind than gates
  Operand hidden;    // [slots]
  Matrix outputs;    // [slots]
  int64_t bytes;
};

Scratch lay_out(const oct_moe& op, const Kernels& kernels, int num_rows, uint8_t* data) {
  int64_t num_slots = int64_t(num_rows) * op.num_active, used = 0;
  auto reserve = [&](int64_t bytes) {
    uint8_t* start = data + used;
    used += aligned(bytes);
    return start;
  };
  auto operand = [&](int kind, int64_t columns) {
    int64_t row_bytes = kernels.operand_row_bytes(kind, columns);
    return Operand{kind, int32_t(columns), row_bytes, reserve(num_slots * row_bytes)};
  };
  const oct_weight &gate = *op.gates[0], &up = *op.ups[0], &down = *op.downs[0];
  Scratch scratch;
  scratch.experts = reinterpret_cast<int32_t*>(reserve(num_slots * int64_t(sizeof(int32_t))));
  scratch.shares = reinterpret_cast<float*>(reserve(num_slots * int64_t(sizeof(float))));
  scratch.slots = reinterpret_cast<int32_t*>(reserve(num_slots * int64_t(sizeof(int32_t))));
  scratch.inputs = operand(input_kind(gate), gate.num_columns);
  scratch.up_inputs = input_kind(up) == input_kind(gate) ? scratch.inputs : operand(input_kind(up), up.num_columns);
  scratch.hidden = operand(hidden_kind(down), down.num_columns);
  float* outputs = reinterpret_cast<float*>(reserve(num_slots * down.num_rows * int64_t(sizeof(float))));
  scratch.outputs = {outputs, down.num_rows, int32_t(down.num_rows)};
  scratch.bytes = used;
  return scratch;
}

// first[e] is the first slot of expert e; first[num_experts] is their number.
struct SlotRanges {
  int32_t first[OCT_MAX_EXPERTS + 1] = {};

  SlotRanges(const int32_t* experts, int64_t num_slots, int num_experts) {
    for (int64_t i = 0; i < num_slots; ++i) ++first[experts[i] + 1];
    for (int e = 0; e < num_experts; ++e) first[e + 1] += first[e];
  }
};

// A row of `src` as an operand in each of its slots.
void write_slots(Matrix src, int64_t row, Operand dst, const int32_t* slots, int num_slots, const Kernels& kernels) {
  Operand first = rows_from(dst, slots[0]);
  kernels.quantize({rows_from(src, row), 1, first}, {0, 1});
  for (int i = 1; i < num_slots; ++i) {
    memcpy(rows_from(dst, slots[i]).data, first.data, size_t(first.row_bytes));
  }
}

// The rows of this thread as operands in their slots. Slots of an expert are in the order of rows.
void sort_rows(const oct_moe& op, Matrix src, int num_rows, const Scratch& scratch, const SlotRanges& ranges,
               const Kernels& kernels, ThreadShare share) {
  int32_t next[OCT_MAX_EXPERTS];
  memcpy(next, ranges.first, sizeof next);
  int64_t first = int64_t(num_rows) * share.thread / share.num_threads;
  int64_t last = int64_t(num_rows) * (share.thread + 1) / share.num_threads;
  for (int64_t i = 0; i < first * op.num_active; ++i) ++next[scratch.experts[i]];
  for (int64_t row = first; row < last; ++row) {
    const int32_t* experts = scratch.experts + row * op.num_active;
    int32_t* slots = scratch.slots + row * op.num_active;
    for (int i = 0; i < op.num_active; ++i) slots[i] = next[experts[i]]++;
    write_slots(src, row, scratch.inputs, slots, op.num_active, kernels);
    if (scratch.up_inputs.data != scratch.inputs.data) {
      write_slots(src, row, scratch.up_inputs, slots, op.num_active, kernels);
    }
  }
}

// Calls body(expert, first slot, number of slots) for each expert that has any.
template <class Body>
void for_experts(const SlotRanges& ranges, int num_experts, Body body) {
  for (int e = 0; e < num_experts; ++e) {
    int32_t count = ranges.first[e + 1] - ranges.first[e];
    if (count > 0) body(e, ranges.first[e], count);
  }
}

}  // namespace

int64_t moe_scratch_bytes(const oct_moe& op, const Kernels& kernels, int max_rows) {
  return lay_out(op, kernels, max_rows, nullptr).bytes;
}

void run_moe(const oct_moe& op, Matrix src, Matrix dst, int num_rows, uint8_t* data, oct_context& context,
             ThreadShare share) {
  const Kernels& kernels = context.kernels;
  Scratch scratch = lay_out(op, kernels, num_rows, data);
  kernels.route({src, num_rows, op.router, op.num_experts, op.num_active, op.renormalise != 0, scratch.experts,
                 scratch.shares},
                share);
  context.team.barrier();
  SlotRanges ranges(scratch.experts, int64_t(num_rows) * op.num_active, op.num_experts);
  sort_rows(op, src, num_rows, scratch, ranges, kernels, share);
  context.team.barrier();
  for_experts(ranges, op.num_experts, [&](int e, int32_t first, int32_t count) {
    Operand inputs = rows_from(scratch.inputs, first), up_inputs = rows_from(scratch.up_inputs, first);
    Destination hidden{};
    hidden.operand = rows_from(scratch.hidden, first);
    kernels.gated_linear({inputs, up_inputs, count, op.gates[e], op.ups[e], op.activation, hidden}, share);
  });
  context.team.barrier();
  for_experts(ranges, op.num_experts, [&](int e, int32_t first, int32_t count) {
    Operand hidden = rows_from(scratch.hidden, first);
    kernels.linear({hidden, count, op.downs[e], nullptr, false, rows_from(scratch.outputs, first)}, share);
  });
  context.team.barrier();
  kernels.combine({scratch.outputs, num_rows, op.num_active, scratch.slots, scratch.shares, op.accumulate != 0, dst},
                  share);
}

}  // namespace octavo
