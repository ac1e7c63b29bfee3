// Rotary position embedding (RoFormer, arXiv 2104.09864; pairs half a head apart, as in GPT-NeoX) and the KV cache's
// write side: norms and rotates the heads of q and k, stores k and v in their pages.
#pragma once
#include "kernels.h"
#include "kv_int8.h"
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

inline void divide(float* x, const float* y, int count) {
  int i = 0;
  for (; i + F32::width <= count; i += F32::width) (F32::load(x + i) / F32::load(y + i)).store(x + i);
  for (; i < count; ++i) x[i] /= y[i];
}

inline uint8_t* page_of(const KvLayer& kv, const int32_t* block_table, int position) {
  return kv.data + block_table[position / OCT_BLOCK_TOKENS] * kv.page_bytes;
}

// Of the keys of a head in a page; those of its values follow.
inline float* key_scales(const KvLayer& kv, uint8_t* page, int kv_head) {
  return reinterpret_cast<float*>(page + kv.keys_offset(kv_head) + kv.codes_bytes());
}

inline void store_key(const float* k, const KvLayer& kv, uint8_t* page, int kv_head, int slot) {
  uint8_t* keys = page + kv.keys_offset(kv_head);
  if (kv.dtype == OCT_KV_INT8) {
    int8_t* codes = reinterpret_cast<int8_t*>(keys) + 2 * slot;
    store_codes(k, kv.head_size, key_scales(kv, page, kv_head) + slot, [codes](int c, int code) {
      codes[c / 2 * (2 * OCT_BLOCK_TOKENS) + c % 2] = int8_t(code);
    });
    return;
  }
  uint16_t* dst = reinterpret_cast<uint16_t*>(keys) + 2 * slot;
  for (int c = 0; c < kv.head_size; c += 2) {
    dst[c * OCT_BLOCK_TOKENS] = float_to_bf16(k[c]);
    dst[c * OCT_BLOCK_TOKENS + 1] = float_to_bf16(k[c + 1]);
  }
}

inline void store_value(const float* v, const KvLayer& kv, uint8_t* page, int kv_head, int slot) {
  uint8_t* values = page + kv.values_offset(kv_head);
  if (kv.dtype == OCT_KV_INT8) {
    int8_t* codes = reinterpret_cast<int8_t*>(values) + slot / 2 * (2 * kv.head_size) + slot % 2;
    store_codes(v, kv.head_size, key_scales(kv, page, kv_head) + OCT_BLOCK_TOKENS + slot,
                [codes](int c, int code) { codes[2 * c] = int8_t(code); });
    return;
  }
  uint16_t* dst = reinterpret_cast<uint16_t*>(values) + slot / 2 * (2 * kv.head_size) + slot % 2;
  for (int c = 0; c < kv.head_size; ++c) dst[2 * c] = float_to_bf16(v[c]);
}

// `head` counts the heads of a qkv row: q heads, then k heads, then v heads.
inline void rope_kv_head(const RopeKvArgs& args, const int32_t* block_table, int token, int head) {
  int head_size = args.kv.head_size;
  float* x = args.qkv.data + token * args.qkv.stride + int64_t(head) * head_size;
  if (head < args.num_heads) {
    norm_and_rotate(x, args, args.q_norm, token);
    int kv_head = head / (args.num_heads / args.kv.num_kv_heads);
    if (args.key_divisors) multiply(x, args.key_divisors + int64_t(kv_head) * head_size, head_size);
    return;
  }
  int position = args.batch.positions[token];
  uint8_t* page = page_of(args.kv, block_table, position);
  int kv_head = head - args.num_heads, slot = position % OCT_BLOCK_TOKENS;
  if (kv_head < args.kv.num_kv_heads) {
    norm_and_rotate(x, args, args.k_norm, token);
    if (args.key_divisors) divide(x, args.key_divisors + int64_t(kv_head) * head_size, head_size);
    store_key(x, args.kv, page, kv_head, slot);
  } else {
    store_value(x, args.kv, page, kv_head - args.kv.num_kv_heads, slot);
  }
}

// Heads of tokens are shared out evenly, so that even one token keeps all threads busy.
inline void rope_kv(const RopeKvArgs& args, ThreadShare share) {
  const Batch& batch = args.batch;
  int heads = args.num_heads + 2 * args.kv.num_kv_heads;
  int64_t items = int64_t(batch.num_tokens) * heads;
  int64_t item = items * share.thread / share.num_threads, last = items * (share.thread + 1) / share.num_threads;
  int request = 0;
  for (; item < last; ++item) {
    int token = int(item / heads);
    while (batch.query_starts[request + 1] <= token) ++request;
    rope_kv_head(args, batch.block_table(request), token, int(item % heads));
  }
}

}  // namespace
}  // namespace octavo
