// Zeroed memory straight from the kernel: aligned to huge pages, resident only where it has been touched.
#pragma once
#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>

#include <string>
#include <utility>

#include "error.h"
#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#endif

namespace octavo {

#ifdef __SANITIZE_ADDRESS__
constexpr size_t guard_gap_bytes = 128;  // after each piece of an arena
#else
constexpr size_t guard_gap_bytes = 0;
#endif

// Bytes of an arena that nobody may touch, where AddressSanitizer is there to notice; unguard before they are unmapped.
inline void guard_bytes([[maybe_unused]] const uint8_t* data, [[maybe_unused]] size_t bytes) {
#ifdef __SANITIZE_ADDRESS__
  ASAN_POISON_MEMORY_REGION(data, bytes);
#endif
}
inline void unguard_bytes([[maybe_unused]] const uint8_t* data, [[maybe_unused]] size_t bytes) {
#ifdef __SANITIZE_ADDRESS__
  ASAN_UNPOISON_MEMORY_REGION(data, bytes);
#endif
}

enum class PageSize { small, huge };

class Arena {
 public:
  static constexpr size_t huge_page_bytes = size_t(2) << 20;
  static constexpr size_t small_page_bytes = 4096;

  Arena() = default;
  explicit Arena(size_t bytes, PageSize page_size = PageSize::huge) {
    if (bytes == 0) return;
    if (bytes > SIZE_MAX / 2) throw Error("cannot map " + std::to_string(bytes) + " bytes");
    bytes_ = round_up(bytes, small_page_bytes);
    // Map more than needed and give back both ends, so that what is left starts on a huge page.
    size_t mapped_bytes = bytes_ + huge_page_bytes;
    void* mapped = mmap(nullptr, mapped_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapped == MAP_FAILED) throw Error("cannot map " + std::to_string(bytes_) + " bytes of memory");
    uintptr_t begin = uintptr_t(mapped), end = begin + mapped_bytes;
    uintptr_t aligned = round_up(begin, huge_page_bytes);
    if (aligned > begin) munmap(mapped, aligned - begin);
    if (end > aligned + bytes_) munmap(reinterpret_cast<void*>(aligned + bytes_), end - aligned - bytes_);
    data_ = reinterpret_cast<uint8_t*>(aligned);
    madvise(data_, bytes_, page_size == PageSize::huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
    guard_bytes(data_ + bytes, bytes_ - bytes);
  }
  Arena(Arena&& other) noexcept : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  Arena& operator=(Arena&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;
  ~Arena() {
    if (!data_) return;
    unguard_bytes(data_, bytes_);
    munmap(data_, bytes_);
  }

  uint8_t* data() const { return data_; }
  size_t bytes() const { return bytes_; }

 private:
  template <class T>
  static T round_up(T value, size_t multiple) {
    return (value + multiple - 1) / multiple * multiple;
  }

  uint8_t* data_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace octavo
