// AVX-512 in terms of AVX2, to test its kernels on machines without it: SIMDe's implementations under the names of the
// intrinsics, and the ones it lacks. Only a build with OCTAVO_EMULATE_AVX512 sees this.
#pragma once
#include <string.h>

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

inline __m128i emulated_cvtepi32_epi8(__m512i values) {
  alignas(64) int32_t wide[16];
  alignas(16) int8_t narrow[16];
  _mm512_store_si512(wide, values);
  for (int i = 0; i < 16; ++i) narrow[i] = int8_t(wide[i]);
  return _mm_load_si128(reinterpret_cast<const __m128i*>(narrow));
}

inline __m512i emulated_cvtepu16_epi32(__m256i values) {
  alignas(32) uint16_t narrow[16];
  alignas(64) int32_t wide[16];
  _mm256_store_si256(reinterpret_cast<__m256i*>(narrow), values);
  for (int i = 0; i < 16; ++i) wide[i] = narrow[i];
  return _mm512_load_si512(wide);
}

// To nearest even, subnormals to zero, NaN quiet: as the processor does whatever its mode.
inline uint16_t emulated_bf16(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  uint32_t exponent = bits >> 23 & 0xff;
  if (exponent == 0) return uint16_t(bits >> 16 & 0x8000);
  if (exponent == 0xff && bits << 9 != 0) return uint16_t(bits >> 16 | 0x40);
  return uint16_t((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

// The second vector comes first.
inline __m512i emulated_cvtne2ps_pbh(__m512 high, __m512 low) {
  alignas(64) float values[32];
  alignas(64) uint16_t rounded[32];
  _mm512_store_ps(values, low);
  _mm512_store_ps(values + 16, high);
  for (int i = 0; i < 32; ++i) rounded[i] = emulated_bf16(values[i]);
  return _mm512_load_si512(rounded);
}

inline __m512i emulated_cvtps_epi32(__m512 values) {
  alignas(64) float x[16];
  alignas(64) int32_t y[16];
  _mm512_store_ps(x, values);
  for (int i = 0; i < 16; ++i) y[i] = _mm_cvtss_si32(_mm_set_ss(x[i]));  // as the processor rounds and saturates
  return _mm512_load_si512(y);
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

inline int emulated_reduce_add_epi32(__m512i values) {
  alignas(64) int32_t x[16];
  _mm512_store_si512(x, values);
  int sum = 0;
  for (int value : x) sum += value;
  return sum;
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
#define _mm512_cvtepi32_epi8 emulated_cvtepi32_epi8
#define _mm512_cvtepi32_ps emulated_cvtepi32_ps
#define _mm512_cvtepu16_epi32 emulated_cvtepu16_epi32
#define _mm512_cvtne2ps_pbh emulated_cvtne2ps_pbh
#define _mm512_cvtph_ps emulated_cvtph_ps
#define _mm512_cvtps_epi32 emulated_cvtps_epi32
#define _mm512_reduce_add_epi32 emulated_reduce_add_epi32
#define _mm512_reduce_add_ps emulated_reduce_add_ps
#define _mm512_reduce_max_ps emulated_reduce_max_ps
