// How grouped weights look inside a panel.
//
// A panel holds two vectors of `lanes` weight rows (columns of the product's right side). It is a run of groups of 32
// along K:
//
//   codes   for each step of 4 along K. Up to 6 bits: [lanes][4] bytes with the low 4 bits of a code of the first vector
//           below and of the second above; after all steps the rest of the codes, 1 or 2 bits each, packed into bytes in
//           the order of steps and vectors, so that [lanes][4] bytes hold those of 8 or 4 vectors of codes.
//           With a table (IQ4_NL, MXFP4 and the like) 4 bits say which of its 16 entries is the code.
//           8 bits: [2 vectors][lanes][4] bytes.
//   scales  fp16, [groups of the 32: 1, or 2 when a scale covers 16][columns]
//   mins    fp16, [columns], where the type has them
//
// so that a register tile reads one stream from end to end. Scales of the K types are products of two numbers in the
// file; they are rounded to fp16 (1 part in 2048 at most, far below what rounding activations to 8 bits costs) for a
// fifth less to read.
#pragma once
#include "../gguf_types.h"
#include "operand.h"

namespace octavo {
namespace {

constexpr int kSteps = kGroup / 4;
constexpr int kPanelVectors = 2;

// Unsigned codes of `bits` bits: value = scale * (code - zero), or scale * code - min.
// With a table, codes are what the table holds at the 4 bits stored.
template <int bits_, int group_, bool has_min_, int zero_, int table_ = NO_TABLE>
struct Format {
  static constexpr int bits = bits_, group = group_, zero = zero_, table = table_;
  static constexpr bool has_min = has_min_;
  static constexpr int scale_rows = kGroup / group_;  // rows of scales in a group of 32
};

// What the loops need to know of a format at run time. Sizes in bytes, of one group.
struct PanelShape {
  int lanes;
  int columns;
  int bits;
  int64_t codes_bytes;
  int64_t group_bytes;
};

constexpr PanelShape panel_shape(int lanes, int bits, int group, bool has_min) {
  int columns = lanes * kPanelVectors;
  int64_t codes = int64_t(kGroup) * columns * bits / 8;
  int64_t rows_of_halves = kGroup / group + (has_min ? 1 : 0);
  return {lanes, columns, bits, codes, codes + rows_of_halves * columns * int64_t(sizeof(uint16_t))};
}

// Where the bits above the low 4 of vector `vector` of step `step` lie: in bytes from the group's start for lane 0, and
// how far up in each byte.
struct HighBits {
  int offset;
  int shift;
};

constexpr HighBits high_bits(int lanes, int bits, int step, int vector) {
  int width = bits - 4, index = step * kPanelVectors + vector, in_byte = 8 / width;
  return {(kSteps + index / in_byte) * lanes * 4, index % in_byte * width};
}

// The code of column k of a weight row that lies in lane `lane` of vector `vector`.
inline int stored_code_at(const PanelShape& shape, const uint8_t* group, int vector, int lane, int k) {
  int step = k / 4, byte = lane * 4 + k % 4, step_bytes = shape.lanes * 4;
  if (shape.bits == 8) return group[(step * kPanelVectors + vector) * step_bytes + byte];
  int code = (group[step * step_bytes + byte] >> (4 * vector)) & 15;
  if (shape.bits == 4) return code;
  HighBits where = high_bits(shape.lanes, shape.bits, step, vector);
  return code | ((group[where.offset + byte] >> where.shift) & ((1 << (shape.bits - 4)) - 1)) << 4;
}

inline int code_at(const PanelShape& shape, int table, const uint8_t* group, int vector, int lane, int k) {
  int code = stored_code_at(shape, group, vector, lane, k);
  return table == NO_TABLE ? code : code_tables[table][code];
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

inline const Int8Group& group_of_row(const uint8_t* rows, int64_t row_bytes, int r) {
  return *reinterpret_cast<const Int8Group*>(rows + r * row_bytes);
}

// Calls visitor(Format<...>()) with the format of a grouped weight.
template <class Visitor>
inline void visit_format(const oct_weight& weight, Visitor visitor) {
  if (weight.table == TABLE_IQ4) {
    visitor(Format<4, 32, false, code_table_zero, TABLE_IQ4>());
  } else if (weight.table == TABLE_FP4) {
    visitor(Format<4, 32, false, code_table_zero, TABLE_FP4>());
  } else if (weight.code_bits == 4) {
    weight.has_min ? visitor(Format<4, 32, true, 0>()) : visitor(Format<4, 32, false, 8>());
  } else if (weight.code_bits == 5) {
    weight.has_min ? visitor(Format<5, 32, true, 0>()) : visitor(Format<5, 32, false, 16>());
  } else if (weight.code_bits == 6) {
    visitor(Format<6, 16, false, 32>());
  } else {
    visitor(Format<8, 32, false, 128>());
  }
}

}  // namespace
}  // namespace octavo
