// Rotary position embedding (RoFormer, arXiv 2104.09864; pairs half a head apart, as in GPT-NeoX) and the KV cache's
// write side: norms and rotates the heads of q and k, stores k and v in their pages.
#pragma once
#include "kernels.h"
#include "kv_store.h"
#include "norm.h"
#include "vec.h"

namespace octavo {
namespace {

struct SinCos {
  double sin;
  double cos;
};

// For 0 <= angle < 2^20 quarter turns; within 1e-9. Double, so that far positions keep fp32 accuracy.
inline SinCos sin_cos(double angle) {
  constexpr double quarter_head = 1.57079632673412561417, quarter_tail = 6.07710050650619224932e-11;  // 33 bits, rest
  int quarters = int(angle * 0.63661977236758134308 + 0.5);
  double r = (angle - quarters * quarter_head) - quarters * quarter_tail;
  double z = r * r;
  double sin = r * (1 + z * (-1.0 / 6 + z * (1.0 / 120 + z * (-1.0 / 5040 + z * (1.0 / 362880 - z / 39916800)))));
  double cos = 1 + z * (-1.0 / 2 + z * (1.0 / 24 + z * (-1.0 / 720 + z * (1.0 / 40320 - z / 3628800))));
  double turned_sin = quarters & 1 ? cos : sin, turned_cos = quarters & 1 ? sin : cos;
  return {quarters & 2 ? -turned_sin : turned_sin, (quarters + 1) & 2 ? -turned_cos : turned_cos};
}

inline void rotary_table(const RotaryTableArgs& args, ThreadShare share) {
  int first = int(int64_t(args.num_tokens) * share.thread / share.num_threads);
  int last = int(int64_t(args.num_tokens) * (share.thread + 1) / share.num_threads);
  for (int token = first; token < last; ++token) {
    float* cos_row = args.dst.data + token * args.dst.stride;
    float* sin_row = cos_row + args.num_frequencies;
    double position = args.positions[token];
    for (int i = 0; i < args.num_frequencies; ++i) {
      SinCos value = sin_cos(position * double(args.inverse_frequencies[i]));
      cos_row[i] = float(value.cos) * args.magnitude;
      sin_row[i] = float(value.sin) * args.magnitude;
    }
  }
}

// Rotates the pairs (x[i], x[i + num_frequencies]) by the angles of a row of the rotary table.
inline void rotate_pairs(float* x, const float* rotary, int num_frequencies) {
  constexpr int width = F32::width;
  const float* cos_row = rotary;
  const float* sin_row = rotary + num_frequencies;
  float* y = x + num_frequencies;
  int i = 0;
  for (; i + width <= num_frequencies; i += width) {
    F32 cos = F32::load(cos_row + i), sin = F32::load(sin_row + i), first = F32::load(x + i), second = F32::load(y + i);
    (first * cos - second * sin).store(x + i);
    (second * cos + first * sin).store(y + i);
  }
  for (; i < num_frequencies; ++i) {
    float cos = cos_row[i], sin = sin_row[i], first = x[i], second = y[i];
    x[i] = first * cos - second * sin;
    y[i] = second * cos + first * sin;
  }
}

inline void norm_and_rotate(float* x, const RopeKvArgs& args, const float* norm, int token) {
  int head_size = args.kv.head_size;
  if (norm) scale_by_weight(x, inverse_rms(x, head_size, args.epsilon), norm, head_size, x);
  if (args.rotary.data) rotate_pairs(x, args.rotary.data + token * args.rotary.stride, args.rotary.columns / 2);
}

inline void multiply(float* x, const float* y, int count) {
  int i = 0;
  for (; i + F32::width <= count; i += F32::width) (F32::load(x + i) * F32::load(y + i)).store(x + i);
  for (; i < count; ++i) x[i] *= y[i];
}

// Consecutive tokens of a request whose keys and values go to one page.
struct Stretch {
  int first_token;  // of the step
  int num_tokens;
  int slot;  // of the first token
  uint8_t* page;
};

// Goes through the stretches of a batch in the order of its tokens.
class Stretches {
 public:
  Stretches(const KvLayer& kv, const Batch& batch) : kv_(kv), batch_(batch) {}

  // Without another stretch, num_tokens is 0.
  Stretch next() {
    if (token_ == batch_.num_tokens) return {};
    while (batch_.query_starts[request_ + 1] <= token_) ++request_;
    int position = batch_.positions[token_], slot = position % OCT_BLOCK_TOKENS;
    int left_in_page = OCT_BLOCK_TOKENS - slot, left = batch_.query_starts[request_ + 1] - token_;
    int64_t block = batch_.block_table(request_)[position / OCT_BLOCK_TOKENS];
    Stretch found{token_, left < left_in_page ? left : left_in_page, slot, kv_.data + block * kv_.page_bytes};
    token_ += found.num_tokens;
    return found;
  }

 private:
  const KvLayer& kv_;
  const Batch& batch_;
  int token_ = 0;
  int request_ = 0;
};

// Stores keys, or else values, of one head.
template <class Pages>
inline void store_head(const HeadRows& rows, const KvLayer& kv, uint8_t* page, int kv_head, bool are_keys) {
  uint8_t* keys = page + kv.keys_offset(kv_head);
  uint8_t* values = keys + kv.keys_bytes;
  float* value_scales = reinterpret_cast<float*>(values) - OCT_BLOCK_TOKENS;
  if (are_keys) return store_keys<Pages>(rows, kv.head_size, keys, value_scales - OCT_BLOCK_TOKENS);
  store_values<Pages>(rows, kv.head_size, values, value_scales);
}

// `head` counts the heads of a qkv row: q heads, then k heads, then v heads. Keys are multiplied by `key_factors`.
inline void rope_kv_head(const RopeKvArgs& args, const Stretch& stretch, int head, const float* key_factors) {
  int head_size = args.kv.head_size, kv_head = head - args.num_heads;
  bool is_query = kv_head < 0, is_key = !is_query && kv_head < args.kv.num_kv_heads;
  const float* factors = nullptr;
  if (args.key_divisors && is_query) {
    factors = args.key_divisors + int64_t(head / (args.num_heads / args.kv.num_kv_heads)) * head_size;
  } else if (args.key_divisors && is_key) {
    factors = key_factors + int64_t(kv_head) * head_size;
  }
  float* rows = args.qkv.data + stretch.first_token * args.qkv.stride + int64_t(head) * head_size;
  for (int i = 0; i < stretch.num_tokens && (is_query || is_key); ++i) {
    float* x = rows + i * args.qkv.stride;
    norm_and_rotate(x, args, is_query ? args.q_norm : args.k_norm, stretch.first_token + i);
    if (factors) multiply(x, factors, head_size);
  }
  if (is_query) return;
  HeadRows head_rows{rows, args.qkv.stride, stretch.num_tokens, stretch.slot};
  if (!is_key) kv_head -= args.kv.num_kv_heads;
  if (args.kv.dtype == OCT_KV_INT8) return store_head<Int8Pages>(head_rows, args.kv, stretch.page, kv_head, is_key);
  store_head<Bf16Pages>(head_rows, args.kv, stretch.page, kv_head, is_key);
}

inline void invert(const float* x, int count, float* dst) {
  int i = 0;
  for (; i + F32::width <= count; i += F32::width) (F32::set1(1.0f) / F32::load(x + i)).store(dst + i);
  for (; i < count; ++i) dst[i] = 1.0f / x[i];
}

// Heads of stretches are shared out evenly, so that even one token keeps all threads busy.
inline void rope_kv(const RopeKvArgs& args, ThreadShare share) {
  int heads = args.num_heads + 2 * args.kv.num_kv_heads;
  int64_t items = int64_t(args.batch.num_tokens) * heads;
  int64_t first = items * share.thread / share.num_threads, last = items * (share.thread + 1) / share.num_threads;
  int num_factors = args.kv.num_kv_heads * args.kv.head_size;
  float* key_factors = static_cast<float*>(__builtin_alloca(size_t(num_factors) * sizeof(float)));
  if (args.key_divisors) invert(args.key_divisors, num_factors, key_factors);
  Stretches stretches(args.kv, args.batch);
  for (Stretch stretch = stretches.next(); stretch.num_tokens > 0; stretch = stretches.next()) {
    int64_t item = int64_t(stretch.first_token) * heads;
    if (item >= last) return;
    if (item + stretch.num_tokens * heads <= first) continue;
    for (int head = 0; head < heads; ++head, item += stretch.num_tokens) {
      if (first <= item && item < last) rope_kv_head(args, stretch, head, key_factors);
    }
  }
}

}  // namespace
}  // namespace octavo
