// A weight as it is owned by the runtime; kernels see the oct_weight in it.
#pragma once
#include "context.h"
#include "kernels/kernels.h"

namespace octavo {

struct PackedWeight : oct_weight {
  const Kernels* kernels;  // whose layout it is in
  SharedMemory memory;
};

const char* layout_name(int layout);

}  // namespace octavo
