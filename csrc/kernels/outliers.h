// The outliers of INT8_OUTLIERS operands, as tiles of rows add them: sum += outlier * weight, column after column.
//
// Norms give outliers in about the same columns of every row, so the rows of a tile have few different ones. A row that
// has none where another has counts there with 0, which changes no bit: what it sums depends on no other row.
#pragma once
#include "format.h"

namespace octavo {
namespace {

constexpr int64_t kKeptBytes = kGroup * int64_t(sizeof(float));  // of the outliers of a group of a row

// What the sums of a row are counted in.
inline float unit_of_row(const uint8_t* rows, int64_t row_bytes, int r, int64_t num_groups) {
  return reinterpret_cast<const OutlierHeader*>(rows + r * row_bytes + outlier_header_offset(num_groups))->unit;
}

// The columns of a group that are outliers in some of the rows, as bits.
template <int R>
inline uint32_t outlier_columns(const uint8_t* rows, int64_t row_bytes) {
  uint32_t columns = 0;
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) columns |= group_of_row(rows, row_bytes, r).outliers;
  return columns;
}

// The outliers of a group of each row, 0 in columns that are none. `kept` are those of the first row.
template <int R>
[[gnu::always_inline]] inline void outliers_of_rows(const uint8_t* rows, int64_t row_bytes, const uint8_t* kept,
                                                    const float* (&outliers)[R]) {
  static constexpr float none[kGroup] = {};
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
    const float* of_row = reinterpret_cast<const float*>(kept + r * row_bytes);
    outliers[r] = group_of_row(rows, row_bytes, r).outliers ? of_row : none;
  }
}

}  // namespace
}  // namespace octavo
