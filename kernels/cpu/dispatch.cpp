#include "dispatch.h"

#include <cstdlib>
#include <stdexcept>
#include <utility>

#include "processor.h"
#include "self_check.h"

namespace fastsal {

#if defined(FASTSAL_HAVE_X86)
namespace amx {
extern const Kernels kernels;
}
namespace amx_model {
extern const Kernels kernels;
}
namespace avx512_bf16 {
extern const Kernels kernels;
}
namespace avx512_vnni {
extern const Kernels kernels;
}
namespace avx512 {
extern const Kernels kernels;
}
namespace avx_vnni {
extern const Kernels kernels;
}
namespace avx_vnni_model {
extern const Kernels kernels;
}
namespace avx2 {
extern const Kernels kernels;
}
#endif
namespace portable {
extern const Kernels kernels;
}

namespace {

#if defined(FASTSAL_HAVE_X86)
InstructionSet amx_set() {
  InstructionSet set{&amx::kernels, false};
  set.refused = request_amx();
  if (set.refused.empty()) set.refused = self_check(amx::kernels);
  set.runs_here = set.refused.empty();
  return set;
}
#endif

std::vector<InstructionSet> find_instruction_sets() {
  std::vector<InstructionSet> sets;
#if defined(FASTSAL_HAVE_X86)
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  const bool vnni = avx512 && __builtin_cpu_supports("avx512vnni");
  const bool bf16 = vnni && __builtin_cpu_supports("avx512bf16");
  sets.push_back(bf16 && has_amx() ? amx_set() : InstructionSet{&amx::kernels, false});
  sets.push_back({&avx512_bf16::kernels, bf16});
  sets.push_back({&avx512_vnni::kernels, vnni});
  // Intel's dot products of bfloat16 pairs take four times as long as multiply-adds of floats, AMD's as long.
  if (__builtin_cpu_is("intel")) std::swap(sets[sets.size() - 1], sets[sets.size() - 2]);
  sets.push_back({&avx512::kernels, avx512});
  sets.push_back({&avx_vnni::kernels, avx2 && has_avx_vnni()});
  sets.push_back({&avx2::kernels, avx2});
#endif
  sets.push_back({&portable::kernels, true});
#if defined(FASTSAL_HAVE_X86)
  sets.push_back({&amx_model::kernels, bf16, "", true});
  sets.push_back({&avx_vnni_model::kernels, avx2, "", true});
#endif
  return sets;
}

}  // namespace

const std::vector<InstructionSet>& instruction_sets() {
  static const std::vector<InstructionSet> sets = find_instruction_sets();
  return sets;
}

const Kernels& select_kernels() {
  const char* variable = std::getenv("FASTSAL_CPU_ISA");
  const std::string wanted = variable ? variable : "";
  std::string names, reason;
  for (const InstructionSet& set : instruction_sets()) {
    if (wanted == set.kernels->name && !set.refused.empty()) reason = " (refused: " + set.refused + ")";
    if (!set.runs_here) continue;
    if (wanted.empty() || wanted == set.kernels->name) return *set.kernels;
    if (!set.model) names += names.empty() ? set.kernels->name : std::string(", ") + set.kernels->name;
  }
  throw std::invalid_argument("FASTSAL_CPU_ISA must name an instruction set that runs here (" + names + "), got '" +
                              wanted + "'" + reason);
}

}  // namespace fastsal
