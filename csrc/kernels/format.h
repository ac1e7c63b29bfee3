// How grouped weights look inside a panel.
//
// A panel holds `columns` weight rows (columns of the product's right side). It is a run of groups of 32 along K:
//
//   codes   for each step along K, for each vector of `lanes` columns, lanes x step codes. 4 bits: steps of 4, a byte
//           holds a code of vector 2v below and of vector 2v + 1 above. 5 and 6 bits: steps of 4, a code a byte.
//           8 bits: steps of 2, a signed code a byte, to be widened to 16 bits.
//   scales  fp16, [groups of the 32: 1, or 2 when a scale covers 16][columns]
//   mins    fp16, [columns], where the type has them
//
// so that a register tile reads one stream from end to end. Scales of the K types are products of two numbers in the
// file; they are rounded to fp16 (1 part in 2048 at most, far below what rounding activations to 8 bits costs) for a
// fifth less to read.
#pragma once
#include "operand.h"

namespace octavo {
namespace {

// Unsigned codes of `bits` bits, multiplied by INT8 operands; value = scale * (code - zero), or scale * code - min.
template <int bits_, int group_, bool has_min_, int zero_>
struct Format {
  static constexpr int bits = bits_, group = group_, zero = zero_;
  static constexpr bool has_min = has_min_;
  static constexpr int scale_rows = kGroup / group_;  // rows of scales in a group of 32
};
static_assert(kScaleColumns == 16, "a weight's scale covers whole parts of an operand's group");

// What the loops need to know of a format at run time.
struct PanelShape {
  int lanes;
  int columns;
  int step;             // codes of a column that lie side by side
  int64_t codes_bytes;  // of a group
  int64_t group_bytes;
};

constexpr PanelShape panel_shape(int lanes, int columns, int bits, int group, bool has_min) {
  int64_t codes = int64_t(kGroup) * columns * (bits == 4 ? 4 : 8) / 8;
  int64_t rows_of_halves = kGroup / group + (has_min ? 1 : 0);
  return {lanes, columns, bits == 8 ? 2 : 4, codes, codes + rows_of_halves * columns * int64_t(sizeof(uint16_t))};
}

// What a tile asks the caches for while it computes: `bytes` more from `data` on with each group of 32 along K.
struct Prefetch {
  const uint8_t* data;
  int64_t bytes;
};

inline void fetch_next(Prefetch& ahead) {
  const uint8_t* end = ahead.data + ahead.bytes;
  for (; ahead.data < end; ahead.data += 64) __builtin_prefetch(ahead.data);
}

// Calls visitor(Format<...>()) with the format of a weight of unsigned codes.
template <class Visitor>
inline void visit_format(const oct_weight& weight, Visitor visitor) {
  if (weight.code_bits == 4) {
    weight.has_min ? visitor(Format<4, 32, true, 0>()) : visitor(Format<4, 32, false, 8>());
  } else if (weight.code_bits == 5) {
    weight.has_min ? visitor(Format<5, 32, true, 0>()) : visitor(Format<5, 32, false, 16>());
  } else {
    visitor(Format<6, 16, false, 32>());
  }
}

}  // namespace
}  // namespace octavo
