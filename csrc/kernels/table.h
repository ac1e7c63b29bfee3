// Fills the table of an instruction set from the kernels compiled with its flags.
#pragma once
#include "attention.h"
#include "embed.h"
#include "gated_linear.h"
#include "head.h"
#include "kernels.h"
#include "linear.h"
#include "moe.h"
#include "norm.h"
#include "operand.h"
#include "pack.h"
#include "rope.h"
#include "sample.h"
#include "yardstick.h"

namespace octavo {
namespace {

constexpr Kernels kernel_table(const char* name) {
  Kernels table{};
  table.name = name;
  table.weight_bytes = weight_bytes;
  table.panel_rows = panel_rows;
  table.pack = pack;
  table.unpack_row = unpack_row;
  table.operand_row_bytes = operand_row_bytes;
  table.embed = embed;
  table.rotary_table = rotary_table;
  table.rms_norm = rms_norm;
  table.quantize = quantize;
  table.linear = linear;
  table.head = head;
  table.gated_linear = gated_linear;
  table.route = route;
  table.combine = combine;
  table.rope_kv = rope_kv;
  table.attention_scratch_bytes = attention_scratch_bytes;
  table.attention_shared_bytes = attention_shared_bytes;
  table.attention = attention;
  table.sample = sample;
  table.run_peak = run_peak;
  table.read_sum = read_sum;
  return table;
}

}  // namespace
}  // namespace octavo
