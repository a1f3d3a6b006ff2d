// Products of bfloat16 and of int8 on AMX tiles. Included by the kernel files inside their own namespace.
//
// A block of up to 32 rows times the 32 columns of a panel makes two by two tiles of sums, so that four loads of tiles
// serve four products. Tiles can do nothing else with their sums, so these go through memory. Three groups of k are
// under way at a time: while one is multiplied, the sums of the group before leave the tiles, and vectors take those of
// the group before that into the output.

constexpr int kMatrixPanelWidth = 2 * kLanes;
static_assert(kLanes == 16, "a row of a tile's sums is a vector");
static_assert(kSumChunk % kMatrixRowBytes == 0 && kSmallestGroup % kMatrixRowBytes == 0, "groups are whole tiles");

typedef int32_t SumRow[kMatrixPanelWidth];  // of int8; floats of bfloat16

// A block's sums over a group of k (for bfloat16 a chunk) and what makes output of them.
struct GroupSums {
  SumRow* sums;
  int row = 0, end = 0;  // rows that are not in the output yet
  const float* start;    // what the sums are added to: the output, or the bias for all rows
  int64_t start_stride;
  float* output;
  int64_t output_stride;
  bool finish;  // apply the activation
  Activation activation;
  // int8 only. A chunk's first group adds its offset; see Operand.
  bool adds_offset;
  const float* offset_columns;
  const float* offset_rows;
  const float* column_scales;
  const float* row_scales;
};

// By value: a store into the output does not change it.
FASTSAL_INLINE void add_bfloat16(const GroupSums group, int first, int last) {
  const float* start = group.start + first * group.start_stride;
  float* output = group.output + first * group.output_stride;
  for (int row = first; row < last; ++row) {
#pragma GCC unroll 2
    for (int j = 0; j < kMatrixPanelWidth; j += kLanes)
      store(output + j, load(reinterpret_cast<const float*>(group.sums[row]) + j) + load(start + j));
    start += group.start_stride;
    output += group.output_stride;
  }
}

// As add_chunk in int8_matmul.h, in the same order.
template <bool kAddsOffset>
FASTSAL_INLINE void add_int8(const GroupSums group, int first, int last) {
  constexpr int kVectors = kMatrixPanelWidth / kLanes;
  Vec columns[kVectors], offset_columns[kVectors];
#pragma GCC unroll 2
  for (int j = 0; j < kVectors; ++j) {
    columns[j] = load(group.column_scales + j * kLanes);
    if (kAddsOffset) offset_columns[j] = load(group.offset_columns + j * kLanes);
  }
  const float* start = group.start + first * group.start_stride;
  float* output = group.output + first * group.output_stride;
  for (int row = first; row < last; ++row) {
#pragma GCC unroll 2
    for (int j = 0; j < kVectors; ++j) {
      Vec value = load(start + j * kLanes);
      if (kAddsOffset) value = multiply_add(offset_columns[j], group.offset_rows[row], value);
      const IntVec sum = *reinterpret_cast<const IntVec*>(group.sums[row] + j * kLanes);
      const Vec scaled = __builtin_convertvector(sum, Vec) * columns[j];
      store(output + j * kLanes, multiply_add(scaled, group.row_scales[row], value));
    }
    start += group.start_stride;
    output += group.output_stride;
  }
}

// Takes the next `rows` rows into the output, or what is left.
template <Precision kPrecision>
FASTSAL_INLINE void finish_rows(GroupSums& group, int rows) {
  const int first = group.row;
  const int last = group.end - first < rows ? group.end : first + rows;
  if (first == last) return;
  group.row = last;
  if constexpr (kPrecision == Precision::bfloat16)
    add_bfloat16(group, first, last);
  else if (group.adds_offset)
    add_int8<true>(group, first, last);
  else
    add_int8<false>(group, first, last);
  if (group.finish)
    activate(group.output + first * group.output_stride, group.output_stride, last - first, kMatrixPanelWidth,
             group.activation);
}

struct MatrixOperands {
  const char* rows;
  int64_t row_bytes;
  int second_tile;  // its first row
  const char* panel;
};

// One tile along k of all products of a block; leaves the operands behind it. A group's first step takes the sums of
// the group before out of the tiles, each just before its product: stores in a row would hold the products up.
template <Precision kPrecision, int kRowTiles, bool kFirst>
FASTSAL_INLINE void multiply_step(MatrixOperands& operands, SumRow* sums_before) {
  constexpr int64_t kColumnsStride = 2 * kMatrixRowBytes;
#define FASTSAL_MATRIX_STEP(sums, rows, columns, first_row, first_column)                       \
  if constexpr (kFirst) {                                                                       \
    FASTSAL_MATRIX_STORE(sums, &sums_before[first_row][first_column], int64_t{sizeof(SumRow)}); \
    FASTSAL_MATRIX_ZERO(sums);                                                                  \
  }                                                                                             \
  if constexpr (kPrecision == Precision::bfloat16)                                              \
    FASTSAL_MATRIX_DOT_BFLOAT16(sums, rows, columns);                                           \
  else                                                                                          \
    FASTSAL_MATRIX_DOT_INT8(sums, rows, columns)

  FASTSAL_MATRIX_LOAD(FASTSAL_COLUMNS_0, operands.panel, kColumnsStride);
  FASTSAL_MATRIX_LOAD(FASTSAL_ROWS_0, operands.rows, operands.row_bytes);
  FASTSAL_MATRIX_STEP(FASTSAL_SUMS_00, FASTSAL_ROWS_0, FASTSAL_COLUMNS_0, 0, 0);
  FASTSAL_MATRIX_LOAD(FASTSAL_COLUMNS_1, operands.panel + kMatrixRowBytes, kColumnsStride);
  FASTSAL_MATRIX_STEP(FASTSAL_SUMS_01, FASTSAL_ROWS_0, FASTSAL_COLUMNS_1, 0, kLanes);
  if constexpr (kRowTiles == 2) {
    const int second = operands.second_tile;
    FASTSAL_MATRIX_LOAD(FASTSAL_ROWS_1, operands.rows + second * operands.row_bytes, operands.row_bytes);
    FASTSAL_MATRIX_STEP(FASTSAL_SUMS_10, FASTSAL_ROWS_1, FASTSAL_COLUMNS_0, second, 0);
    FASTSAL_MATRIX_STEP(FASTSAL_SUMS_11, FASTSAL_ROWS_1, FASTSAL_COLUMNS_1, second, kLanes);
  }
#undef FASTSAL_MATRIX_STEP
  operands.panel += kMatrixRows * kColumnsStride;
  operands.rows += kMatrixRowBytes;
}

template <int kRowTiles>
FASTSAL_INLINE void store_sums(SumRow* sums, int second_tile) {
  FASTSAL_MATRIX_STORE(FASTSAL_SUMS_00, &sums[0][0], int64_t{sizeof(SumRow)});
  FASTSAL_MATRIX_STORE(FASTSAL_SUMS_01, &sums[0][kLanes], int64_t{sizeof(SumRow)});
  if constexpr (kRowTiles == 2) {
    FASTSAL_MATRIX_STORE(FASTSAL_SUMS_10, &sums[second_tile][0], int64_t{sizeof(SumRow)});
    FASTSAL_MATRIX_STORE(FASTSAL_SUMS_11, &sums[second_tile][kLanes], int64_t{sizeof(SumRow)});
  }
}

FASTSAL_INLINE Panel matrix_panel(const PackedLinear& linear, int index) {
  Panel panel = panel_of<kMatrixPanelWidth / kLanes>(linear, index);
  panel.vectors = kMatrixPanelWidth / kLanes;  // the last one, too
  return panel;
}

// How the rows of a task are cut. All tiles have one size, which is what the tile registers are configured for. So the
// second tile of a block may share a row with the first, and the last block begins as much earlier as it is short of
// rows; the rows that it shares with the block before are in the output already.
struct RowBlocks {
  int count, tile_rows, rows, second_tile, last;

  RowBlocks(int all_rows, int row_tiles) {
    count = static_cast<int>(divide_up(all_rows, row_tiles * kMatrixRows));
    tile_rows = static_cast<int>(divide_up(all_rows, count * row_tiles));
    rows = row_tiles * tile_rows < all_rows ? row_tiles * tile_rows : all_rows;
    second_tile = rows - tile_rows;
    last = all_rows - rows;
  }
  int first_row(int block) const { return block * rows < last ? block * rows : last; }
  int first_fresh(int block) const { return block * rows - first_row(block); }
};

// Group `g` of the chunk from k on, to be multiplied next.
template <Precision kPrecision>
FASTSAL_INLINE void describe(GroupSums& group, const LinearTask& task, const Panel& panel, int index, int k, int g,
                             int row) {
  const PackedLinear& linear = *task.weights;
  group.output =
      task.output + static_cast<int64_t>(index - task.base_panel) * kMatrixPanelWidth + row * task.output_stride;
  group.output_stride = task.output_stride;
  const bool adds = k > 0 || g > 0;
  group.start = adds ? group.output : panel.bias;
  group.start_stride = adds ? task.output_stride : 0;
  const int size = kPrecision == Precision::int8 ? linear.group : kSumChunk;
  group.finish = k + (g + 1) * size >= linear.in_features;
  group.activation = task.activation;
  if constexpr (kPrecision == Precision::int8) {
    const Operand& input = task.input;
    const int64_t scales = int64_t{k} / kSumChunk * chunk_scales(size);
    const int64_t row_scales = int64_t{k - task.k_begin} / kSumChunk * chunk_scales(size);
    group.adds_offset = g == 0;
    group.offset_columns = panel.scales + scales * kMatrixPanelWidth;
    group.offset_rows = input.scales + row_scales * input.scales_stride + row;
    group.column_scales = group.offset_columns + (1 + g) * kMatrixPanelWidth;
    group.row_scales = group.offset_rows + (1 + g) * input.scales_stride;
  }
}

template <Precision kPrecision, int kRowTiles>
static void multiply_on_tiles(const LinearTask& task) {
  constexpr int kEntry = stored_bytes(kPrecision), kStep = kMatrixRowBytes / kEntry;  // k of a tile
  const PackedLinear& linear = *task.weights;
  const Operand& input = task.input;
  const int group_size = kPrecision == Precision::int8 ? linear.group : kSumChunk;
  const RowBlocks blocks(task.rows, kRowTiles);
  const MatrixConfig config(blocks.tile_rows);
  FASTSAL_MATRIX_CONFIGURE(&config);

  alignas(64) SumRow sums[2][2 * kMatrixRows];
  GroupSums groups[3];  // under way
  for (int i = 0; i < 3; ++i) groups[i].sums = sums[i % 2];
  GroupSums *current = &groups[2], *stored = &groups[1], *finished = &groups[0];

  for (int index = task.first_panel; index < task.last_panel; ++index) {
    const Panel panel = matrix_panel(linear, index);
    for (int k = task.k_begin; k < task.k_end; k += kSumChunk) {
      const int end = k + kSumChunk < task.k_end ? k + kSumChunk : task.k_end;
      NextChunk next_chunk(blocks.count, static_cast<int>(divide_up(end - k, kStep)));
      if (end < task.k_end)
        next_chunk.set(linear, panel, end, task.k_end, kSumChunk);
      else if (index + 1 < task.last_panel)
        next_chunk.set(linear, matrix_panel(linear, index + 1), task.k_begin, task.k_end, kSumChunk);
      for (int block = 0; block < blocks.count; ++block) {
        const int row = blocks.first_row(block);
        MatrixOperands operands{
            static_cast<const char*>(input.rows) + row * input.row_bytes + (k - task.k_begin) * kEntry, input.row_bytes,
            blocks.second_tile, stored_chunk(linear, panel, k)};
        Prefetch ahead = next_chunk.take();
        for (int g = 0; k + g * group_size < end; ++g) {
          GroupSums* const free = finished;
          finished = stored;
          stored = current;
          current = free;
          current->sums = finished->sums;  // done with before these are stored
          current->row = blocks.first_fresh(block);
          current->end = blocks.rows;
          describe<kPrecision>(*current, task, panel, index, k, g, row);

          const int begin = k + g * group_size;
          const int steps = static_cast<int>(divide_up(end - begin < group_size ? end - begin : group_size, kStep));
          const int rows_a_step = static_cast<int>(divide_up(finished->end - finished->row, steps));
          for (int step = 0; step < steps; ++step) {
            if (step == 0)
              multiply_step<kPrecision, kRowTiles, true>(operands, stored->sums);
            else
              multiply_step<kPrecision, kRowTiles, false>(operands, nullptr);
            ahead.advance();
            finish_rows<kPrecision>(*finished, rows_a_step);
          }
        }
      }
    }
  }
  finish_rows<kPrecision>(*stored, blocks.rows);
  store_sums<kRowTiles>(current->sums, blocks.second_tile);
  finish_rows<kPrecision>(*current, blocks.rows);
  FASTSAL_MATRIX_RELEASE();
}

static void multiply_on_tiles(const LinearTask& task) {
  if (task.rows == 0) return;
  const bool one_tile = task.rows <= kMatrixRows;
  if (task.weights->precision == Precision::bfloat16)
    one_tile ? multiply_on_tiles<Precision::bfloat16, 1>(task) : multiply_on_tiles<Precision::bfloat16, 2>(task);
  else
    one_tile ? multiply_on_tiles<Precision::int8, 1>(task) : multiply_on_tiles<Precision::int8, 2>(task);
}
