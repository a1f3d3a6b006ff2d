// AVX-512 with dot products of bytes (Ice Lake, Cascade Lake): int8 in integers; bfloat16 weights computed as floats.
#define FASTSAL_ISA avx512_vnni
#define FASTSAL_LANES 16
#define FASTSAL_TILE_ROWS 6
#define FASTSAL_TILE_VECTORS 4
#define FASTSAL_INT8_DOT
#include "kernels_impl.h"
