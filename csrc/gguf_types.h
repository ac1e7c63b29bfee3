// What the runtime has to know of GGUF tensor types: block sizes, and the codes they turn into when packed.
// Source: the block structures of ggml, as documented at https://github.com/ggml-org/ggml/blob/master/docs/gguf.md.
#pragma once
#include <stdint.h>

namespace octavo {

enum GgufType : int {
  GGUF_F32 = 0,
  GGUF_F16 = 1,
  GGUF_Q4_0 = 2,
  GGUF_Q4_1 = 3,
  GGUF_Q5_0 = 6,
  GGUF_Q5_1 = 7,
  GGUF_Q8_0 = 8,
  GGUF_Q4_K = 12,
  GGUF_Q5_K = 13,
  GGUF_Q6_K = 14,
  GGUF_IQ4_NL = 20,
  GGUF_IQ4_XS = 23,
  GGUF_BF16 = 30,
  GGUF_MXFP4 = 39,
};

// Tables that codes of 4 bits point into: what an entry stands for, plus 128.
enum CodeTable : int { NO_TABLE, TABLE_IQ4, TABLE_FP4 };
constexpr int code_table_zero = 128;
constexpr uint8_t code_tables[][16] = {
    {},
    {1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241},
    {128, 129, 130, 131, 132, 134, 136, 140, 128, 127, 126, 125, 124, 122, 120, 116},
};

struct GgufTypeTraits {
  int type;
  const char* name;
  int block_elements;
  int block_bytes;
  // For the grouped layouts; 0 where the type has no codes.
  int code_bits;
  int group;
  int has_min;
  int zero;
  int table = NO_TABLE;
};

inline constexpr GgufTypeTraits gguf_types[] = {
    {GGUF_F32, "F32", 1, 4, 0, 0, 0, 0},       {GGUF_F16, "F16", 1, 2, 0, 0, 0, 0},
    {GGUF_BF16, "BF16", 1, 2, 0, 0, 0, 0},     {GGUF_Q4_0, "Q4_0", 32, 18, 4, 32, 0, 8},
    {GGUF_Q4_1, "Q4_1", 32, 20, 4, 32, 1, 0},  {GGUF_Q5_0, "Q5_0", 32, 22, 5, 32, 0, 16},
    {GGUF_Q5_1, "Q5_1", 32, 24, 5, 32, 1, 0},  {GGUF_Q8_0, "Q8_0", 32, 34, 8, 32, 0, 128},
    {GGUF_Q4_K, "Q4_K", 256, 144, 4, 32, 1, 0}, {GGUF_Q5_K, "Q5_K", 256, 176, 5, 32, 1, 0},
    {GGUF_Q6_K, "Q6_K", 256, 210, 6, 16, 0, 32},
    {GGUF_IQ4_NL, "IQ4_NL", 32, 18, 4, 32, 0, code_table_zero, TABLE_IQ4},
    {GGUF_IQ4_XS, "IQ4_XS", 256, 136, 4, 32, 0, code_table_zero, TABLE_IQ4},
    {GGUF_MXFP4, "MXFP4", 32, 17, 4, 32, 0, code_table_zero, TABLE_FP4},
};

// nullptr when the type is unknown.
inline const GgufTypeTraits* gguf_type_traits(int type) {
  for (const GgufTypeTraits& traits : gguf_types) {
    if (traits.type == type) return &traits;
  }
  return nullptr;
}

}  // namespace octavo
