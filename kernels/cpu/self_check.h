// A small product of known result, before kernels that this project's machines rarely run are trusted with any other.
#pragma once

#include <string>

#include "kernels.h"

namespace fastsal {

// What is wrong with the products of `kernels` in bfloat16 and int8, or nothing.
std::string self_check(const Kernels& kernels);

}  // namespace fastsal
