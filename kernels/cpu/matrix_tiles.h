// The instructions of AMX on its eight tile registers: matrices of up to 16 rows of 64 bytes. A product adds to 16 x 16
// sums a tile of 16 rows, each of 32 bfloat16 or 64 bytes, times one of as many k of 16 columns, laid out as in a
// panel. The numbers of registers are literals in the instructions, so these are macros. Included by the kernel files
// inside their own namespace.

constexpr int kMatrixRows = 16, kMatrixRowBytes = 64;

// Two by two sums, the rows' two tiles and the columns' two.
#define FASTSAL_SUMS_00 0
#define FASTSAL_SUMS_01 1
#define FASTSAL_SUMS_10 2
#define FASTSAL_SUMS_11 3
#define FASTSAL_ROWS_0 4
#define FASTSAL_ROWS_1 5
#define FASTSAL_COLUMNS_0 6
#define FASTSAL_COLUMNS_1 7

// As ldtilecfg reads it.
struct alignas(64) MatrixConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};

  // All tiles but those of columns have as many rows as a tile of the input.
  explicit MatrixConfig(int input_rows) {
    for (int tile = 0; tile < 8; ++tile) {
      row_bytes[tile] = kMatrixRowBytes;
      rows[tile] = static_cast<uint8_t>(tile < FASTSAL_COLUMNS_0 ? input_rows : kMatrixRows);
    }
  }
};

#if defined(FASTSAL_MATRIX_MODEL)
#include "matrix_model.h"
#else
FASTSAL_INLINE void configure_tiles(const MatrixConfig* config) {
  __asm__ volatile("" : : "r"(config) : "memory");  // gcc 12 believes that the instruction reads eight bytes of it
  _tile_loadconfig(config);
}
#define FASTSAL_MATRIX_CONFIGURE(config) configure_tiles(config)
#define FASTSAL_MATRIX_RELEASE() _tile_release()
#define FASTSAL_MATRIX_ZERO(tile) _tile_zero(tile)
#define FASTSAL_MATRIX_LOAD(tile, from, stride) _tile_loadd(tile, from, stride)
#define FASTSAL_MATRIX_STORE(tile, to, stride) _tile_stored(tile, to, stride)
#define FASTSAL_MATRIX_DOT_BFLOAT16(sums, rows, columns) _tile_dpbf16ps(sums, rows, columns)
#define FASTSAL_MATRIX_DOT_INT8(sums, rows, columns) _tile_dpbusd(sums, rows, columns)
#endif
