// Which instruction sets this build has and this processor runs.
#pragma once

#include <string>
#include <vector>

#include "kernels.h"

namespace fastsal {

struct InstructionSet {
  const Kernels* kernels;
  bool runs_here;
};

// All of this build, fastest first.
std::vector<InstructionSet> instruction_sets();

// The one that FASTSAL_CPU_ISA names, else the fastest that runs here. Throws std::invalid_argument for a name that is
// unknown or does not run here.
const Kernels& select_kernels();

}  // namespace fastsal
