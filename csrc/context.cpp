#include "context.h"

#include <algorithm>
#include <string>

#include "cpu.h"
#include "error.h"

namespace octavo {
namespace {

constexpr size_t shared_arena_bytes = size_t(64) << 20;
constexpr size_t piece_alignment = 4096;

std::string& last_error() {
  thread_local std::string message;
  return message;
}

}  // namespace

void set_last_error(const char* message) { last_error() = message; }

SharedMemory SharedArenas::allocate(size_t bytes) {
  std::lock_guard<std::mutex> lock(mutex_);
  size_t piece_bytes = (bytes + guard_gap_bytes + piece_alignment - 1) / piece_alignment * piece_alignment;
  if (!arena_ || used_bytes_ + piece_bytes > arena_->bytes()) {
    arena_ = std::make_shared<Arena>(std::max(piece_bytes, shared_arena_bytes));
    used_bytes_ = 0;
  }
  uint8_t* data = arena_->data() + used_bytes_;
  guard_bytes(data + bytes, piece_bytes - bytes);
  used_bytes_ += piece_bytes;
  return {arena_, data};
}

}  // namespace octavo

using octavo::guarded;

extern "C" {

const char* oct_last_error(void) { return octavo::last_error().c_str(); }

oct_context* oct_context_create(const char* isa, int num_threads) {
  return guarded<oct_context*>(nullptr, [&] { return new oct_context(octavo::kernels_for(isa), num_threads); });
}

void oct_context_destroy(oct_context* context) { delete context; }

const char* oct_context_isa(const oct_context* context) { return context->kernels.name; }

}  // extern "C"
