// The kernels of avx_vnni.cpp with their dot product made of AVX2 instructions, for tests on processors without it.
// Never chosen by itself.
#define FASTSAL_ISA avx_vnni_model
#define FASTSAL_LANES 8
#define FASTSAL_TILE_ROWS 6
#define FASTSAL_TILE_VECTORS 2
#define FASTSAL_INT8_DOT
#define FASTSAL_INT8_MODEL
#include "kernels_impl.h"
