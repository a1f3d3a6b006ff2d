// Which instruction sets this build has and this processor runs.
#pragma once

#include <string>
#include <vector>

#include "kernels.h"

namespace fastsal {

struct InstructionSet {
  const Kernels* kernels;
  bool runs_here;
  std::string refused = "";  // why it does not run, though the processor has the instructions
  bool model = false;        // instructions in plain C++: for tests, runs only where it is named
};

// All of this build, fastest first, then the models.
const std::vector<InstructionSet>& instruction_sets();

// The one that FASTSAL_CPU_ISA names, else the fastest that runs here. Throws std::invalid_argument for a name that is
// unknown or does not run here.
const Kernels& select_kernels();

}  // namespace fastsal
