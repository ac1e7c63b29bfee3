#include "table.h"

namespace octavo {
extern const Kernels kernels_avx2 = kernel_table("avx2");
}
