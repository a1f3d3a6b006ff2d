#include "dispatch.h"

#include <cstdlib>
#include <stdexcept>

namespace fastsal {

#if defined(FASTSAL_HAVE_X86)
namespace avx512_bf16 {
extern const Kernels kernels;
}
namespace avx512_vnni {
extern const Kernels kernels;
}
namespace avx512 {
extern const Kernels kernels;
}
namespace avx2 {
extern const Kernels kernels;
}
#endif
namespace portable {
extern const Kernels kernels;
}

std::vector<InstructionSet> instruction_sets() {
  std::vector<InstructionSet> sets;
#if defined(FASTSAL_HAVE_X86)
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  const bool vnni = avx512 && __builtin_cpu_supports("avx512vnni");
  sets.push_back({&avx512_bf16::kernels, vnni && __builtin_cpu_supports("avx512bf16")});
  sets.push_back({&avx512_vnni::kernels, vnni});
  sets.push_back({&avx512::kernels, avx512});
  sets.push_back({&avx2::kernels, avx2});
#endif
  sets.push_back({&portable::kernels, true});
  return sets;
}

const Kernels& select_kernels() {
  const char* wanted = std::getenv("FASTSAL_CPU_ISA");
  std::string names;
  for (const InstructionSet& set : instruction_sets()) {
    if (!set.runs_here) continue;
    if (!wanted || !*wanted || std::string(wanted) == set.kernels->name) return *set.kernels;
    names += names.empty() ? set.kernels->name : std::string(", ") + set.kernels->name;
  }
  throw std::invalid_argument("FASTSAL_CPU_ISA must name an instruction set that runs here (" + names + "), got '" +
                              wanted + "'");
}

}  // namespace fastsal
