// AMX (Sapphire Rapids and later): products of bfloat16 and of int8 on tiles; all else in float32 on AVX-512.
#define FASTSAL_ISA amx
#define FASTSAL_LANES 16
#define FASTSAL_TILE_ROWS 6
#define FASTSAL_TILE_VECTORS 4
#define FASTSAL_INT8_DOT
#define FASTSAL_MATRIX_TILES
#include "kernels_impl.h"
