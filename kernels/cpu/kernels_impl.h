// One source for all instruction sets: a kernel file defines the macros below and includes this once.
//   FASTSAL_ISA           name of the namespace and of the instruction set
//   FASTSAL_LANES         floats in a vector
//   FASTSAL_TILE_ROWS     rows of the register tile
//   FASTSAL_TILE_VECTORS  vectors in a row of the register tile
//   FASTSAL_BF16_DOT      defined where there are dot products of bfloat16 pairs (AVX512-BF16)
//   FASTSAL_INT8_DOT      defined where there are dot products of four bytes: one instruction (VNNI), or by the next
//   FASTSAL_INT8_PAIRS    defined where these go by pairs of bytes that saturate at 16 bits (AVX2, AVX-512 BW)
//   FASTSAL_INT8_MODEL    defined where they are made of other instructions that every AVX2 processor has
//   FASTSAL_MATRIX_TILES  defined where there are products of tiles of bfloat16 and of bytes (AMX)
//   FASTSAL_MATRIX_MODEL  defined where these tiles are plain C++
#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif
#include <stddef.h>
#include <stdint.h>

#include "gelu_table.h"
#include "kernels.h"

#define FASTSAL_STRING2(x) #x
#define FASTSAL_STRING(x) FASTSAL_STRING2(x)

namespace fastsal::FASTSAL_ISA {
namespace {
#include "vector.h"
#include "math.h"
#if defined(FASTSAL_INT8_DOT)
#include "bytes.h"
#endif
#include "convert.h"
#include "matmul.h"
#if defined(FASTSAL_MATRIX_TILES)
#include "matrix_tiles.h"
#include "matrix_matmul.h"
#else
#include "int8_matmul.h"
#endif
#include "linear.h"
#include "plain_linear.h"
#include "layers.h"
#include "attention.h"
#include "pool.h"
#include "peak.h"
}  // namespace

extern const Kernels kernels;
const Kernels kernels = {FASTSAL_STRING(FASTSAL_ISA),
                         kLanes,
                         {kFloatLayout, kBfloat16Layout, kInt8Layout},
                         linear,
                         plain_linear,
                         convert,
                         layer_norm,
                         embed,
                         attention,
                         attention_scratch,
                         pool,
                         add_scaled,
                         normalize,
                         activate,
                         peak};
}  // namespace fastsal::FASTSAL_ISA
