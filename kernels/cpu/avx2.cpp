// AVX2 + FMA: 16 registers hold a tile of 6 x 16 in 12 accumulators, 2 weight vectors and a broadcast.
#define FASTSAL_ISA avx2
#define FASTSAL_LANES 8
#define FASTSAL_TILE_ROWS 6
#define FASTSAL_TILE_VECTORS 2
#include "kernels_impl.h"
