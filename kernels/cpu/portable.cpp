// What every processor of the target has: SSE2 on x86-64 (16 registers), NEON on 64-bit Arm (32 registers).
#define FASTSAL_ISA portable
#define FASTSAL_LANES 4
#if defined(__aarch64__)
#define FASTSAL_TILE_ROWS 6
#define FASTSAL_TILE_VECTORS 4
#else
#define FASTSAL_TILE_ROWS 4
#define FASTSAL_TILE_VECTORS 2
#endif
#include "kernels_impl.h"
