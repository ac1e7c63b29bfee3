// Packed weights: made for one context's instruction set, filled on all its threads, freed when destroyed.
#include "weights.h"

#include <limits>
#include <memory>
#include <string>

#include "error.h"
#include "gguf_types.h"

namespace octavo {

const char* layout_name(int layout) {
  switch (layout) {
    case OCT_LAYOUT_BF16: return "bf16";
    case OCT_LAYOUT_GROUPED: return "grouped";
    case OCT_LAYOUT_INT8_CHANNEL: return "int8 channel";
  }
  return "unknown";
}

namespace {

// Plain values become codes of 8 bits.
GgufTypeTraits codes_of(const GgufTypeTraits& traits) {
  if (traits.code_bits != 0) return traits;
  GgufTypeTraits codes = *gguf_type_traits(GGUF_Q8_0);
  codes.type = traits.type;
  codes.name = traits.name;
  return codes;
}

const GgufTypeTraits& require_type(int gguf_type) {
  const GgufTypeTraits* traits = gguf_type_traits(gguf_type);
  if (!traits) throw Error("unknown GGUF tensor type " + std::to_string(gguf_type));
  return *traits;
}

void check_shape(const GgufTypeTraits& traits, int64_t num_rows, int64_t num_columns) {
  constexpr int64_t max_size = std::numeric_limits<int32_t>::max();
  if (num_rows < 1 || num_columns < 1 || num_rows > max_size || num_columns > max_size) {
    throw Error("a weight of " + std::to_string(num_rows) + " x " + std::to_string(num_columns) + " cannot be packed");
  }
  if (num_columns % traits.block_elements != 0) {
    throw Error("a weight of type " + std::string(traits.name) + " has " + std::to_string(num_columns) +
                " columns, which is not a multiple of its blocks of " + std::to_string(traits.block_elements));
  }
}

std::unique_ptr<PackedWeight> create(oct_context& context, int layout, int gguf_type, int64_t num_rows,
                                     int64_t num_columns) {
  const GgufTypeTraits& traits = require_type(gguf_type);
  if (layout < OCT_LAYOUT_BF16 || layout > OCT_LAYOUT_INT8_CHANNEL) {
    throw Error("there is no layout " + std::to_string(layout));
  }
  check_shape(traits, num_rows, num_columns);
  auto weight = std::make_unique<PackedWeight>();
  weight->kernels = &context.kernels;
  weight->layout = layout;
  weight->gguf_type = gguf_type;
  if (layout == OCT_LAYOUT_GROUPED) {
    GgufTypeTraits codes = codes_of(traits);
    weight->code_bits = codes.code_bits;
    weight->group = codes.group;
    weight->has_min = codes.has_min;
    weight->zero = codes.zero;
    weight->table = codes.table;
  }
  weight->num_rows = num_rows;
  weight->num_columns = num_columns;
  weight->bytes = context.kernels.weight_bytes(weight.get());
  weight->memory = context.weight_memory.allocate(size_t(weight->bytes));
  weight->data = weight->memory.data;
  return weight;
}

void check_slice(const oct_weight& weight, int64_t first_row, int64_t end_row) {
  bool is_whole = first_row % OCT_SLICE_ROWS == 0 && (end_row % OCT_SLICE_ROWS == 0 || end_row == weight.num_rows);
  if (is_whole && 0 <= first_row && first_row < end_row && end_row <= weight.num_rows) return;
  throw Error("rows " + std::to_string(first_row) + " to " + std::to_string(end_row) + " are no slice of " +
              std::to_string(weight.num_rows) + " rows in steps of " + std::to_string(OCT_SLICE_ROWS));
}

void check_row_order(const oct_weight& weight, const int32_t* row_order, int64_t first_row, int64_t end_row) {
  for (int64_t row = first_row; row < end_row; ++row) {
    if (row_order[row] < 0 || row_order[row] >= weight.num_rows) {
      throw Error("row_order[" + std::to_string(row) + "] is " + std::to_string(row_order[row]) + ", but there are " +
                  std::to_string(weight.num_rows) + " rows");
    }
  }
}

void pack(oct_context& context, const oct_weight& weight, const void* gguf_blocks, const int32_t* row_order,
          int64_t first_row, int64_t end_row) {
  if (!gguf_blocks) throw Error("no blocks to pack a weight from");
  check_slice(weight, first_row, end_row);
  if (row_order) check_row_order(weight, row_order, first_row, end_row);
  int64_t panel_rows = context.kernels.panel_rows(&weight);
  int64_t first_panel = first_row / panel_rows, num_panels = (end_row - first_row + panel_rows - 1) / panel_rows;
  int num_threads = context.team.num_threads();
  context.team.run([&](int thread) {
    int64_t first = first_panel + num_panels * thread / num_threads;
    int64_t last = first_panel + num_panels * (thread + 1) / num_threads;
    if (first < last) context.kernels.pack(&weight, gguf_blocks, row_order, first, last);
  });
}

void unpack(oct_context& context, const oct_weight& weight, float* values) {
  int num_threads = context.team.num_threads();
  context.team.run([&](int thread) {
    int64_t last = weight.num_rows * (thread + 1) / num_threads;
    for (int64_t row = weight.num_rows * thread / num_threads; row < last; ++row) {
      context.kernels.unpack_row(&weight, row, values + row * weight.num_columns);
    }
  });
}

}  // namespace
}  // namespace octavo

using octavo::guarded;

extern "C" {

oct_weight* oct_weight_create(oct_context* context, int layout, int gguf_type, int64_t num_rows, int64_t num_columns) {
  return guarded<oct_weight*>(
      nullptr, [&] { return octavo::create(*context, layout, gguf_type, num_rows, num_columns).release(); });
}

int oct_weight_pack(oct_context* context, oct_weight* weight, const void* gguf_blocks, const int32_t* row_order,
                    int64_t first_row, int64_t end_row) {
  return guarded(-1, [&] {
    octavo::pack(*context, *weight, gguf_blocks, row_order, first_row, end_row);
    return 0;
  });
}

int oct_weight_unpack(oct_context* context, const oct_weight* weight, float* values_NK) {
  return guarded(-1, [&] {
    octavo::unpack(*context, *weight, values_NK);
    return 0;
  });
}

int64_t oct_weight_bytes(const oct_weight* weight) { return weight->bytes; }

void oct_weight_destroy(oct_weight* weight) { delete static_cast<octavo::PackedWeight*>(weight); }

}  // extern "C"
