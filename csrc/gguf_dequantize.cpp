// GGUF blocks to fp32: vectors that stay fp32, and the reference the packed weights are tested against.
#include <string>

#include "error.h"
#include "gguf_blocks.h"
#include "include/octavo.h"

namespace octavo {
namespace {

void dequantize(int gguf_type, const void* blocks, int64_t num_elements, float* values) {
  const GgufTypeTraits* traits = gguf_type_traits(gguf_type);
  if (!traits) throw Error("unknown GGUF tensor type " + std::to_string(gguf_type));
  if (num_elements < 0 || num_elements % traits->block_elements != 0) {
    throw Error(std::to_string(num_elements) + " elements of type " + traits->name + " are not whole blocks of " +
                std::to_string(traits->block_elements));
  }
  dequantize_row(gguf_type, static_cast<const uint8_t*>(blocks), num_elements, values);
}

}  // namespace
}  // namespace octavo

extern "C" int oct_gguf_dequantize(int gguf_type, const void* blocks, int64_t num_elements, float* values) {
  return octavo::guarded(-1, [&] {
    octavo::dequantize(gguf_type, blocks, num_elements, values);
    return 0;
  });
}
