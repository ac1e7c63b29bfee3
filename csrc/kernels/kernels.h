// What the program walker asks of an instruction set: one table of function pointers, filled once per instruction set
// by isa_scalar.cpp, isa_avx2.cpp and isa_avx512.cpp from the same templates.
//
// Every kernel is called by all threads of the team with its thread index and does its share of the work, which depends
// only on the arguments; kernels never synchronise with each other and never allocate. The order in which an output
// element is summed depends on nothing but the model: not on the batch, the chunk, the thread count or the tile shape.
//
// Instruction-set sources are compiled with their own flags, so they must not instantiate anything the linker could
// share with other sources: no STL, everything in an anonymous or instruction-set namespace.
#pragma once
#include <stddef.h>
#include <stdint.h>

#include "../include/octavo.h"

struct oct_weight {
  int32_t layout;     // oct_layout
  int32_t gguf_type;  // what it was packed from
  int32_t code_bits;  // grouped layouts: how many bits a code uses (4, 5, 6, 8)
  int32_t group;      // columns a scale covers (16 or 32); 0 for bf16
  int32_t has_min;    // grouped: 1: value = scale * code - min; 0: value = scale * (code - zero)
  int32_t zero;       // grouped, without min: the code of 0.0
  int32_t table;      // grouped: CodeTable that codes point into, 0: none
  int64_t num_rows;     // N
  int64_t num_columns;  // K
  uint8_t* data;
  int64_t bytes;
};

namespace octavo {

struct ThreadShare {
  int thread;
  int num_threads;
};

// Rows of the left side of a product, padded to 32 columns: int8 codes with their scales, or bf16 values. How a row is
// laid out inside is said in operand.h; `data` is 64-byte aligned, rows `row_bytes` apart.
struct Operand {
  int32_t kind;  // OCT_BUFFER_OPERAND_INT8, _INT8_OUTLIERS or _BF16
  int32_t columns;
  int64_t row_bytes;
  uint8_t* data;
};

struct Matrix {  // fp32 [rows, stride]
  float* data;
  int64_t stride;
  int32_t columns;
};

// Where a kernel leaves rows of values: fp32, an operand, or both operand kinds. Unused ones have data == nullptr.
struct Destination {
  Matrix matrix;
  Operand operand;
  Operand operand2;
};

struct EmbedArgs {
  const oct_weight* weight;
  const int32_t* token_ids;
  int num_tokens;
  float scale;
  Matrix dst;
};

struct RotaryTableArgs {
  const int32_t* positions;
  int num_tokens;
  const float* inverse_frequencies;
  int num_frequencies;
  float magnitude;
  Matrix dst;
};

struct RmsNormArgs {
  Matrix src;
  int num_rows;
  const float* weight;
  float epsilon;
  bool accumulate;
  Destination dst;
};

struct QuantizeArgs {
  Matrix src;
  int num_rows;
  Operand dst;
};

struct LinearArgs {
  Operand src;
  int num_rows;
  const oct_weight* weight;
  const float* bias;
  bool accumulate;
  Matrix dst;  // already offset by dst_column; columns = N
};

struct Largest {
  float logit;
  int32_t token;  // the first that has it; 0 if all are NaN
};

struct HeadArgs {
  Operand src;
  int num_rows;
  const oct_weight* weight;
  const int32_t* slots;  // [num_rows]: the row of `logits` to be written; -1: only the largest is kept
  Matrix logits;
  Largest* largest;  // [num_rows], of this thread
};

struct GatedLinearArgs {
  Operand src_gate;
  Operand src_up;
  int num_rows;
  const oct_weight* gate;
  const oct_weight* up;
  int activation;
  Destination dst;
};

// KV pages of one layer: page b at data + b * page_bytes. In a page, for each key/value head: K as
// [C / 2][16 tokens][2], then V as [16 / 2 token pairs][C][2]. With int8 codes, 16 scales of keys and 16 of values lie
// between, so that they come with the keys; in AVX-512 codes lie in fours, K as [C / 4, rounded up][16 tokens][4], V as
// [16 / 4][C][4]. Zero when created.
struct KvLayer {
  uint8_t* data;
  int64_t keys_bytes;    // of one head in a page, with scales
  int64_t values_bytes;  // of one head in a page
  int64_t page_bytes;
  int32_t num_kv_heads;
  int32_t head_size;
  int32_t window;  // a query sees the last `window` positions, itself included; 0: all
  int32_t dtype;   // oct_kv_dtype

  int64_t keys_offset(int head) const { return head * (keys_bytes + values_bytes); }
  int64_t values_offset(int head) const { return keys_offset(head) + keys_bytes; }
};

struct Batch {  // the ragged batch of the step, with the block table of one group of layers
  int num_tokens;
  int num_requests;
  const int32_t* positions;     // [T]
  const int32_t* query_starts;  // [R + 1]
  const int32_t* block_tables;  // [table rows, max_blocks]
  const int32_t* table_rows;    // [R]
  int max_blocks;

  const int32_t* block_table(int request) const { return block_tables + int64_t(table_rows[request]) * max_blocks; }
};

struct RopeKvArgs {
  Matrix qkv;
  Matrix rotary;  // data == nullptr: no rope
  const float* q_norm;
  const float* k_norm;
  const float* key_divisors;  // [num_kv_heads, head_size] or nullptr
  float epsilon;
  int num_heads;
  KvLayer kv;
  Batch batch;
};

struct AttentionArgs {
  Matrix qkv;
  Destination dst;  // an operand only where heads are whole groups of its columns
  int num_heads;
  float scale;
  float softcap;
  const float* sinks;  // [H] or nullptr
  KvLayer kv;
  Batch batch;
  uint8_t* scratch;  // of this thread alone: attention_scratch_bytes(), 64-byte aligned
  uint8_t* shared;   // of all threads: attention_shared_bytes(), 64-byte aligned, zero at first
};

// Where the log probabilities of a row go.
struct LogprobReport {
  float* logprob;
  int32_t* rank;
  int32_t* top_token_ids;
  float* top_logprobs;
};

struct SampleRow {
  const oct_sampling* sampling;
  float softcap;  // 0: off
  const int32_t* bias_token_ids;
  const float* bias_values;
  LogprobReport report;
};

// Of one thread, [num_logits] each.
struct SampleScratch {
  float* weights;
  int32_t* tokens;
  float* raw_logits;
  int32_t* counts;  // zero before and after
};

struct RouteArgs {
  Matrix src;
  int num_rows;
  const float* router;  // [num_experts, columns]
  int num_experts;
  int num_active;
  bool renormalise;
  int32_t* experts;  // out [num_rows, num_active], likeliest first
  float* shares;     // out [num_rows, num_active]
};

struct CombineArgs {  // dst[row] (+)= sum over i of shares[row, i] * src[slots[row, i]]
  Matrix src;
  int num_rows;
  int num_active;
  const int32_t* slots;
  const float* shares;
  bool accumulate;
  Matrix dst;
};

struct Kernels {
  const char* name;

  // weights
  int64_t (*weight_bytes)(const oct_weight*);
  // Packs source rows so that panels [first, last) of num_panels(weight) are filled.
  int64_t (*panel_rows)(const oct_weight*);  // weight rows of a panel, a divisor of OCT_SLICE_ROWS
  void (*pack)(const oct_weight*, const void* gguf_blocks, const int32_t* row_order, int64_t first_panel,
               int64_t last_panel);
  void (*unpack_row)(const oct_weight*, int64_t row, float* values_K);

  // operands
  int64_t (*operand_row_bytes)(int kind, int64_t columns);

  // ops
  void (*embed)(const EmbedArgs&, ThreadShare);
  void (*rotary_table)(const RotaryTableArgs&, ThreadShare);
  void (*rms_norm)(const RmsNormArgs&, ThreadShare);
  void (*quantize)(const QuantizeArgs&, ThreadShare);
  void (*linear)(const LinearArgs&, ThreadShare);
  void (*head)(const HeadArgs&, ThreadShare);
  void (*gated_linear)(const GatedLinearArgs&, ThreadShare);
  void (*route)(const RouteArgs&, ThreadShare);
  void (*combine)(const CombineArgs&, ThreadShare);
  void (*rope_kv)(const RopeKvArgs&, ThreadShare);
  int64_t (*attention_scratch_bytes)(int num_heads, int num_kv_heads, int head_size);  // per thread
  int64_t (*attention_shared_bytes)(int num_heads, int num_kv_heads, int head_size, int max_blocks, int num_threads);
  void (*attention)(const AttentionArgs&, ThreadShare);
  // Changes the row of logits in place, then draws one token (or takes the one to be scored) and reports on it.
  int32_t (*sample)(float* logits, int64_t num_logits, const SampleRow&, const SampleScratch&);

  // measuring: `rounds` rounds of multiply-adds in registers (oct_peak); how many operations that was
  int64_t (*run_peak)(int type, int64_t rounds);
  uint64_t (*read_sum)(const uint8_t* data, int64_t bytes);
};

extern const Kernels kernels_scalar;
extern const Kernels kernels_avx2;
extern const Kernels kernels_avx512;

}  // namespace octavo
