// One step of a product with pairs in AVX2: sum[r][v] += left[r][0] * first(right[v]) + left[r][1] * second(right[v]).
//
// With twelve sums every register is taken, and GCC 12 spills sums if it may choose the order and form of the products:
// tiles of three rows and more are written out in assembly, with the mask in memory and pairs read twice.
#pragma once
#include "vec.h"

namespace octavo {
namespace {

alignas(32) constexpr uint32_t kSecondOfPair[8] = {0xffff0000u, 0xffff0000u, 0xffff0000u, 0xffff0000u,
                                                   0xffff0000u, 0xffff0000u, 0xffff0000u, 0xffff0000u};
struct EightPairs {
  uint16_t elements[16];
};
inline F32 first_of_pairs(const uint16_t* pairs) {
  F32 values;
  asm volatile("vmovdqu %1, %0\n\tvpslld $16, %0, %0"
               : "=x"(values.v)
               : "m"(*reinterpret_cast<const EightPairs*>(pairs)));
  return values;
}
inline F32 second_of_pairs(const uint16_t* pairs) {
  F32 values;
  asm volatile("vmovups %1, %0\n\tvandps %2, %0, %0"
               : "=x"(values.v)
               : "m"(*reinterpret_cast<const EightPairs*>(pairs)), "m"(kSecondOfPair));
  return values;
}
inline F32 broadcast(const float* value) {
  F32 values;
  asm volatile("vbroadcastss %1, %0" : "=x"(values.v) : "m"(*value));
  return values;
}
inline void add_product(F32& sum, F32 a, F32 b) {
  asm volatile("vfmadd231ps %2, %1, %0" : "+x"(sum.v) : "x"(a.v), "x"(b.v));
}

template <int rows, int vectors, class Values>
[[gnu::always_inline]] inline void add_tall_products(F32 (&sum)[rows][vectors], const float* left, int64_t left_stride,
                                                     const uint16_t* const (&right)[vectors], int64_t offset,
                                                     Values values_of) {
  F32 values[vectors];
#pragma GCC unroll 8
  for (int v = 0; v < vectors; ++v) values[v] = values_of(right[v] + offset);
#pragma GCC unroll 8
  for (int r = 0; r < rows; ++r) {
    F32 factor = broadcast(left + r * left_stride);
#pragma GCC unroll 8
    for (int v = 0; v < vectors; ++v) add_product(sum[r][v], factor, values[v]);
  }
}

// Vectors 1 and 3 follow 0 and 2 in memory. Factors in 12 to 14, values in 15.
inline void add_three_by_four(F32 (&sum)[3][4], const float* left, int64_t left_stride, const uint16_t* right0,
                              const uint16_t* right2) {
#define FACTORS(at)                                          \
  "vbroadcastss " at "(%[left]), %%ymm12\n\t"                \
  "vbroadcastss " at "(%[left],%[stride]), %%ymm13\n\t"      \
  "vbroadcastss " at "(%[left],%[stride],2), %%ymm14\n\t"
#define PRODUCTS(v)                                   \
  "vfmadd231ps %%ymm15, %%ymm12, %[s0" v "]\n\t"      \
  "vfmadd231ps %%ymm15, %%ymm13, %[s1" v "]\n\t"      \
  "vfmadd231ps %%ymm15, %%ymm14, %[s2" v "]\n\t"
#define FIRST(from, v) "vmovdqu " from ", %%ymm15\n\tvpslld $16, %%ymm15, %%ymm15\n\t" PRODUCTS(v)
#define SECOND(from, v) "vmovups " from ", %%ymm15\n\tvandps %[mask], %%ymm15, %%ymm15\n\t" PRODUCTS(v)
  asm volatile(FACTORS("0")
               FIRST("(%[right0])", "0") FIRST("32(%[right0])", "1")
               FIRST("(%[right2])", "2") FIRST("32(%[right2])", "3")
               FACTORS("4")
               SECOND("(%[right0])", "0") SECOND("32(%[right0])", "1")
               SECOND("(%[right2])", "2") SECOND("32(%[right2])", "3")
               : [s00] "+x"(sum[0][0].v), [s01] "+x"(sum[0][1].v), [s02] "+x"(sum[0][2].v), [s03] "+x"(sum[0][3].v),
                 [s10] "+x"(sum[1][0].v), [s11] "+x"(sum[1][1].v), [s12] "+x"(sum[1][2].v), [s13] "+x"(sum[1][3].v),
                 [s20] "+x"(sum[2][0].v), [s21] "+x"(sum[2][1].v), [s22] "+x"(sum[2][2].v), [s23] "+x"(sum[2][3].v)
               : [left] "r"(left), [stride] "r"(left_stride * int64_t(sizeof(float))), [right0] "r"(right0),
                 [right2] "r"(right2), [mask] "m"(kSecondOfPair)
               : "xmm12", "xmm13", "xmm14", "xmm15", "memory");
#undef FACTORS
#undef PRODUCTS
#undef FIRST
#undef SECOND
}

template <int rows, int vectors>
[[gnu::always_inline]] inline void add_pair_product(F32 (&sum)[rows][vectors], const float* left, int64_t left_stride,
                                                    const uint16_t* const (&right)[vectors], int64_t offset) {
  if constexpr (rows == 3 && vectors == 4) {
    add_three_by_four(sum, left, left_stride, right[0] + offset, right[2] + offset);
  } else if constexpr (rows > 3) {
    add_tall_products(sum, left, left_stride, right, offset, first_of_pairs);
    add_tall_products(sum, left + 1, left_stride, right, offset, second_of_pairs);
  } else {
#pragma GCC unroll 8
    for (int v = 0; v < vectors; ++v) {
      __m256i pairs = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(right[v] + offset));
      F32 first = {_mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16))};
      F32 second = {_mm256_castsi256_ps(_mm256_and_si256(pairs, _mm256_set1_epi32(int(0xffff0000u))))};
#pragma GCC unroll 8
      for (int r = 0; r < rows; ++r) {
        sum[r][v] = fma(F32::set1(left[r * left_stride]), first, sum[r][v]);
        sum[r][v] = fma(F32::set1(left[r * left_stride + 1]), second, sum[r][v]);
      }
    }
  }
}

}  // namespace
}  // namespace octavo
