// AVX-512 F/BW/DQ/VL: 32 registers hold a tile of 6 x 64 in 24 accumulators, 4 weight vectors and a broadcast.
#define FASTSAL_ISA avx512
#define FASTSAL_LANES 16
#define FASTSAL_TILE_ROWS 6
#define FASTSAL_TILE_VECTORS 4
#include "kernels_impl.h"
