// The register tile and the matrix product over weight panels. Included by the kernel files inside their own namespace.

constexpr int kTileRows = FASTSAL_TILE_ROWS;
constexpr int kTileVectors = FASTSAL_TILE_VECTORS;
constexpr int kPanelWidth = kTileVectors * kLanes;
static_assert(kSumChunk % kPanelWidth == 0, "the feed-forward chunks end at panel boundaries");

// accumulators[i][j] += sum over k of rows[i][k] * b[k * b_stride + j * lanes ...]; every sum runs over k in order in
// one accumulator, whatever the tile's shape, so a row's result does not depend on the rows beside it.
template <int kRows, int kVectors>
FASTSAL_INLINE void multiply(const float* const* rows, const float* b, int64_t b_stride, int k_count,
                             Vec (&accumulators)[kRows][kVectors]) {
  for (int64_t k = 0; k < k_count; ++k) {
    Vec columns[kVectors];
#pragma GCC unroll 8
    for (int j = 0; j < kVectors; ++j) columns[j] = load(b + j * kLanes);
    b += b_stride;
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i) {
      const float value = rows[i][k];
#pragma GCC unroll 8
      for (int j = 0; j < kVectors; ++j) accumulators[i][j] += value * columns[j];
    }
  }
}

struct Tile {
  const float* const* rows;  // input row of each tile row, at the chunk's first k
  const float* panel;        // the chunk's first k
  const float* bias;         // the panel's
  int k_count;
  float* output;
  int64_t output_stride;
  bool add;     // to what is in the output
  bool finish;  // bias and activation
  Activation activation;
};

template <int kRows, int kVectors>
static void run_tile(const Tile& tile) {
  const float* rows[kRows];
  for (int i = 0; i < kRows; ++i) rows[i] = tile.rows[i];
  Vec accumulators[kRows][kVectors] = {};
  multiply<kRows, kVectors>(rows, tile.panel, kVectors * kLanes, tile.k_count, accumulators);
  const float* bias = tile.bias;
  const bool add = tile.add, finish = tile.finish;
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i) {
    float* output = tile.output + i * tile.output_stride;
#pragma GCC unroll 8
    for (int j = 0; j < kVectors; ++j) {
      Vec value = accumulators[i][j];
      if (add) value += load(output + j * kLanes);
      if (finish) value += load(bias + j * kLanes);
      store(output + j * kLanes, value);
    }
  }
  if (tile.finish) activate(tile.output, tile.output_stride, kRows, kVectors * kLanes, tile.activation);
}

typedef void (*RunTile)(const Tile&);

template <int kVectors>
static RunTile tile_of_rows(int rows) {
  switch (rows) {
    case 1:
      return run_tile<1, kVectors>;
    case 2:
      return run_tile<2, kVectors>;
    case 3:
      return run_tile<3, kVectors>;
#if FASTSAL_TILE_ROWS > 4
    case 4:
      return run_tile<4, kVectors>;
    case 5:
      return run_tile<5, kVectors>;
#endif
    default:
      return run_tile<kTileRows, kVectors>;
  }
}

static RunTile select_tile(int rows, int vectors) {
  switch (vectors) {
    case 1:
      return tile_of_rows<1>(rows);
#if FASTSAL_TILE_VECTORS > 2
    case 2:
      return tile_of_rows<2>(rows);
    case 3:
      return tile_of_rows<3>(rows);
#endif
    default:
      return tile_of_rows<kTileVectors>(rows);
  }
}

struct Panel {
  const float* weights;
  const float* bias;
  int vectors;
};

FASTSAL_INLINE Panel panel_of(const PackedLinear& linear, int index) {
  const int columns = linear.out_features - index * kPanelWidth;
  return {linear.panels + static_cast<int64_t>(index) * kPanelWidth * linear.in_features,
          linear.bias + index * kPanelWidth,
          columns >= kPanelWidth ? kTileVectors : round_up(columns, kLanes) / kLanes};
}

// One panel for all rows, k in [k_begin, k_end) chunk by chunk; the chunk of the panel stays in cache for all rows.
// `input_row(i)` is row i at k_begin.
template <typename InputRow>
FASTSAL_INLINE void multiply_panel(const PackedLinear& linear, int index, int rows, int k_begin, int k_end,
                                   Activation kind, InputRow input_row, float* output, int64_t output_stride) {
  const Panel panel = panel_of(linear, index);
  for (int k = k_begin; k < k_end;) {
    const int next = k + kSumChunk - k % kSumChunk;
    const int end = next < k_end ? next : k_end;
    Tile tile;
    tile.panel = panel.weights + static_cast<int64_t>(k) * panel.vectors * kLanes;
    tile.bias = panel.bias;
    tile.k_count = end - k;
    tile.output_stride = output_stride;
    tile.add = k > 0;
    tile.finish = end == linear.in_features;
    tile.activation = kind;
    for (int row = 0; row < rows; row += kTileRows) {
      const int count = rows - row < kTileRows ? rows - row : kTileRows;
      const float* pointers[kTileRows];
      for (int i = 0; i < count; ++i) pointers[i] = input_row(row + i) + (k - k_begin);
      tile.rows = pointers;
      tile.output = output + row * output_stride;
      select_tile(count, panel.vectors)(tile);
    }
    k = end;
  }
}

static void linear(const LinearTask& task) {
  for (int panel = task.first_panel; panel < task.last_panel; ++panel)
    multiply_panel(
        *task.weights, panel, task.rows, task.k_begin, task.k_end, task.activation,
        [&](int row) { return task.input + row * task.input_stride; },
        task.output + static_cast<int64_t>(panel - task.base_panel) * kPanelWidth, task.output_stride);
}
