// Loops that show what no kernel of this instruction set can exceed: multiply-adds that never leave the registers, and
// plain reading.
#pragma once
#include "vec.h"

#include "../include/octavo.h"

namespace octavo {
namespace {

// Independent sums: as many as a register tile has, so that none waits for the one before.
#if defined(OCT_VEC_SCALAR)
constexpr int kPeakSums = 4;
#elif defined(OCT_VEC_AVX512)
constexpr int kPeakSums = 24;
#else
constexpr int kPeakSums = 12;
#endif

// A value the compiler cannot know.
template <class Value>
inline Value opaque(Value value) {
  asm volatile("" : "+m"(value));
  return value;
}

// Runs `rounds` rounds of kPeakSums steps `sum = step(sum)` and hides from the compiler what comes of them.
template <class Sum, class Step>
inline void run_rounds(Sum start, int64_t rounds, Step step) {
  Sum sums[kPeakSums];
#pragma GCC unroll 24
  for (int i = 0; i < kPeakSums; ++i) sums[i] = opaque(start);  // equal sums would be computed once
  for (int64_t round = 0; round < rounds; ++round) {
#pragma GCC unroll 24
    for (int i = 0; i < kPeakSums; ++i) sums[i] = step(sums[i]);
  }
#pragma GCC unroll 24
  for (int i = 0; i < kPeakSums; ++i) asm volatile("" : : "m"(sums[i]));
}

inline int64_t run_f32_rounds(int64_t rounds) {
  F32 x = opaque(F32::set1(1.0f)), y = opaque(F32::set1(1e-9f));
  run_rounds(F32::zero(), rounds, [=](F32 sum) { return fma(x, y, sum); });
  return rounds * kPeakSums * F32::width * 2;
}

#if defined(OCT_VEC_AVX512)
inline int64_t run_bf16_rounds(int64_t rounds) {
  __m512i x = opaque(_mm512_set1_epi16(0x3f80)), y = opaque(_mm512_set1_epi16(0x3080));
  run_rounds(_mm512_setzero_ps(), rounds,
             [=](__m512 sum) { return _mm512_dpbf16_ps(sum, (__m512bh)x, (__m512bh)y); });
  return rounds * kPeakSums * 32 * 2;
}

inline int64_t run_int8_rounds(int64_t rounds) {
  typedef int Ints __attribute__((vector_size(64)));
  __m512i x = opaque(_mm512_set1_epi8(1)), y = opaque(_mm512_set1_epi8(0));
  run_rounds(Ints{}, rounds, [=](Ints sum) { return Ints(_mm512_dpbusd_epi32(__m512i(sum), x, y)); });
  return rounds * kPeakSums * 64 * 2;
}
#elif defined(OCT_VEC_AVX2)
inline int64_t run_bf16_rounds(int64_t rounds) { return run_f32_rounds(rounds); }  // bf16 is widened to fp32

inline int64_t run_int8_rounds(int64_t rounds) {
  typedef short Words __attribute__((vector_size(32)));
  __m256i x = opaque(_mm256_set1_epi8(1)), y = opaque(_mm256_set1_epi8(0));
  run_rounds(Words{}, rounds, [=](Words sum) {
    Words product;  // in assembly, or it would be computed once
    asm volatile("vpmaddubsw %2, %1, %0" : "=x"(product) : "x"(x), "x"(y));
    return Words(_mm256_add_epi16(__m256i(sum), __m256i(product)));
  });
  return rounds * kPeakSums * 32 * 2;
}
#else
inline int64_t run_bf16_rounds(int64_t rounds) { return run_f32_rounds(rounds); }

inline int64_t run_int8_rounds(int64_t rounds) {
  int x = opaque(1), y = opaque(0);
  run_rounds(0, rounds, [=](int sum) {
    sum += x * y;
    asm volatile("" : "+r"(sum));
    return sum;
  });
  return rounds * kPeakSums * 2;
}
#endif

// Operations done, a multiplication and an addition counting as two.
inline int64_t run_peak(int type, int64_t rounds) {
  switch (type) {
    case OCT_PEAK_F32: return run_f32_rounds(rounds);
    case OCT_PEAK_BF16: return run_bf16_rounds(rounds);
  }
  return run_int8_rounds(rounds);
}

// The sum of all 64-bit words but for the last few bytes, read from four places at once: one alone is up to 5 % slower.
inline uint64_t read_sum(const uint8_t* data, int64_t bytes) {
  typedef uint64_t Words __attribute__((vector_size(64)));
  constexpr int places = 4, lines = 4;
  int64_t share = bytes / places / int64_t(lines * sizeof(Words)) * int64_t(lines * sizeof(Words));
  Words sums[lines] = {};
  for (int64_t i = 0; i < share; i += lines * sizeof(Words)) {
#pragma GCC unroll 4
    for (int place = 0; place < places; ++place) {
#pragma GCC unroll 4
      for (int line = 0; line < lines; ++line) {
        Words words;
        memcpy(&words, data + place * share + i + line * int64_t(sizeof words), sizeof words);
        sums[line] += words;
      }
    }
  }
  Words total = (sums[0] + sums[1]) + (sums[2] + sums[3]);
  uint64_t sum = 0;
  for (int i = 0; i < 8; ++i) sum += total[i];
  return sum;
}

}  // namespace
}  // namespace octavo
