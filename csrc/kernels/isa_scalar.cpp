#include "table.h"

namespace octavo {
extern const Kernels kernels_scalar = kernel_table("scalar");
}
