// Parts of matrices and operands.
#pragma once
#include "kernels/kernels.h"

namespace octavo {

inline Matrix columns_from(Matrix matrix, int32_t first, int64_t num_columns) {
  return {matrix.data + first, matrix.stride, int32_t(num_columns)};
}

inline Matrix rows_from(Matrix matrix, int64_t first) {
  return {matrix.data + first * matrix.stride, matrix.stride, matrix.columns};
}

inline Operand rows_from(Operand operand, int64_t first) {
  operand.data += first * operand.row_bytes;
  return operand;
}

}  // namespace octavo
