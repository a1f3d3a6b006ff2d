// AVX2 + FMA: 16 registers hold a tile of 6 x 16 in 12 accumulators, 2 weight vectors and a broadcast. int8 in
// integers, by pairs of bytes.
#define FASTSAL_ISA avx2
#define FASTSAL_LANES 8
#define FASTSAL_TILE_ROWS 6
#define FASTSAL_TILE_VECTORS 2
#define FASTSAL_INT8_DOT
#define FASTSAL_INT8_PAIRS
#include "kernels_impl.h"
