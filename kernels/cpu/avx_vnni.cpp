// AVX2 + FMA with dot products of bytes in 256 bits (Alder Lake, Zen 5 and later): for processors without AVX-512.
#define FASTSAL_ISA avx_vnni
#define FASTSAL_LANES 8
#define FASTSAL_TILE_ROWS 6
#define FASTSAL_TILE_VECTORS 2
#define FASTSAL_INT8_DOT
#include "kernels_impl.h"
