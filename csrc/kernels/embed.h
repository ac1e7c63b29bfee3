// Rows of the embedding matrix, read from its packed form.
#pragma once
#include "pack.h"

namespace octavo {
namespace {

inline void embed(const EmbedArgs& args, ThreadShare share) {
  int64_t first = int64_t(args.num_tokens) * share.thread / share.num_threads;
  int64_t last = int64_t(args.num_tokens) * (share.thread + 1) / share.num_threads;
  for (int64_t token = first; token < last; ++token) {
    float* dst = args.dst.data + token * args.dst.stride;
    unpack_row(args.weight, args.token_ids[token], dst);
    for (int64_t i = 0; args.scale != 1.0f && i < args.weight->num_columns; ++i) dst[i] *= args.scale;
  }
}

}  // namespace
}  // namespace octavo
