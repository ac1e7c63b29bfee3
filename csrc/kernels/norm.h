// RMS norm of rows: x / sqrt(mean(x^2) + epsilon) * weight.
#pragma once
#include "kernels.h"
#include "operand.h"
#include "vec.h"

namespace octavo {
namespace {

// The order of summation depends on `count` alone.
inline float sum_of_squares(const float* x, int count) {
  constexpr int width = F32::width;
  F32 sums[4] = {F32::zero(), F32::zero(), F32::zero(), F32::zero()};
  int i = 0;
  for (; i + 4 * width <= count; i += 4 * width) {
    for (int j = 0; j < 4; ++j) {
      F32 value = F32::load(x + i + j * width);
      sums[j] = fma(value, value, sums[j]);
    }
  }
  for (; i + width <= count; i += width) {
    F32 value = F32::load(x + i);
    sums[0] = fma(value, value, sums[0]);
  }
  float sum = ((sums[0] + sums[1]) + (sums[2] + sums[3])).sum();
  for (; i < count; ++i) sum += x[i] * x[i];
  return sum;
}

inline float inverse_rms(const float* x, int count, float epsilon) {
  return 1.0f / sqrtf(sum_of_squares(x, count) / float(count) + epsilon);
}

// dst may be x.
inline void scale_by_weight(const float* x, float factor, const float* weight, int count, float* dst) {
  constexpr int width = F32::width;
  F32 factors = F32::set1(factor);
  int i = 0;
  for (; i + width <= count; i += width) (F32::load(x + i) * factors * F32::load(weight + i)).store(dst + i);
  for (; i < count; ++i) dst[i] = x[i] * factor * weight[i];
}

inline void add_scaled_by_weight(const float* x, float factor, const float* weight, int count, float* dst) {
  constexpr int width = F32::width;
  F32 factors = F32::set1(factor);
  int i = 0;
  for (; i + width <= count; i += width) {
    (F32::load(dst + i) + F32::load(x + i) * factors * F32::load(weight + i)).store(dst + i);
  }
  for (; i < count; ++i) dst[i] += x[i] * factor * weight[i];
}

inline void rms_norm(const RmsNormArgs& args, ThreadShare share) {
  int columns = args.src.columns;
  int first = int(int64_t(args.num_rows) * share.thread / share.num_threads);
  int last = int(int64_t(args.num_rows) * (share.thread + 1) / share.num_threads);
  if (first == last) return;
  const Matrix& matrix = args.dst.matrix;
  float* values = matrix.data ? nullptr : static_cast<float*>(__builtin_alloca(size_t(columns) * sizeof(float)));
  for (int row = first; row < last; ++row) {
    const float* x = args.src.data + row * args.src.stride;
    float* dst = matrix.data ? matrix.data + row * matrix.stride : values;
    float factor = inverse_rms(x, columns, args.epsilon);
    if (args.accumulate) {
      add_scaled_by_weight(x, factor, args.weight, columns, dst);
    } else {
      scale_by_weight(x, factor, args.weight, columns, dst);
    }
    if (args.dst.operand.data) quantize_row(dst, args.dst.operand, row);
    if (args.dst.operand2.data) quantize_row(dst, args.dst.operand2, row);
  }
}

}  // namespace
}  // namespace octavo
