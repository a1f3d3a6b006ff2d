// What this processor and its system offer beyond what the compiler's own queries know.
#pragma once

#include <string>

namespace fastsal {

bool has_amx();
// Asks the system for the tile registers, once per process. Says why where it refuses, otherwise nothing.
std::string request_amx();

bool has_avx_vnni();

}  // namespace fastsal
