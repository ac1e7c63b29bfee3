// AVX-512 in terms of AVX2, to test its kernels on machines without it: SIMDe's implementations under the names of the
// intrinsics, and the ones it lacks. Only a build with OCTAVO_EMULATE_AVX512 sees this.
#pragma once
#define SIMDE_ENABLE_NATIVE_ALIASES
#include <simde/x86/avx512.h>

namespace {

inline __m256i emulated_cvtepi32_epi16(__m512i values) {
  alignas(64) int32_t wide[16];
  alignas(32) int16_t narrow[16];
  _mm512_store_si512(wide, values);
  for (int i = 0; i < 16; ++i) narrow[i] = int16_t(wide[i]);
  return _mm256_load_si256(reinterpret_cast<const __m256i*>(narrow));
}

inline __m512 emulated_cvtph_ps(__m256i halves) {
  __m512 low = _mm512_castps256_ps512(_mm256_cvtph_ps(_mm256_castsi256_si128(halves)));
  return _mm512_insertf32x8(low, _mm256_cvtph_ps(_mm256_extracti128_si256(halves, 1)), 1);
}

inline __m512 emulated_cvtepi32_ps(__m512i values) {
  alignas(64) int32_t x[16];
  alignas(64) float y[16];
  _mm512_store_si512(x, values);
  for (int i = 0; i < 16; ++i) y[i] = float(x[i]);
  return _mm512_load_ps(y);
}

// In the order GCC reduces: halves onto each other.
inline float emulated_reduce_add_ps(__m512 values) {
  alignas(64) float x[16];
  _mm512_store_ps(x, values);
  for (int half = 8; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) x[i] = x[i] + x[i + half];
  }
  return x[0];
}

inline float emulated_reduce_max_ps(__m512 values) {
  alignas(64) float x[16];
  _mm512_store_ps(x, values);
  for (int half = 8; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) x[i] = x[i] > x[i + half] ? x[i] : x[i + half];
  }
  return x[0];
}

}  // namespace

#define _mm512_cvtepi32_epi16 emulated_cvtepi32_epi16
#define _mm512_cvtepi32_ps emulated_cvtepi32_ps
#define _mm512_cvtph_ps emulated_cvtph_ps
#define _mm512_reduce_add_ps emulated_reduce_add_ps
#define _mm512_reduce_max_ps emulated_reduce_max_ps
