// A vector of fp32 for the scalar build: one lane. See vec_avx2.h and vec_avx512.h for the same interface in hardware.
#pragma once
#include <math.h>
#include <stdint.h>
#include <string.h>

namespace {

inline float bits_to_float(uint32_t bits) {
  float value;
  memcpy(&value, &bits, 4);
  return value;
}
inline uint32_t float_to_bits(float value) {
  uint32_t bits;
  memcpy(&bits, &value, 4);
  return bits;
}
inline float bf16_to_float(uint16_t value) { return bits_to_float(uint32_t(value) << 16); }
// Round to nearest, ties to even; NaN stays NaN.
inline uint16_t float_to_bf16(float value) {
  uint32_t bits = float_to_bits(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return uint16_t((bits >> 16) | 0x40);
  return uint16_t((bits + 0x7fffu + ((bits >> 16) & 1)) >> 16);
}
inline float half_to_float(uint16_t half) {
  uint32_t sign = uint32_t(half & 0x8000) << 16, rest = half & 0x7fff;
  if (rest >= 0x7c00) return bits_to_float(sign | 0x7f800000u | ((rest & 0x3ff) << 13));
  if (rest >= 0x0400) return bits_to_float(sign | ((rest << 13) + 0x38000000u));
  float value = float(rest) * 5.9604644775390625e-08f;  // subnormal: rest * 2^-24
  return sign ? -value : value;
}

#ifdef OCT_VEC_SCALAR
struct F32 {
  static constexpr int width = 1;
  float v;
  static F32 zero() { return {0.0f}; }
  static F32 set1(float x) { return {x}; }
  static F32 load(const float* p) { return {*p}; }
  static F32 load_bf16(const uint16_t* p) { return {bf16_to_float(*p)}; }
  void store(float* p) const { *p = v; }
  void store_bf16(uint16_t* p) const { *p = float_to_bf16(v); }
  float sum() const { return v; }
  float max() const { return v; }
};
inline F32 operator+(F32 a, F32 b) { return {a.v + b.v}; }
inline F32 operator-(F32 a, F32 b) { return {a.v - b.v}; }
inline F32 operator*(F32 a, F32 b) { return {a.v * b.v}; }
inline F32 operator/(F32 a, F32 b) { return {a.v / b.v}; }
inline F32 fma(F32 a, F32 b, F32 c) { return {fmaf(a.v, b.v, c.v)}; }
inline F32 max(F32 a, F32 b) { return {a.v > b.v ? a.v : b.v}; }
inline F32 min(F32 a, F32 b) { return {a.v < b.v ? a.v : b.v}; }
inline F32 abs(F32 a) { return {fabsf(a.v)}; }
inline F32 round(F32 a) { return {nearbyintf(a.v)}; }
inline F32 scale_by_power_of_two(F32 a, F32 exponent) {
  return {ldexpf(a.v, exponent.v < -300.0f ? -300 : int(exponent.v))};
}
#endif

}  // namespace
