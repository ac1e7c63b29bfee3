// What attention keeps of each row while it goes through the keys, and how two parts of it become one: the online
// softmax (arXiv 1805.02867) in the form that merges partial results (arXiv 2112.05682).
//
// Every key tile gives a part of its own. Parts are merged in the order of their keys, so it does not matter to a
// single bit who computed them.
#pragma once
#include <math.h>

#include "attention_items.h"
#include "math.h"
#include "vec.h"

namespace octavo {
namespace {

constexpr int kRowPadding = 16;  // row-wise arrays are as long as whole vectors

inline int padded_rows(int rows) { return (rows + kRowPadding - 1) / kRowPadding * kRowPadding; }

// For each row of one key/value head: largest score, sum of 2^(score - largest), and the values weighted so, [rows, C].
struct RowStates {
  float* maximum;
  float* sum;
  float* output;
};

inline int64_t row_states_floats(int rows, int head_size) {
  return 2 * padded_rows(rows) + (int64_t(rows) * head_size + kRowPadding - 1) / kRowPadding * kRowPadding;
}
// Of all heads whose rows fit at once.
inline int64_t all_row_states_floats(int num_heads, int num_kv_heads, int head_size) {
  return row_states_floats(scratch_rows(num_heads), head_size) + int64_t(num_kv_heads) * 3 * kRowPadding;
}

inline RowStates row_states(float* memory, int rows) {
  return {memory, memory + padded_rows(rows), memory + 2 * padded_rows(rows)};
}

// No keys seen yet.
inline void clear(const RowStates& states, int rows, int head_size) {
  for (int row = 0; row < padded_rows(rows); ++row) {
    states.maximum[row] = -INFINITY;
    states.sum[row] = 0;
  }
  memset(states.output, 0, size_t(rows) * head_size * sizeof(float));
}

// What a part's rows and those before are multiplied by when they become one. [padded rows]
struct MergeFactors {
  float* keep;
  float* add;
};

// Merges the largest scores and the sums; outputs become keep * before + add * part.
[[gnu::noinline]] void merge_sums(const RowStates& states, const float* part_maximum, const float* part_sum, int rows,
                                  const MergeFactors& factors) {
  for (int row = 0; row < rows; row += F32::width) {
    F32 before = F32::load(states.maximum + row), part = F32::load(part_maximum + row);
    F32 maximum = max(before, part);
    F32 base = max(maximum, F32::set1(-3e38f));  // 2^(-inf - base) is zero also if nothing has been seen
    F32 keep = exp2(before - base), add = exp2(part - base);
    maximum.store(states.maximum + row);
    fma(F32::load(part_sum + row), add, F32::load(states.sum + row) * keep).store(states.sum + row);
    keep.store(factors.keep + row);
    add.store(factors.add + row);
  }
}

inline F32 merged_output(F32 before, F32 part, float keep, float add) {
  return fma(part, F32::set1(add), before * F32::set1(keep));
}
inline float merged_output(float before, float part, float keep, float add) {
  return fmaf(part, add, before * keep);
}

inline void merge(const RowStates& states, const RowStates& part, int rows, int head_size,
                  const MergeFactors& factors) {
  merge_sums(states, part.maximum, part.sum, rows, factors);
  for (int row = 0; row < rows; ++row) {
    float* dst = states.output + int64_t(row) * head_size;
    const float* src = part.output + int64_t(row) * head_size;
    float keep = factors.keep[row], add = factors.add[row];
    int i = 0;
    for (; i + F32::width <= head_size; i += F32::width) {
      merged_output(F32::load(dst + i), F32::load(src + i), keep, add).store(dst + i);
    }
    for (; i < head_size; ++i) dst[i] = merged_output(dst[i], src[i], keep, add);
  }
}

}  // namespace
}  // namespace octavo
