// The C interface of Octavo's CPU library: contexts, weights, KV caches, programs, steps.
//
// Plain C structs and raw pointers, read from Python by ctypes (octavo/backends/native/library.py mirrors this file
// field by field; a test compares sizes and offsets). Functions return 0 on success and -1 on failure;
// oct_last_error() then describes the failure of the calling thread.
//
// Shape suffixes: T tokens of the step, R requests of the step, L rows that need logits, N weight rows (outputs),
// K weight columns (inputs), D model width, H query heads, G key/value heads, C head size.
#pragma once
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// Opaque objects, named before the exported part so that their C++ members stay hidden.
struct oct_context;
struct oct_weight;
struct oct_kv_cache;
struct oct_program;

#if defined(OCT_BUILDING)
#pragma GCC visibility push(default)
#endif

const char* oct_last_error(void);

// ---- context: an instruction set and a team of threads ---------------------------------------------------------
typedef struct oct_context oct_context;

int oct_isa_supported(const char* isa);  // "scalar", "avx2", "avx512": 1 if this machine can run it
// isa NULL: the best this machine has. The calling thread of oct_run is worker 0 of the team.
oct_context* oct_context_create(const char* isa, int num_threads);
void oct_context_destroy(oct_context*);
const char* oct_context_isa(const oct_context*);

// ---- weights: packed once, in one of the canonical layouts ------------------------------------------------------
enum oct_layout {
  OCT_LAYOUT_BF16 = 0,     // bf16 values
  OCT_LAYOUT_GROUPED = 1,  // codes of 4, 5, 6 or 8 bits, a scale for 16 or 32 columns, a minimum for 32 or none
  OCT_LAYOUT_INT8_CHANNEL = 2,  // codes of 8 bits, a scale for each row
};

typedef struct oct_weight oct_weight;

// A matrix [N, K] in `layout`, to be filled from tensors of GGUF type `gguf_type`. Fails when they do not go together.
oct_weight* oct_weight_create(oct_context*, int layout, int gguf_type, int64_t num_rows, int64_t num_columns);
// Packs rows [first_row, end_row) from the GGUF blocks of the whole matrix, on all threads, so that a large matrix can be
// packed in slices; they start at multiples of OCT_SLICE_ROWS. row_order[n] (or NULL) is the source row of row n.
enum { OCT_SLICE_ROWS = 64 };
int oct_weight_pack(oct_context*, oct_weight*, const void* gguf_blocks, const int32_t* row_order, int64_t first_row,
                    int64_t end_row);
int oct_weight_unpack(oct_context*, const oct_weight*, float* values_NK);  // for tests and tools
int64_t oct_weight_bytes(const oct_weight*);
void oct_weight_destroy(oct_weight*);

// GGUF blocks -> fp32, for vectors (norms, biases) and tests. Fails on an unknown type.
int oct_gguf_dequantize(int gguf_type, const void* blocks, int64_t num_elements, float* values);

// ---- KV cache: pages of 16 tokens for every layer ----------------------------------------------------------------
enum { OCT_BLOCK_TOKENS = 16 };
enum oct_kv_dtype {
  OCT_KV_BF16 = 0,
  OCT_KV_INT8 = 1,  // with an fp32 scale for each token and head
};
typedef struct oct_kv_cache oct_kv_cache;

// Layers that share a block table. Each of them has num_blocks pages.
typedef struct {
  int32_t num_blocks;
  int32_t num_kv_heads;
  int32_t head_size;
  int32_t window;  // a query sees the last `window` positions, itself included; 0: all
  int32_t dtype;   // oct_kv_dtype
} oct_kv_group;

// layer_groups[layer] is the group of each layer.
oct_kv_cache* oct_kv_cache_create(const oct_kv_group* groups, int num_groups, const int32_t* layer_groups,
                                  int num_layers);
int64_t oct_kv_page_bytes(const oct_kv_group*);  // one block in one layer
// Makes memory resident ahead of the steps that write to it, at least `bytes` more, in the order of the blocks. Gives how
// many bytes that were, 0 when there is nothing left or the kernel cannot. Not beside a step.
int64_t oct_kv_cache_populate(oct_kv_cache*, int64_t bytes);
void oct_kv_cache_destroy(oct_kv_cache*);
// A block's pages in the layers of a group, one layer after the other: bytes that mean something to this build only.
int oct_kv_read_block(const oct_kv_cache*, int group, int block, void* pages);
int oct_kv_write_block(oct_kv_cache*, int group, int block, const void* pages);

// ---- program: a flat list of fixed-size instructions over numbered buffers ---------------------------------------
enum oct_buffer_kind {
  OCT_BUFFER_F32 = 0,           // fp32 [rows, columns]
  OCT_BUFFER_OPERAND_INT8 = 1,  // left operand of a product with grouped weights: int8 codes, a scale for each 32
  OCT_BUFFER_OPERAND_BF16 = 2,  // left operand of a product with bf16 weights
  OCT_BUFFER_OPERAND_INT8_OUTLIERS = 3,  // INT8, with outliers apart in fp32; written by whole rows
  OCT_BUFFER_OPERAND_INT8_ROW = 4,  // for weights with a scale for each row: int8 codes, one scale; written by whole rows
};
enum oct_row_space { OCT_ROWS_TOKENS = 0, OCT_ROWS_LOGITS = 1 };

enum { OCT_OPERAND_GROUP = 32 };  // columns of an INT8 operand that are rounded together

typedef struct {
  int32_t kind;       // oct_buffer_kind
  int32_t row_space;  // oct_row_space: one row a token of the step, or one a row that needs logits
  int32_t columns;
} oct_buffer;

enum oct_op {
  OCT_OP_EMBED = 0,
  OCT_OP_ROTARY_TABLE = 1,
  OCT_OP_RMS_NORM = 2,
  OCT_OP_QUANTIZE = 3,
  OCT_OP_LINEAR = 4,
  OCT_OP_GATED_LINEAR = 5,
  OCT_OP_ROPE_KV = 6,
  OCT_OP_ATTENTION = 7,
  OCT_OP_SELECT_ROWS = 8,
  OCT_OP_SAMPLE = 9,
  OCT_OP_MOE = 10,
};
enum oct_activation { OCT_SILU = 0, OCT_GELU_TANH = 1 };

// Buffers are given by number. `weight` fields are oct_weight*, vectors are fp32 and must outlive the program.

typedef struct {  // dst_TD = scale * weight[token_ids]
  int32_t dst;
  float scale;
  const oct_weight* weight;
} oct_embed;

// dst_T(2*half): cos then sin of position * inverse_frequency, computed once a step. [T, 2 * num_frequencies]
typedef struct {
  int32_t dst;
  int32_t num_frequencies;
  const float* inverse_frequencies;
  float magnitude;  // cos and sin are multiplied by it (yarn); 1 elsewhere
} oct_rotary_table;

// dst = src / rms(src) * weight, to fp32 or straight to an operand buffer. With accumulate (fp32 dst only): dst += ...
typedef struct {
  int32_t src;
  int32_t dst;
  int32_t dst2;  // a second destination (the other operand kind) or -1
  int32_t accumulate;
  float epsilon;
  const float* weight;  // [columns]
} oct_rms_norm;

typedef struct {  // fp32 buffer -> operand buffer
  int32_t src;
  int32_t dst;
} oct_quantize;

// dst[:, dst_column : dst_column + N] (+)= src @ weight.T + bias. src is an operand buffer of the kind the weight needs.
typedef struct {
  int32_t src;
  int32_t dst;
  int32_t dst_column;
  int32_t accumulate;  // 1: add to dst (the residual)
  const oct_weight* weight;
  const float* bias;  // [N] or NULL
} oct_linear;

// dst = activation(src @ gate.T) * (src @ up.T); dst is an operand buffer or fp32. gate and up may differ in layout only
// if src (and src_up) are operands of the kinds they need; src_up is -1 when it equals src.
typedef struct {
  int32_t src;
  int32_t src_up;
  int32_t dst;
  int32_t activation;  // oct_activation
  const oct_weight* gate;
  const oct_weight* up;
} oct_gated_linear;

// qkv_T[(H + 2G) C]: optional RMS norm of every q and k head, half-rotated rope on q and k, q back in place,
// k and v to their page of the KV cache.
typedef struct {
  int32_t qkv;
  int32_t rotary;  // buffer of the rotary table, or -1: no rope
  int32_t num_heads;
  int32_t num_kv_heads;
  int32_t head_size;
  int32_t kv_layer;
  float epsilon;
  const float* q_norm;  // [C] or NULL
  const float* k_norm;  // [C] or NULL
  const float* key_divisors;  // [G C] or NULL: keys are stored divided by these, queries multiplied by them
} oct_rope_kv;

// Causal attention of the step's queries over their requests' pages, as far as the window of the layer's group reaches.
// dst is fp32 [T, H C], or an INT8 or BF16 operand if C is a multiple of OCT_OPERAND_GROUP.
typedef struct {
  int32_t qkv;  // q in the first H C columns
  int32_t dst;
  int32_t num_heads;
  int32_t num_kv_heads;
  int32_t head_size;
  int32_t kv_layer;
  float scale;
  float softcap;  // 0: off; else scores = softcap * tanh(scores / softcap)
  const float* sinks;  // [H] or NULL: one more score of each head, of a key without a value
} oct_attention;

typedef struct {  // dst_LD = src_TD[logit_rows]
  int32_t src;
  int32_t dst;
} oct_select_rows;

// Logits of src_LD by the head's weight, then one sampled token a row. Runs in chunks of rows so that logits stay small.
typedef struct {
  int32_t src;
  const oct_weight* weight;
  float softcap;  // of the logits; 0: off
} oct_sample;

enum { OCT_MAX_EXPERTS = 1024 };

// p = softmax(src @ router.T); dst (+)= sum over the num_active likeliest experts e of
// p[e] * ((activation(src @ gates[e].T) * (src @ ups[e].T)) @ downs[e].T), those p made to sum to 1 if asked. All gates are
// of one shape and layout, and so are all ups and all downs. src is the output of a norm.
typedef struct {
  int32_t src;          // fp32
  int32_t dst;          // fp32
  int32_t accumulate;   // 1: add to dst
  int32_t num_experts;  // at most OCT_MAX_EXPERTS
  int32_t num_active;
  int32_t renormalise;
  int32_t activation;  // oct_activation
  const float* router;             // [num_experts, columns of src]
  const oct_weight* const* gates;  // [num_experts]
  const oct_weight* const* ups;
  const oct_weight* const* downs;
} oct_moe;

typedef struct {
  int32_t op;       // oct_op
  int32_t barrier;  // 1: all threads wait for each other after it; 0: the next instruction does not depend on it
  union {
    oct_embed embed;
    oct_rotary_table rotary_table;
    oct_rms_norm rms_norm;
    oct_quantize quantize;
    oct_linear linear;
    oct_gated_linear gated_linear;
    oct_rope_kv rope_kv;
    oct_attention attention;
    oct_select_rows select_rows;
    oct_sample sample;
    oct_moe moe;
  };
} oct_instruction;

typedef struct oct_program oct_program;

// Copies both arrays; allocates the arena for max_tokens, max_logit_rows and, if the program attends, requests of
// max_blocks blocks. Fails, naming the instruction, on operands
// of the wrong kind, shape or number.
oct_program* oct_program_create(oct_context*, oct_kv_cache*, const oct_buffer*, int num_buffers, const oct_instruction*,
                                int num_instructions, int max_tokens, int max_logit_rows, int max_blocks);
int64_t oct_program_arena_bytes(const oct_program*);
// Test access to an fp32 buffer of the arena, [rows, columns].
float* oct_program_buffer(oct_program*, int buffer);
void oct_program_destroy(oct_program*);

// What one thread has spent on an instruction: on its share, and then waiting for the others.
typedef struct {
  int64_t work_ns;
  int64_t wait_ns;
} oct_instruction_time;

// From now on every run adds to times[threads of the context][num_instructions]; NULL: no longer. Not beside a run.
void oct_program_profile(oct_program*, oct_instruction_time* times);

// ---- step: one ragged batch --------------------------------------------------------------------------------------

// What becomes of a logit row. Log probabilities are taken from the logits as the model gives them (after its softcap);
// then, in vLLM's order: mask, biases, penalties (repetition, frequency, presence), temperature, min_p, top_k, top_p.
typedef struct {
  float temperature;          // 0: greedy
  int32_t top_k;              // 0: off
  float top_p;                // 1: off
  float min_p;                // 0: off
  float repetition_penalty;   // 1: off; over prompt and output
  float frequency_penalty;    // 0: off; for each time in the output
  float presence_penalty;     // 0: off; once if in the output
  int32_t scored_token;       // -1: a token is drawn; else none is, and log probabilities are those of this token
  int32_t num_logprobs;       // -1: none; k: log probability and rank of the token, and the k likeliest tokens
  int32_t first_logprob;      // where in top_token_ids and top_logprobs the k begin
  int32_t first_bias;         // where in bias_token_ids and bias_values its biases begin
  int32_t num_biases;
  uint64_t seed;
  int64_t position;           // index of the token to be drawn in its request; keys the random numbers with seed
  const int32_t* token_ids;   // [position] tokens of the request so far; read only for penalties
  int64_t num_prompt_tokens;  // of these; the rest is output
  const uint32_t* mask;       // NULL, or [(N + 31) / 32]: only tokens t whose bit t % 32 of word t / 32 is set
} oct_sampling;

typedef struct {
  int32_t num_tokens;      // T
  int32_t num_requests;    // R
  int32_t num_logit_rows;  // L
  int32_t max_blocks;      // row length of block_tables
  int32_t num_table_rows;  // of each group in block_tables
  const int32_t* token_ids;      // [T]
  const int32_t* positions;      // [T]
  const int32_t* query_starts;   // [R + 1]: tokens query_starts[r] .. query_starts[r + 1] - 1 belong to request r
  // [groups of the KV cache, num_table_rows, max_blocks]: position p of request r is in slot p % 16 of page
  // block_tables[group][table_rows[r]][p / 16]. Pages that no query of the step sees may have any number.
  const int32_t* block_tables;
  const int32_t* table_rows;     // [R]
  const int32_t* logit_rows;     // [L]: token index, ascending

  const oct_sampling* sampling;    // [L]
  int32_t num_biases;
  int32_t num_top_logprobs;
  const int32_t* bias_token_ids;   // [num_biases]
  const float* bias_values;        // [num_biases], added to the logit; -inf forbids the token

  // Pages copied before anything else, one after the other, in every layer of group copy_groups[i]: page copy_sources[i]
  // to page copy_destinations[i].
  int32_t num_copies;
  const int32_t* copy_groups;
  const int32_t* copy_sources;
  const int32_t* copy_destinations;

  int32_t* sampled_token_ids;  // out [L]; the scored token where there is one
  float* logprobs;             // out [L] of the token, where num_logprobs >= 0; never below -9999
  int32_t* ranks;              // out [L] of the token, where num_logprobs >= 0; 1 is the likeliest
  int32_t* top_token_ids;      // out [num_top_logprobs], the likeliest first; -1 where logits are NaN
  float* top_logprobs;         // out [num_top_logprobs]
  float* logits;               // out [L, vocabulary] after mask, biases and penalties, or NULL
} oct_step;

int oct_run(oct_program*, const oct_step*);

// ---- measuring ---------------------------------------------------------------------------------------------------
double oct_measure_barrier_ns(oct_context*, int rounds);
double oct_measure_read_gbps(oct_context*, int64_t bytes, int use_huge_pages);
// 10^9 operations a second of all threads together, computing in registers; what a type is multiplied by is up to the
// instruction set: bf16 as fp32 where it has no bf16.
enum oct_peak { OCT_PEAK_F32 = 0, OCT_PEAK_BF16 = 1, OCT_PEAK_INT8 = 2 };
double oct_measure_peak_gops(oct_context*, int type);

#if defined(OCT_BUILDING)
#pragma GCC visibility pop
#endif

#ifdef __cplusplus
}
#endif
