// One source for all instruction sets: a kernel file defines the macros below and includes this once.
//   FASTSAL_ISA           name of the namespace and of the instruction set
//   FASTSAL_LANES         floats in a vector
//   FASTSAL_TILE_ROWS     rows of the register tile
//   FASTSAL_TILE_VECTORS  vectors in a row of the register tile
#include <stddef.h>
#include <stdint.h>

#include "kernels.h"

#define FASTSAL_STRING2(x) #x
#define FASTSAL_STRING(x) FASTSAL_STRING2(x)

namespace fastsal::FASTSAL_ISA {
namespace {
#include "vector.h"
#include "math.h"
#include "matmul.h"
#include "layers.h"
#include "pool.h"
}  // namespace

extern const Kernels kernels;
const Kernels kernels = {FASTSAL_STRING(FASTSAL_ISA), kLanes, kPanelWidth, linear,  layer_norm, embed, attention,
                         attention_scratch,           pool,   normalize,   activate};
}  // namespace fastsal::FASTSAL_ISA
