// The fp32 vector `F32` of the instruction set this source is compiled for. Defines OCT_VEC_SCALAR, OCT_VEC_AVX2 or
// OCT_VEC_AVX512.
#pragma once

#if defined(OCT_VEC_SCALAR)
#include "vec_scalar.h"
#elif defined(OCT_EMULATE_AVX512)
#define OCT_VEC_AVX512
#include "emulate_avx512.h"

#include "vec_avx512.h"
#elif defined(__AVX512F__)
#define OCT_VEC_AVX512
#include "vec_avx512.h"
#else
#define OCT_VEC_AVX2
#include "vec_avx2.h"
#endif
