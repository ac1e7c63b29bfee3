#include "cpu.h"

#include <string.h>

#include <string>

#include "error.h"

namespace octavo {
namespace {

bool has_scalar() { return true; }

bool has_avx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c") &&
         __builtin_cpu_supports("bmi2");
}

bool has_avx512() {
#ifdef OCT_EMULATE_AVX512  // the instructions are compiled to an emulation
  return true;
#else
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512bf16") &&
         __builtin_cpu_supports("avx512vbmi");
#endif
}

struct InstructionSet {
  const char* name;
  bool (*supported)();
  const Kernels* kernels;
};

const InstructionSet instruction_sets[] = {
    {"avx512", has_avx512, &kernels_avx512},
    {"avx2", has_avx2, &kernels_avx2},
    {"scalar", has_scalar, &kernels_scalar},
};

}  // namespace

bool isa_supported(const char* isa) {
  for (const InstructionSet& set : instruction_sets) {
    if (strcmp(set.name, isa) == 0) return set.supported();
  }
  return false;
}

const Kernels& kernels_for(const char* isa) {
  for (const InstructionSet& set : instruction_sets) {
    if (isa == nullptr ? set.supported() : strcmp(set.name, isa) == 0) {
      if (!set.supported()) throw Error(std::string("this machine cannot run the instruction set ") + isa);
      return *set.kernels;
    }
  }
  throw Error(std::string("unknown instruction set ") + isa + "; it must be avx512, avx2 or scalar");
}

}  // namespace octavo

extern "C" int oct_isa_supported(const char* isa) { return isa != nullptr && octavo::isa_supported(isa); }
