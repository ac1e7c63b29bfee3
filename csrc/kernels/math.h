// Elementary functions over the fp32 vector. Coefficients are our own minimax fits.
#pragma once
#include "vec.h"

namespace octavo {
namespace {

constexpr float kLog2E = 1.44269504f;

// x = n ln 2 + r with |r| <= ln 2 / 2, and expm1(r) as a polynomial: relative error below 2e-8 before rounding.
struct ReducedExponential {
  F32 n;
  F32 expm1_r;
};

inline ReducedExponential reduce_exponential(F32 x) {
  F32 n = round(x * F32::set1(kLog2E));
  F32 r = fma(n, F32::set1(-0.693145751953125f), x);  // 15 bits of ln 2: n times it is exact
  r = fma(n, F32::set1(-1.42860682e-6f), r);
  F32 tail = F32::set1(0.0013814320555f);
  tail = fma(tail, r, F32::set1(0.0083688516166f));
  tail = fma(tail, r, F32::set1(0.0416684001684f));
  tail = fma(tail, r, F32::set1(0.1666651964188f));
  tail = fma(tail, r, F32::set1(0.4999999403954f));
  return {n, fma(tail, r * r, r)};
}

// Within 1e-7 relative above 2^-126; below, zero or a denormal; 0 at -infinity, exactly 1 at 0, at most 2e38 (x >= 88).
// NaN stays NaN.
inline F32 exp(F32 x) {
  x = min(F32::set1(88.0f), max(F32::set1(-104.0f), x));
  ReducedExponential reduced = reduce_exponential(x);
  return scale_by_power_of_two(F32::set1(1.0f) + reduced.expm1_r, reduced.n);
}

// Within 2e-7 relative above 2^-126; below, zero or a denormal; exactly 1 at 0. x is finite and at most 127, or NaN.
inline F32 exp2_finite(F32 x) {
  F32 n = round(x);
  F32 r = x - n;
  F32 tail = F32::set1(0.0013264658628f);
  tail = fma(tail, r, F32::set1(0.0096715660766f));
  tail = fma(tail, r, F32::set1(0.0555073432625f));
  tail = fma(tail, r, F32::set1(0.2402224093676f));
  tail = fma(tail, r, F32::set1(0.6931470036507f));
  return scale_by_power_of_two(fma(tail, r, F32::set1(1.0f)), n);
}

// The same with 0 at -infinity.
inline F32 exp2(F32 x) {
  return exp2_finite(max(F32::set1(-150.0f), x));
}

// Within 3e-7 relative.
inline F32 tanh(F32 x) {
  F32 twice = min(F32::set1(40.0f), max(F32::set1(-40.0f), x + x));
  ReducedExponential reduced = reduce_exponential(twice);
  F32 power = scale_by_power_of_two(F32::set1(1.0f), reduced.n);
  F32 expm1 = fma(power, reduced.expm1_r, power - F32::set1(1.0f));
  return expm1 / (expm1 + F32::set1(2.0f));
}

}  // namespace
}  // namespace octavo
