// The fp32 vector `F32` of the instruction set this source is compiled for.
#pragma once

#if defined(OCT_VEC_SCALAR)
#include "vec_scalar.h"
#elif defined(__AVX512F__)
#include "vec_avx512.h"
#elif defined(OCT_EMULATE_AVX512)
#include "emulate_avx512.h"

#include "vec_avx512.h"
#else
#include "vec_avx2.h"
#endif
