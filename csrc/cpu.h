// Which instruction sets this machine has, best first.
#pragma once
#include "kernels/kernels.h"

namespace octavo {

bool isa_supported(const char* isa);

// The kernels of `isa` ("scalar", "avx2", "avx512"), or the best the machine can run when it is null.
const Kernels& kernels_for(const char* isa);

}  // namespace octavo
