#include "validate.h"

#include <math.h>

#include <string>

#include "error.h"
#include "weights.h"

namespace octavo {
namespace {

const char* kind_name(int kind) {
  switch (kind) {
    case OCT_BUFFER_F32: return "fp32";
    case OCT_BUFFER_OPERAND_INT8: return "int8 operand";
    case OCT_BUFFER_OPERAND_BF16: return "bf16 operand";
    case OCT_BUFFER_OPERAND_INT8_OUTLIERS: return "int8 operand with outliers";
    case OCT_BUFFER_OPERAND_INT8_ROW: return "int8 row operand";
  }
  return "unknown";
}

bool takes(const oct_weight& weight, int kind) {
  if (weight.layout == OCT_LAYOUT_BF16) return kind == OCT_BUFFER_OPERAND_BF16;
  if (weight.layout == OCT_LAYOUT_INT8_CHANNEL) return kind == OCT_BUFFER_OPERAND_INT8_ROW;
  return kind == OCT_BUFFER_OPERAND_INT8 || kind == OCT_BUFFER_OPERAND_INT8_OUTLIERS;
}

std::string number(double value) {
  std::string text = std::to_string(value);
  return value == floor(value) ? text.substr(0, text.find('.')) : text;
}

// The checks of one instruction. Every failure names it.
class InstructionCheck {
 public:
  InstructionCheck(const ProgramParts& parts, size_t index, StepLimits& limits)
      : parts_(parts), index_(index), instruction_(parts.instructions[index]), limits_(limits) {}

  void run() {
    switch (instruction_.op) {
      case OCT_OP_EMBED: return check(instruction_.embed);
      case OCT_OP_ROTARY_TABLE: return check(instruction_.rotary_table);
      case OCT_OP_RMS_NORM: return check(instruction_.rms_norm);
      case OCT_OP_QUANTIZE: return check(instruction_.quantize);
      case OCT_OP_LINEAR: return check(instruction_.linear);
      case OCT_OP_GATED_LINEAR: return check(instruction_.gated_linear);
      case OCT_OP_ROPE_KV: return check(instruction_.rope_kv);
      case OCT_OP_ATTENTION: return check(instruction_.attention);
      case OCT_OP_SELECT_ROWS: return check(instruction_.select_rows);
      case OCT_OP_SAMPLE: return check(instruction_.sample);
      case OCT_OP_MOE: return check(instruction_.moe);
    }
    fail("unknown operation " + std::to_string(instruction_.op));
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw Error("instruction " + std::to_string(index_) + " (" + op_name(instruction_.op) + "): " + what);
  }
  void require(bool holds, const std::string& what) const {
    if (!holds) fail(what);
  }

  const oct_buffer& buffer(const char* role, int index) const {
    require(index >= 0 && size_t(index) < parts_.buffers.size(),
            std::string(role) + " is buffer " + std::to_string(index) + ", but there are " +
                std::to_string(parts_.buffers.size()));
    return parts_.buffers[size_t(index)];
  }
  std::string named(const char* role, int index) const {
    return std::string(role) + " (buffer " + std::to_string(index) + ")";
  }
  const oct_buffer& matrix(const char* role, int index) const {
    const oct_buffer& found = buffer(role, index);
    require(found.kind == OCT_BUFFER_F32, named(role, index) + " must be fp32, but is " + kind_name(found.kind));
    return found;
  }
  const oct_buffer& operand(const char* role, int index) const {
    const oct_buffer& found = buffer(role, index);
    require(found.kind != OCT_BUFFER_F32, named(role, index) + " must be an operand, but is fp32");
    return found;
  }
  const oct_buffer& operand_of(const char* role, int index, const oct_weight& weight) const {
    const oct_buffer& found = operand(role, index);
    const char* needed = weight.layout == OCT_LAYOUT_BF16           ? "a bf16 operand"
                         : weight.layout == OCT_LAYOUT_INT8_CHANNEL ? "an int8 row operand"
                                                                    : "an int8 operand";
    require(takes(weight, found.kind), named(role, index) + " must be " + needed + " for a weight in layout " +
                                           layout_name(weight.layout) + ", but is of kind " + kind_name(found.kind));
    columns(role, index, weight.num_columns);
    return found;
  }
  void columns(const char* role, int index, int64_t expected) const {
    int found = buffer(role, index).columns;
    require(found == expected, named(role, index) + " has " + std::to_string(found) + " columns, but needs " +
                                   std::to_string(expected));
  }
  void rows(const char* role, int index, int expected) const {
    require(buffer(role, index).row_space == expected,
            named(role, index) + " must have one row a " + (expected == OCT_ROWS_TOKENS ? "token" : "logit row"));
  }
  const oct_weight& weight(const char* role, const oct_weight* found) const {
    require(found != nullptr, std::string(role) + " is missing");
    const Kernels& kernels = *static_cast<const PackedWeight*>(found)->kernels;
    require(&kernels == &parts_.kernels, std::string(role) + " was packed for " + kernels.name +
                                             ", but the program runs on " + parts_.kernels.name);
    return *found;
  }
  void vector(const char* role, const float* found) const {
    require(found != nullptr, std::string(role) + " is missing");
  }
  void finite(const char* role, float value) const {
    require(isfinite(value), std::string(role) + " is " + std::to_string(value));
  }
  void epsilon(float value) const {
    require(isfinite(value) && value >= 0.0f, "epsilon is " + std::to_string(value));
  }
  void softcap(float value) const {
    require(isfinite(value) && value >= 0.0f, "softcap is " + std::to_string(value));
  }

  void check(const oct_embed& op) const {
    const oct_weight& table = weight("weight", op.weight);
    matrix("dst", op.dst);
    columns("dst", op.dst, table.num_columns);
    rows("dst", op.dst, OCT_ROWS_TOKENS);
    finite("scale", op.scale);
    if (limits_.num_token_ids == 0 || table.num_rows < limits_.num_token_ids) limits_.num_token_ids = table.num_rows;
  }

  void check(const oct_rotary_table& op) const {
    matrix("dst", op.dst);
    require(op.num_frequencies >= 1, "num_frequencies is " + std::to_string(op.num_frequencies));
    columns("dst", op.dst, 2 * int64_t(op.num_frequencies));
    rows("dst", op.dst, OCT_ROWS_TOKENS);
    vector("inverse_frequencies", op.inverse_frequencies);
    finite("magnitude", op.magnitude);
  }

  void check(const oct_rms_norm& op) const {
    const oct_buffer& src = matrix("src", op.src);
    const oct_buffer& dst = buffer("dst", op.dst);
    columns("dst", op.dst, src.columns);
    rows("dst", op.dst, src.row_space);
    vector("weight", op.weight);
    epsilon(op.epsilon);
    require(!op.accumulate || dst.kind == OCT_BUFFER_F32, "accumulating needs an fp32 dst");
    require(!op.accumulate || op.src != op.dst, "src and dst are the same buffer, which cannot be accumulated into");
    if (op.dst2 == -1) return;
    const oct_buffer& dst2 = operand("dst2", op.dst2);
    columns("dst2", op.dst2, src.columns);
    rows("dst2", op.dst2, src.row_space);
    require(dst2.kind != dst.kind, "dst and dst2 are both " + std::string(kind_name(dst.kind)));
  }

  void check(const oct_quantize& op) const {
    const oct_buffer& src = matrix("src", op.src);
    operand("dst", op.dst);
    columns("dst", op.dst, src.columns);
    rows("dst", op.dst, src.row_space);
  }

  void check(const oct_linear& op) const {
    const oct_weight& factor = weight("weight", op.weight);
    const oct_buffer& src = operand_of("src", op.src, factor);
    const oct_buffer& dst = matrix("dst", op.dst);
    rows("dst", op.dst, src.row_space);
    require(op.dst_column >= 0 && op.dst_column + factor.num_rows <= dst.columns,
            "columns " + std::to_string(op.dst_column) + " to " + std::to_string(op.dst_column + factor.num_rows) +
                " do not lie in " + named("dst", op.dst) + " of " + std::to_string(dst.columns) + " columns");
  }

  void takes_parts_of_rows(const char* field, int index) const {
    int kind = buffer(field, index).kind;
    require(kind != OCT_BUFFER_OPERAND_INT8_OUTLIERS && kind != OCT_BUFFER_OPERAND_INT8_ROW,
            named(field, index) + " is of kind " + kind_name(kind) + ", which takes whole rows");
  }

  void check(const oct_gated_linear& op) const {
    const oct_weight& gate = weight("gate", op.gate);
    const oct_weight& up = weight("up", op.up);
    require(gate.num_rows == up.num_rows, "gate has " + std::to_string(gate.num_rows) + " rows and up " +
                                              std::to_string(up.num_rows));
    check_activation(op.activation);
    const oct_buffer& src = operand_of("src", op.src, gate);
    int src_up = op.src_up == -1 ? op.src : op.src_up;
    operand_of("src_up", src_up, up);
    rows("src_up", src_up, src.row_space);
    columns("dst", op.dst, gate.num_rows);
    rows("dst", op.dst, src.row_space);
    takes_parts_of_rows("dst", op.dst);
    require(op.dst != op.src && op.dst != src_up, named("dst", op.dst) + " is also a source");
  }

  // q, k and v side by side, in the geometry of the KV cache.
  void check_heads(int qkv, int num_heads, int num_kv_heads, int head_size, int kv_layer) const {
    require(parts_.kv != nullptr, "the program has no KV cache");
    const oct_kv_cache& kv = *parts_.kv;
    require(kv_layer >= 0 && kv_layer < kv.num_layers(),
            "kv_layer is " + std::to_string(kv_layer) + ", but the KV cache has " + std::to_string(kv.num_layers()));
    const KvLayer layer = kv.layer(kv_layer);
    require(num_kv_heads == layer.num_kv_heads && head_size == layer.head_size,
            std::to_string(num_kv_heads) + " heads of " + std::to_string(head_size) + ", but the KV cache has " +
                std::to_string(layer.num_kv_heads) + " of " + std::to_string(layer.head_size));
    require(num_heads >= 1 && num_heads % num_kv_heads == 0,
            std::to_string(num_heads) + " heads cannot share " + std::to_string(num_kv_heads) + " key/value heads");
    matrix("qkv", qkv);
    columns("qkv", qkv, (int64_t(num_heads) + 2 * num_kv_heads) * head_size);
    rows("qkv", qkv, OCT_ROWS_TOKENS);
    limits_.kv_groups = kv.groups();
  }

  void check(const oct_rope_kv& op) const {
    check_heads(op.qkv, op.num_heads, op.num_kv_heads, op.head_size, op.kv_layer);
    epsilon(op.epsilon);
    if (op.rotary == -1) return;
    const oct_buffer& rotary = matrix("rotary", op.rotary);
    rows("rotary", op.rotary, OCT_ROWS_TOKENS);
    require(rotary.columns % 2 == 0 && rotary.columns <= op.head_size,
            named("rotary", op.rotary) + " has " + std::to_string(rotary.columns) + " columns, but heads have " +
                std::to_string(op.head_size));
  }

  void check(const oct_attention& op) const {
    check_heads(op.qkv, op.num_heads, op.num_kv_heads, op.head_size, op.kv_layer);
    takes_parts_of_rows("dst", op.dst);
    bool is_operand = buffer("dst", op.dst).kind != OCT_BUFFER_F32;
    require(!is_operand || op.head_size % OCT_OPERAND_GROUP == 0,
            named("dst", op.dst) + " is an operand, but heads of " + std::to_string(op.head_size) +
                " are not whole groups of " + std::to_string(OCT_OPERAND_GROUP) + " columns");
    columns("dst", op.dst, int64_t(op.num_heads) * op.head_size);
    rows("dst", op.dst, OCT_ROWS_TOKENS);
    require(op.dst != op.qkv, named("dst", op.dst) + " is also qkv");
    finite("scale", op.scale);
    softcap(op.softcap);
  }

  void check(const oct_select_rows& op) const {
    const oct_buffer& src = matrix("src", op.src);
    rows("src", op.src, OCT_ROWS_TOKENS);
    matrix("dst", op.dst);
    columns("dst", op.dst, src.columns);
    rows("dst", op.dst, OCT_ROWS_LOGITS);
  }

  void check(const oct_moe& op) const {
    const oct_buffer& src = matrix("src", op.src);
    matrix("dst", op.dst);
    columns("dst", op.dst, src.columns);
    rows("dst", op.dst, src.row_space);
    require(op.src != op.dst, "src and dst are the same buffer");
    require(op.num_experts >= 1 && op.num_experts <= OCT_MAX_EXPERTS,
            "num_experts is " + std::to_string(op.num_experts) + "; it must be from 1 to " +
                std::to_string(OCT_MAX_EXPERTS));
    require(op.num_active >= 1 && op.num_active <= op.num_experts,
            "num_active is " + std::to_string(op.num_active) + " of " + std::to_string(op.num_experts) + " experts");
    check_activation(op.activation);
    vector("router", op.router);
    require(op.gates && op.ups && op.downs, "weights are missing");
    const oct_weight& gate = weight("gates", op.gates[0]);
    const oct_weight& up = weight("ups", op.ups[0]);
    const oct_weight& down = weight("downs", op.downs[0]);
    bool inputs_fit = gate.num_columns == src.columns && up.num_columns == src.columns;
    bool widths_fit = up.num_rows == gate.num_rows && down.num_columns == gate.num_rows;
    require(inputs_fit && widths_fit && down.num_rows == src.columns,
            "gates of " + shape_of(gate) + ", ups of " + shape_of(up) + " and downs of " + shape_of(down) +
                " do not fit " + std::to_string(src.columns) + " columns");
    for (const oct_weight* first : {&gate, &up, &down}) {
      require(first->layout != OCT_LAYOUT_INT8_CHANNEL, "experts cannot be in layout int8 channel");
    }
    for (int e = 0; e < op.num_experts; ++e) {
      same("gates", op.gates[e], gate);
      same("ups", op.ups[e], up);
      same("downs", op.downs[e], down);
    }
  }

  static std::string shape_of(const oct_weight& weight) {
    return std::to_string(weight.num_rows) + " x " + std::to_string(weight.num_columns);
  }
  void same(const char* role, const oct_weight* found, const oct_weight& first) const {
    const oct_weight& expert = weight(role, found);
    bool same_shape = expert.num_rows == first.num_rows && expert.num_columns == first.num_columns;
    require(same_shape && expert.layout == first.layout,
            std::string(role) + " are not all of one shape and layout");
  }
  void check_activation(int activation) const {
    require(activation == OCT_SILU || activation == OCT_GELU_TANH, "unknown activation " + std::to_string(activation));
  }

  void check(const oct_sample& op) const {
    const oct_weight& head = weight("weight", op.weight);
    operand_of("src", op.src, head);
    rows("src", op.src, OCT_ROWS_LOGITS);
    softcap(op.softcap);
    require(limits_.num_logits == 0, "a program samples once");
    limits_.num_logits = head.num_rows;
  }

  const ProgramParts& parts_;
  const size_t index_;
  const oct_instruction& instruction_;
  StepLimits& limits_;
};

void validate_buffers(const std::vector<oct_buffer>& buffers) {
  for (size_t i = 0; i < buffers.size(); ++i) {
    const oct_buffer& buffer = buffers[i];
    bool kind = buffer.kind >= OCT_BUFFER_F32 && buffer.kind <= OCT_BUFFER_OPERAND_INT8_ROW;
    bool row_space = buffer.row_space == OCT_ROWS_TOKENS || buffer.row_space == OCT_ROWS_LOGITS;
    if (kind && row_space && buffer.columns >= 1) continue;
    throw Error("buffer " + std::to_string(i) + " of kind " + std::to_string(buffer.kind) + ", row space " +
                std::to_string(buffer.row_space) + " and " + std::to_string(buffer.columns) + " columns is impossible");
  }
}

// The checks of one step.
class StepCheck {
 public:
  StepCheck(const oct_step& step, const StepLimits& limits) : step_(step), limits_(limits) {}

  void run() const {
    check_counts();
    check_pointers();
    check_query_starts();
    if (limits_.num_token_ids > 0) check_token_ids();
    for (int r = 0; r < step_.num_requests; ++r) check_request(r);
    if (step_.num_copies > 0) check_copies();
    check_logit_rows();
    if (limits_.num_logits > 0 && step_.num_logit_rows > 0) check_sampling();
  }

 private:
  static void require_range(const char* name, int64_t index, int64_t value, int64_t first, int64_t last) {
    if (value >= first && value <= last) return;
    throw Error(std::string(name) + "[" + std::to_string(index) + "] is " + std::to_string(value) +
                "; it must be from " + std::to_string(first) + " to " + std::to_string(last));
  }
  static void require_count(const char* name, int64_t value, int64_t last) {
    if (value >= 0 && value <= last) return;
    throw Error(std::string(name) + " is " + std::to_string(value) + "; it must be from 0 to " + std::to_string(last));
  }
  static void require_pointer(const char* name, const void* pointer) {
    if (!pointer) throw Error(std::string("the step has no ") + name);
  }

  void check_counts() const {
    require_count("num_tokens", step_.num_tokens, limits_.max_tokens);
    require_count("num_requests", step_.num_requests, INT32_MAX - 1);
    require_count("num_logit_rows", step_.num_logit_rows, limits_.max_logit_rows);
    require_count("max_blocks", step_.max_blocks, limits_.kv_groups.empty() ? INT32_MAX : limits_.max_blocks);
    require_count("num_table_rows", step_.num_table_rows, INT32_MAX);
    require_count("num_copies", step_.num_copies, limits_.kv_groups.empty() ? 0 : INT32_MAX);
    require_count("num_biases", step_.num_biases, INT32_MAX);
    require_count("num_top_logprobs", step_.num_top_logprobs, INT32_MAX);
    if (step_.num_tokens > 0 && step_.num_requests == 0) throw Error("the step has tokens but no requests");
  }

  void check_pointers() const {
    if (step_.num_tokens > 0) {
      require_pointer("token_ids", step_.token_ids);
      require_pointer("positions", step_.positions);
      if (!limits_.kv_groups.empty()) {
        require_pointer("block_tables", step_.block_tables);
        require_pointer("table_rows", step_.table_rows);
      }
    }
    if (step_.num_requests > 0) require_pointer("query_starts", step_.query_starts);
    if (step_.num_copies > 0) {
      require_pointer("copy_groups", step_.copy_groups);
      require_pointer("copy_sources", step_.copy_sources);
      require_pointer("copy_destinations", step_.copy_destinations);
    }
    if (step_.num_logit_rows == 0) return;
    require_pointer("logit_rows", step_.logit_rows);
    if (limits_.num_logits == 0) return;
    require_pointer("sampling", step_.sampling);
    require_pointer("sampled_token_ids", step_.sampled_token_ids);
  }

  void check_query_starts() const {
    if (step_.num_requests == 0) return;
    require_range("query_starts", 0, step_.query_starts[0], 0, 0);
    for (int r = 0; r < step_.num_requests; ++r) {
      require_range("query_starts", r + 1, step_.query_starts[r + 1], step_.query_starts[r], step_.num_tokens);
    }
    int last = step_.num_requests;
    require_range("query_starts", last, step_.query_starts[last], step_.num_tokens, step_.num_tokens);
  }

  void check_token_ids() const {
    for (int t = 0; t < step_.num_tokens; ++t) {
      require_range("token_ids", t, step_.token_ids[t], 0, limits_.num_token_ids - 1);
    }
  }

  // A request's tokens have adjacent positions, and a page for each position they see.
  void check_request(int r) const {
    int first = step_.query_starts[r], last = step_.query_starts[r + 1] - 1;
    if (first > last) return;
    require_range("positions", first, step_.positions[first], 0, INT32_MAX - step_.num_tokens);
    for (int t = first + 1; t <= last; ++t) {
      require_range("positions", t, step_.positions[t], step_.positions[t - 1] + 1, step_.positions[t - 1] + 1);
    }
    if (limits_.kv_groups.empty()) return;
    require_range("positions", last, step_.positions[last], 0, int64_t(step_.max_blocks) * OCT_BLOCK_TOKENS - 1);
    require_range("table_rows", r, step_.table_rows[r], 0, step_.num_table_rows - 1);
    for (size_t group = 0; group < limits_.kv_groups.size(); ++group) {
      check_block_table(r, int(group), step_.positions[first], step_.positions[last]);
    }
  }

  void check_block_table(int r, int group, int first_position, int last_position) const {
    const oct_kv_group& kv = limits_.kv_groups[size_t(group)];
    int first_seen = kv.window > 0 && first_position >= kv.window ? first_position - kv.window + 1 : 0;
    int64_t start = (int64_t(group) * step_.num_table_rows + step_.table_rows[r]) * step_.max_blocks;
    for (int block = first_seen / OCT_BLOCK_TOKENS; block <= last_position / OCT_BLOCK_TOKENS; ++block) {
      int32_t page = step_.block_tables[start + block];
      if (page < 0 || page >= kv.num_blocks) require_range("block_tables", start + block, page, 0, kv.num_blocks - 1);
    }
  }

  void check_copies() const {
    for (int i = 0; i < step_.num_copies; ++i) {
      require_range("copy_groups", i, step_.copy_groups[i], 0, int64_t(limits_.kv_groups.size()) - 1);
      int num_blocks = limits_.kv_groups[size_t(step_.copy_groups[i])].num_blocks;
      require_range("copy_sources", i, step_.copy_sources[i], 0, num_blocks - 1);
      require_range("copy_destinations", i, step_.copy_destinations[i], 0, num_blocks - 1);
      if (step_.copy_sources[i] == step_.copy_destinations[i]) {
        throw Error("copy " + std::to_string(i) + " is of block " + std::to_string(step_.copy_sources[i]) +
                    " onto itself");
      }
    }
  }

  void check_logit_rows() const {
    for (int l = 0; l < step_.num_logit_rows; ++l) {
      require_range("logit_rows", l, step_.logit_rows[l], l == 0 ? 0 : step_.logit_rows[l - 1] + 1, step_.num_tokens - 1);
    }
  }

  void check_sampling() const {
    for (int l = 0; l < step_.num_logit_rows; ++l) check_sampling(l, step_.sampling[l]);
    if (step_.num_biases == 0) return;
    require_pointer("bias_token_ids", step_.bias_token_ids);
    require_pointer("bias_values", step_.bias_values);
    for (int i = 0; i < step_.num_biases; ++i) {
      require_range("bias_token_ids", i, step_.bias_token_ids[i], 0, limits_.num_logits - 1);
    }
  }

  void check_sampling(int l, const oct_sampling& row) const {
    require_sampling(row.temperature >= 0, "temperature", l, row.temperature, "at least 0");
    require_sampling(row.repetition_penalty > 0, "repetition_penalty", l, row.repetition_penalty, "above 0");
    require_range("sampling.first_bias", l, row.first_bias, 0, step_.num_biases);
    require_range("sampling.num_biases", l, row.num_biases, 0, step_.num_biases - row.first_bias);
    require_range("sampling.scored_token", l, row.scored_token, -1, limits_.num_logits - 1);
    require_range("sampling.num_logprobs", l, row.num_logprobs, -1, limits_.num_logits);
    require_range("sampling.position", l, row.position, 0, INT64_MAX);
    if (row.num_logprobs >= 0) {
      require_pointer("logprobs", step_.logprobs);
      require_pointer("ranks", step_.ranks);
      require_range("sampling.first_logprob", l, row.first_logprob, 0, step_.num_top_logprobs - row.num_logprobs);
    }
    if (row.num_logprobs > 0) {
      require_pointer("top_token_ids", step_.top_token_ids);
      require_pointer("top_logprobs", step_.top_logprobs);
    }
    bool penalized = row.repetition_penalty != 1 || row.frequency_penalty != 0 || row.presence_penalty != 0;
    if (penalized && row.scored_token < 0) {
      require_range("sampling.num_prompt_tokens", l, row.num_prompt_tokens, 0, row.position);
      require_pointer("sampling.token_ids", row.token_ids);
    }
  }

  static void require_sampling(bool holds, const char* name, int l, float value, const char* expected) {
    if (holds) return;
    throw Error("sampling." + std::string(name) + "[" + std::to_string(l) + "] is " + number(value) + "; it must be " +
                expected);
  }

  const oct_step& step_;
  const StepLimits& limits_;
};

}  // namespace

const char* op_name(int op) {
  switch (op) {
    case OCT_OP_EMBED: return "embed";
    case OCT_OP_ROTARY_TABLE: return "rotary_table";
    case OCT_OP_RMS_NORM: return "rms_norm";
    case OCT_OP_QUANTIZE: return "quantize";
    case OCT_OP_LINEAR: return "linear";
    case OCT_OP_GATED_LINEAR: return "gated_linear";
    case OCT_OP_ROPE_KV: return "rope_kv";
    case OCT_OP_ATTENTION: return "attention";
    case OCT_OP_SELECT_ROWS: return "select_rows";
    case OCT_OP_SAMPLE: return "sample";
    case OCT_OP_MOE: return "moe";
  }
  return "unknown";
}

StepLimits validate_program(const ProgramParts& parts, int max_tokens, int max_logit_rows, int max_blocks) {
  if (max_tokens < 1 || max_logit_rows < 1 || max_blocks < 0) {
    throw Error("max_tokens is " + std::to_string(max_tokens) + ", max_logit_rows " + std::to_string(max_logit_rows) +
                " and max_blocks " + std::to_string(max_blocks) + "; the first two must be at least 1, the last 0");
  }
  validate_buffers(parts.buffers);
  StepLimits limits;
  limits.max_tokens = max_tokens;
  limits.max_logit_rows = max_logit_rows;
  limits.max_blocks = max_blocks;
  for (size_t i = 0; i < parts.instructions.size(); ++i) InstructionCheck(parts, i, limits).run();
  return limits;
}

void validate_step(const oct_step& step, const StepLimits& limits) { StepCheck(step, limits).run(); }

}  // namespace octavo
