// The kernels of amx.cpp with AMX in plain C++, for tests on processors that have AVX-512 and no AMX. Never chosen by
// itself.
#define FASTSAL_ISA amx_model
#define FASTSAL_LANES 16
#define FASTSAL_TILE_ROWS 6
#define FASTSAL_TILE_VECTORS 4
#define FASTSAL_INT8_DOT
#define FASTSAL_MATRIX_TILES
#define FASTSAL_MATRIX_MODEL
#include "kernels_impl.h"
