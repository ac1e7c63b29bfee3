// Fills the table of an instruction set from the kernels compiled with its flags.
#pragma once
#include "kernels.h"
#include "operand.h"
#if __has_include("linear.h")
#include "embed.h"
#include "gated_linear.h"
#include "linear.h"
#include "pack.h"
#endif
#if __has_include("norm.h")
#include "norm.h"
#endif
#if __has_include("rope.h")
#include "rope.h"
#endif
#if __has_include("attention.h")
#include "attention.h"
#endif
#if __has_include("sample.h")
#include "sample.h"
#endif

namespace octavo {
namespace {

constexpr Kernels kernel_table(const char* name) {
  Kernels table{};
  table.name = name;
  table.operand_row_bytes = operand_row_bytes;
  table.quantize = quantize;
#if __has_include("linear.h")
  table.weight_bytes = weight_bytes;
  table.weight_panels = weight_panels;
  table.pack = pack;
  table.unpack_row = unpack_row;
  table.embed = embed;
  table.linear = linear;
  table.gated_linear = gated_linear;
#endif
#if __has_include("norm.h")
  table.rms_norm = rms_norm;
#endif
#if __has_include("rope.h")
  table.rotary_table = rotary_table;
  table.rope_kv = rope_kv;
#endif
#if __has_include("attention.h")
  table.attention_scratch_bytes = attention_scratch_bytes;
  table.attention = attention;
#endif
#if __has_include("sample.h")
  table.sample = sample;
#endif
  return table;
}

}  // namespace
}  // namespace octavo
