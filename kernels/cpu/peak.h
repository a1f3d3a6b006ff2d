// The arithmetic of a register tile without its loads: what the processor can do at most. Included by the kernel files
// inside their own namespace.

template <typename Format>
static void spin(int64_t steps) {
  typename Format::Sum sums[kTileRows][kTileVectors] = {};
  typename Format::Unit operands[kTileVectors * kLanes] = {};
  __asm__ volatile("" : "+m"(operands));  // unknown to the compiler
  typename Format::Columns columns[kTileVectors];
  for (int j = 0; j < kTileVectors; ++j) columns[j] = Format::load_columns(operands + j * kLanes);
  const typename Format::Unit value = operands[0];
  for (int64_t step = 0; step < steps; ++step) {
#pragma GCC unroll 8
    for (int i = 0; i < kTileRows; ++i)
#pragma GCC unroll 8
      for (int j = 0; j < kTileVectors; ++j) {
#if defined(FASTSAL_INT8_PAIRS)
        __asm__ volatile("" : "+x"(columns[j]));  // else its products would be made once
#endif
        sums[i][j] = Format::accumulate(sums[i][j], value, columns[j]);
      }
  }
  __asm__ volatile("" : : "m"(sums));
}

#if defined(FASTSAL_MATRIX_TILES)
static int64_t spin_on_tiles(Precision precision, int64_t steps) {
  const MatrixConfig config(kMatrixRows);
  FASTSAL_MATRIX_CONFIGURE(&config);  // all tiles are zeros
  for (int64_t step = 0; step < steps; ++step) {
    if (precision == Precision::bfloat16) {
      FASTSAL_MATRIX_DOT_BFLOAT16(FASTSAL_SUMS_00, FASTSAL_ROWS_0, FASTSAL_COLUMNS_0);
      FASTSAL_MATRIX_DOT_BFLOAT16(FASTSAL_SUMS_01, FASTSAL_ROWS_0, FASTSAL_COLUMNS_1);
      FASTSAL_MATRIX_DOT_BFLOAT16(FASTSAL_SUMS_10, FASTSAL_ROWS_1, FASTSAL_COLUMNS_0);
      FASTSAL_MATRIX_DOT_BFLOAT16(FASTSAL_SUMS_11, FASTSAL_ROWS_1, FASTSAL_COLUMNS_1);
    } else {
      FASTSAL_MATRIX_DOT_INT8(FASTSAL_SUMS_00, FASTSAL_ROWS_0, FASTSAL_COLUMNS_0);
      FASTSAL_MATRIX_DOT_INT8(FASTSAL_SUMS_01, FASTSAL_ROWS_0, FASTSAL_COLUMNS_1);
      FASTSAL_MATRIX_DOT_INT8(FASTSAL_SUMS_10, FASTSAL_ROWS_1, FASTSAL_COLUMNS_0);
      FASTSAL_MATRIX_DOT_INT8(FASTSAL_SUMS_11, FASTSAL_ROWS_1, FASTSAL_COLUMNS_1);
    }
  }
  FASTSAL_MATRIX_RELEASE();
  return int64_t{2} * 4 * kMatrixRows * kMatrixRows * kMatrixRowBytes / stored_bytes(precision);
}
#endif

// Runs `steps` steps of the tile; returns the multiplications and additions of one step.
static int64_t peak(Precision precision, int64_t steps) {
#if defined(FASTSAL_MATRIX_TILES)
  if (precision != Precision::float32) return spin_on_tiles(precision, steps);
#endif
  int depth = 1;
#if defined(FASTSAL_BF16_DOT)
  if (precision == Precision::bfloat16) {
    spin<Bfloat16Format>(steps);
    depth = Bfloat16Format::kDepth;
  } else
#endif
#if defined(FASTSAL_INT8_DOT)
      if (precision == Precision::int8) {
    spin<Int8Format>(steps);
    depth = Int8Format::kDepth;
  } else
#endif
  {
    static_cast<void>(precision);
    spin<FloatFormat>(steps);
  }
  return int64_t{2} * kTileRows * kTileVectors * kLanes * depth;
}
