// What AMX's instructions do, in plain C++ and to the bit, so that the kernels made of them are tested on processors
// without. After the pseudocode of Intel's Software Developer's Manual, volume 2. Included by matrix_tiles.h.

struct MatrixRegisters {
  int rows[8], row_bytes[8];
  alignas(64) char tiles[8][kMatrixRows][kMatrixRowBytes];
};
static thread_local MatrixRegisters registers;

static void configure_model(const MatrixConfig* config) {
  registers = {};
  for (int tile = 0; tile < 8; ++tile) {
    registers.rows[tile] = config->rows[tile];
    registers.row_bytes[tile] = config->row_bytes[tile];
  }
}

static void load_model(int tile, const void* from, int64_t stride) {
  for (int row = 0; row < registers.rows[tile]; ++row)
    __builtin_memcpy(registers.tiles[tile][row], static_cast<const char*>(from) + row * stride,
                     static_cast<size_t>(registers.row_bytes[tile]));
}

static void store_model(int tile, void* to, int64_t stride) {
  for (int row = 0; row < registers.rows[tile]; ++row)
    __builtin_memcpy(static_cast<char*>(to) + row * stride, registers.tiles[tile][row],
                     static_cast<size_t>(registers.row_bytes[tile]));
}

FASTSAL_INLINE float without_denormals(float value) {
  return __builtin_fabsf(value) < 0x1p-126f ? __builtin_copysignf(0.f, value) : value;
}

FASTSAL_INLINE float float_of(uint16_t bfloat16) {
  const uint32_t bits = static_cast<uint32_t>(bfloat16) << 16;
  float value;
  __builtin_memcpy(&value, &bits, sizeof value);
  return without_denormals(value);
}

// The even and the odd entries of a row have a sum each; both are added, and then to what is there.
static void dot_bfloat16_model(int sums, int rows, int columns) {
  for (int row = 0; row < registers.rows[sums]; ++row) {
    uint16_t values[2 * kMatrixRows], weights[2 * kMatrixRows];
    float even[kMatrixRows] = {}, odd[kMatrixRows] = {}, results[kMatrixRows];
    __builtin_memcpy(values, registers.tiles[rows][row], sizeof values);
    __builtin_memcpy(results, registers.tiles[sums][row], sizeof results);
    for (int k = 0; k < registers.rows[columns]; ++k) {
      __builtin_memcpy(weights, registers.tiles[columns][k], sizeof weights);
      const float first = float_of(values[2 * k]), second = float_of(values[2 * k + 1]);
      for (int column = 0; column < kMatrixRows; ++column) {
        even[column] = without_denormals(__builtin_fmaf(first, float_of(weights[2 * column]), even[column]));
        odd[column] = without_denormals(__builtin_fmaf(second, float_of(weights[2 * column + 1]), odd[column]));
      }
    }
    for (int column = 0; column < kMatrixRows; ++column)
      results[column] =
          without_denormals(without_denormals(results[column]) + without_denormals(even[column] + odd[column]));
    __builtin_memcpy(registers.tiles[sums][row], results, sizeof results);
  }
}

static void dot_int8_model(int sums, int rows, int columns) {
  for (int row = 0; row < registers.rows[sums]; ++row) {
    int32_t results[kMatrixRows];
    uint8_t values[kMatrixRowBytes];
    int8_t weights[kMatrixRowBytes];
    __builtin_memcpy(values, registers.tiles[rows][row], sizeof values);
    __builtin_memcpy(results, registers.tiles[sums][row], sizeof results);
    for (int k = 0; k < registers.rows[columns]; ++k) {
      __builtin_memcpy(weights, registers.tiles[columns][k], sizeof weights);
      for (int column = 0; column < kMatrixRows; ++column)
        for (int i = 0; i < 4; ++i) results[column] += values[4 * k + i] * weights[4 * column + i];
    }
    __builtin_memcpy(registers.tiles[sums][row], results, sizeof results);
  }
}

#define FASTSAL_MATRIX_CONFIGURE(config) configure_model(config)
#define FASTSAL_MATRIX_RELEASE() (registers = {})
#define FASTSAL_MATRIX_ZERO(tile) __builtin_memset(registers.tiles[tile], 0, sizeof registers.tiles[tile])
#define FASTSAL_MATRIX_LOAD(tile, from, stride) load_model(tile, from, stride)
#define FASTSAL_MATRIX_STORE(tile, to, stride) store_model(tile, to, stride)
#define FASTSAL_MATRIX_DOT_BFLOAT16(sums, rows, columns) dot_bfloat16_model(sums, rows, columns)
#define FASTSAL_MATRIX_DOT_INT8(sums, rows, columns) dot_int8_model(sums, rows, columns)
