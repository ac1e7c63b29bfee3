#include "table.h"

namespace octavo {
extern const Kernels kernels_avx512 = kernel_table("avx512");
}
