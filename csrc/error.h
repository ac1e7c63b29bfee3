// Failures inside the library are exceptions; the C interface turns them into a return value and a message.
#pragma once
#include <exception>
#include <stdexcept>
#include <string>

namespace octavo {

// What oct_last_error() returns to the calling thread.
void set_last_error(const char* message);

class Error : public std::runtime_error {
 public:
  explicit Error(const std::string& message) : std::runtime_error(message) {}
};

// Calls `body`; on an exception keeps its message for oct_last_error() and returns `failure`.
template <class Result, class Body>
Result guarded(Result failure, Body&& body) noexcept {
  try {
    return body();
  } catch (const std::exception& error) {
    set_last_error(error.what());
  } catch (...) {
    set_last_error("unknown failure");
  }
  return failure;
}

}  // namespace octavo
