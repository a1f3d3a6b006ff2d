// AVX-512 with dot products of bfloat16 and of bytes (Zen 4, Sapphire Rapids and later).
#define FASTSAL_ISA avx512_bf16
#define FASTSAL_LANES 16
#define FASTSAL_TILE_ROWS 6
#define FASTSAL_TILE_VECTORS 4
#define FASTSAL_BF16_DOT
#define FASTSAL_INT8_DOT
#include "kernels_impl.h"
