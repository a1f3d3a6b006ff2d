// The register tiles and the matrix product over weight panels. Included by the kernel files inside their own
// namespace.

constexpr int kTileRows = FASTSAL_TILE_ROWS;
constexpr int kTileVectors = FASTSAL_TILE_VECTORS;
constexpr int kPanelWidth = kTileVectors * kLanes;
static_assert(kSumChunk % kPanelWidth == 0, "chunks end at panel boundaries");

// A format says what a step along k multiplies: a Unit of a row, broadcast, times one Unit in each lane of the columns.
struct FloatFormat {
  typedef float Unit;
  typedef Vec Sum;
  typedef Vec Columns;
  static constexpr int kDepth = 1;
  FASTSAL_INLINE Columns load_columns(const Unit* from) { return load(from); }
  FASTSAL_INLINE Sum accumulate(Sum sum, Unit value, Columns columns) {
    return multiply_add(splat(value), columns, sum);
  }
};

#if defined(FASTSAL_BF16_DOT)
struct Bfloat16Format {
  typedef int32_t Unit __attribute__((may_alias));  // two bfloat16
  typedef Vec Sum;
  typedef __m512bh Columns;
  static constexpr int kDepth = 2;
  FASTSAL_INLINE Columns load_columns(const Unit* from) { return (__m512bh)_mm512_loadu_si512(from); }
  FASTSAL_INLINE Sum accumulate(Sum sum, Unit value, Columns columns) {
    return (Vec)_mm512_dpbf16_ps((__m512)sum, (__m512bh)_mm512_set1_epi32(value), columns);
  }
};
#endif

#if defined(FASTSAL_INT8_DOT)
struct Int8Format {
  typedef int32_t Unit __attribute__((may_alias));  // four uint8 of a row, four int8 of a column
  typedef IntVec Sum;
  typedef __m512i Columns;
  static constexpr int kDepth = 4;
  FASTSAL_INLINE Columns load_columns(const Unit* from) { return _mm512_loadu_si512(from); }
  FASTSAL_INLINE Sum accumulate(Sum sum, Unit value, Columns columns) {
    return (IntVec)_mm512_dpbusd_epi32((__m512i)sum, _mm512_set1_epi32(value), columns);
  }
};
#endif

template <typename Format>
constexpr int steps_of(int k_count) {
  return static_cast<int>(divide_up(k_count, Format::kDepth));
}

// Memory that will be needed soon, asked for line by line while a tile computes.
struct Prefetch {
  static constexpr int kLine = 64;
  const char* next = nullptr;
  int lines = 0;  // a step

  __attribute__((always_inline)) void advance() {
    for (int line = 0; line < lines; ++line) __builtin_prefetch(next + line * kLine, 0, 2);
    next += lines * kLine;
  }
};

// sums[i][j] += sum over steps of rows[i][step] * b[step * b_stride + j * lanes ...]; every sum runs over the steps in
// order in one accumulator, whatever the tile's shape, so a row's result does not depend on the rows beside it.
template <typename Format, int kRows, int kVectors, bool kPrefetch = false>
FASTSAL_INLINE void multiply(const typename Format::Unit* const* rows, const typename Format::Unit* b, int64_t b_stride,
                             int steps, typename Format::Sum (&sums)[kRows][kVectors], Prefetch ahead = {}) {
  for (int64_t step = 0; step < steps; ++step) {
    if (kPrefetch) ahead.advance();
    typename Format::Columns columns[kVectors];
#pragma GCC unroll 8
    for (int j = 0; j < kVectors; ++j) columns[j] = Format::load_columns(b + j * kLanes);
    b += b_stride;
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i) {
      const typename Format::Unit value = rows[i][step];
#pragma GCC unroll 8
      for (int j = 0; j < kVectors; ++j) sums[i][j] = Format::accumulate(sums[i][j], value, columns[j]);
    }
  }
}

struct Tile {
  const void* const* rows;  // input row of each tile row, at the chunk's first k
  const float* row_scales;  // int8: the chunk's first, of the first row
  int64_t row_scales_stride;
  const void* panel;          // the chunk's first k
  const float* panel_scales;  // int8: the chunk's
  const float* bias;          // the panel's
  int k_count;
  int group;  // int8
  float* output;
  int64_t output_stride;
  bool add;     // to what is in the output
  bool finish;  // apply the activation
  Activation activation;
  Prefetch ahead;
};

// The pointers of a tile's rows, one register each. Loaded as a vector, as the compiler would, they would have to wait
// until the caller's stores of the single pointers, and so the tile before, have left the pipeline.
template <typename Unit, int kRows>
FASTSAL_INLINE void load_row_pointers(const Tile& tile, const Unit* (&rows)[kRows]) {
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i) {
    rows[i] = static_cast<const Unit*>(tile.rows[i]);
    __asm__("" : "+r"(rows[i]));
  }
}

// What a tile adds to: the bias, or after the first chunk of k what is in the output.
struct Start {
  const float* values;
  int64_t stride;

  explicit Start(const Tile& tile)
      : values(tile.add ? tile.output : tile.bias), stride(tile.add ? tile.output_stride : 0) {}
};

template <typename Format>
struct SumTile {
  template <int kRows, int kVectors>
  static void run(const Tile& tile) {
    typedef typename Format::Unit Unit;
    const Unit* rows[kRows];
    load_row_pointers(tile, rows);
    Vec sums[kRows][kVectors] = {};
    const Unit* panel = static_cast<const Unit*>(tile.panel);
    const int steps = steps_of<Format>(tile.k_count);
    if (kVectors == kTileVectors && tile.ahead.lines > 0)
      multiply<Format, kRows, kVectors, true>(rows, panel, kVectors * kLanes, steps, sums, tile.ahead);
    else
      multiply<Format, kRows, kVectors>(rows, panel, kVectors * kLanes, steps, sums);
    const Start start(tile);
    float* output = tile.output;
    const int64_t stride = tile.output_stride;
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i)
#pragma GCC unroll 8
      for (int j = 0; j < kVectors; ++j)
        store(output + i * stride + j * kLanes, sums[i][j] + load(start.values + i * start.stride + j * kLanes));
    if (tile.finish) activate(output, stride, kRows, kVectors * kLanes, tile.activation);
  }
};

// int8: exact integer sums over a group, scaled and added up in float. The offset's part of a chunk's sum is known from
// the weights alone; where floats stand for the integers (no dot product instruction), it is in them already.
//
// Where there are registers for both kinds of sums of two vectors, the tile is computed two vectors at a time: loads
// and stores of float sums after every group would take more time than reading the rows again.
template <typename Format, bool kOffset>
struct GroupTile {
  template <int kRows, int kVectors>
  static void run(const Tile& tile) {
    // One or two rows leave registers; and so few sums would wait for each other.
    constexpr int kMost = kLanes == 16 && kRows > 2 ? 2 : kTileVectors;
    constexpr int kTogether = kVectors > kMost ? kMost : kVectors;
    run_vectors<kRows, kVectors, 0, kTogether>(tile);
    if constexpr (kVectors > kTogether) run_vectors<kRows, kVectors, kTogether, kVectors - kTogether>(tile);
    if (tile.finish) activate(tile.output, tile.output_stride, kRows, kVectors * kLanes, tile.activation);
  }

 private:
  template <int kRows, int kVectors, int kFirst, int kCount>
  static void run_vectors(const Tile& tile) {
    typedef typename Format::Unit Unit;
    constexpr int kWidth = kVectors * kLanes;
    const Unit* rows[kRows];
    load_row_pointers(tile, rows);
    const Unit* panel = static_cast<const Unit*>(tile.panel) + kFirst * kLanes;
    const float* scales = tile.panel_scales + kFirst * kLanes;
    const float* row_scales = tile.row_scales;
    const int64_t row_scales_stride = tile.row_scales_stride;
    float* output = tile.output + kFirst * kLanes;
    const int64_t output_stride = tile.output_stride;
    const int k_count = tile.k_count, group = tile.group;

    Vec values[kRows][kCount];
    if (tile.add) {
#pragma GCC unroll 8
      for (int i = 0; i < kRows; ++i)
#pragma GCC unroll 8
        for (int j = 0; j < kCount; ++j) values[i][j] = load(output + i * output_stride + j * kLanes);
    } else {
#pragma GCC unroll 8
      for (int i = 0; i < kRows; ++i)
#pragma GCC unroll 8
        for (int j = 0; j < kCount; ++j) values[i][j] = load(tile.bias + (kFirst + j) * kLanes);
    }
    if (kOffset) {
#pragma GCC unroll 8
      for (int i = 0; i < kRows; ++i)
#pragma GCC unroll 8
        for (int j = 0; j < kCount; ++j)
          values[i][j] = multiply_add(load(scales + j * kLanes), row_scales[i], values[i][j]);
    }
    Prefetch ahead = tile.ahead;
    for (int k = 0; k < k_count; k += group) {
      scales += kWidth;
      row_scales += row_scales_stride;
      const int steps = steps_of<Format>(k_count - k < group ? k_count - k : group);
      typename Format::Sum sums[kRows][kCount] = {};
      if (kFirst == 0 && kVectors == kTileVectors && ahead.lines > 0) {
        multiply<Format, kRows, kCount, true>(rows, panel, kWidth, steps, sums, ahead);
        ahead.next += steps * ahead.lines * Prefetch::kLine;
      } else {
        multiply<Format, kRows, kCount>(rows, panel, kWidth, steps, sums);
      }
#pragma GCC unroll 8
      for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 8
        for (int j = 0; j < kCount; ++j) {
          const Vec scaled = __builtin_convertvector(sums[i][j], Vec) * load(scales + j * kLanes);
          values[i][j] = multiply_add(scaled, row_scales[i], values[i][j]);
        }
        rows[i] += steps;
      }
      panel += static_cast<int64_t>(steps) * kWidth;
    }
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i)
#pragma GCC unroll 8
      for (int j = 0; j < kCount; ++j) store(output + i * output_stride + j * kLanes, values[i][j]);
  }
};

template <typename Kind, int kVectors>
FASTSAL_INLINE void run_tile_of_rows(int rows, const Tile& tile) {
  switch (rows) {
    case 1:
      return Kind::template run<1, kVectors>(tile);
    case 2:
      return Kind::template run<2, kVectors>(tile);
    case 3:
      return Kind::template run<3, kVectors>(tile);
#if FASTSAL_TILE_ROWS > 4
    case 4:
      return Kind::template run<4, kVectors>(tile);
    case 5:
      return Kind::template run<5, kVectors>(tile);
#endif
    default:
      return Kind::template run<kTileRows, kVectors>(tile);
  }
}

template <typename Kind>
FASTSAL_INLINE void run_tile(int rows, int vectors, const Tile& tile) {
  switch (vectors) {
    case 1:
      return run_tile_of_rows<Kind, 1>(rows, tile);
#if FASTSAL_TILE_VECTORS > 2
    case 2:
      return run_tile_of_rows<Kind, 2>(rows, tile);
    case 3:
      return run_tile_of_rows<Kind, 3>(rows, tile);
#endif
    default:
      return run_tile_of_rows<Kind, kTileVectors>(rows, tile);
  }
}

struct Panel {
  int64_t first;  // entry of the whole matrix at which the panel starts
  const float* bias;
  const float* scales;
  int vectors;
};

FASTSAL_INLINE Panel panel_of(const PackedLinear& linear, int index) {
  const int columns = linear.out_features - index * kPanelWidth;
  const int depth = linear.precision == Precision::float32 ? linear.in_features : padded_depth(linear.in_features);
  const float* scales = linear.scales ? linear.scales + static_cast<int64_t>(index) * kPanelWidth *
                                                            scales_of(linear.in_features, linear.group)
                                      : nullptr;
  return {static_cast<int64_t>(index) * kPanelWidth * depth, linear.bias + index * kPanelWidth, scales,
          columns >= kPanelWidth ? kTileVectors : round_up(columns, kLanes) / kLanes};
}

FASTSAL_INLINE const char* stored_chunk(const PackedLinear& linear, const Panel& panel, int k) {
  const int64_t first = panel.first + static_cast<int64_t>(k) * panel.vectors * kLanes;
  return static_cast<const char*>(linear.panels) + first * stored_bytes(linear.precision);
}

// A chunk of a panel in the layout that the tiles read, as floats where there is no instruction for its precision.
FASTSAL_INLINE const void* chunk_of(const PackedLinear& linear, const Panel& panel, int k, int k_count,
                                    float* unpacked) {
  const void* stored = stored_chunk(linear, panel, k);
  const int64_t count = static_cast<int64_t>(k_count) * panel.vectors * kLanes;
  switch (linear.precision) {
    case Precision::float32:
      return stored;
    case Precision::bfloat16:
#if defined(FASTSAL_BF16_DOT)
      return stored;
#endif
      for (int64_t i = 0; i < count; i += kLanes)
        store_bfloat16_as_float(unpacked + i, static_cast<const uint16_t*>(stored) + i);
      return unpacked;
    case Precision::int8:
#if defined(FASTSAL_INT8_DOT)
      return stored;
#endif
      for (int64_t i = 0; i < count; ++i) unpacked[i] = static_cast<float>(static_cast<const int8_t*>(stored)[i]);
      return unpacked;
  }
  return nullptr;
}

#if defined(FASTSAL_BF16_DOT)
typedef SumTile<Bfloat16Format> Bfloat16Tile;
constexpr int kBfloat16Depth = 2, kBfloat16Bytes = 2;
#else
typedef SumTile<FloatFormat> Bfloat16Tile;
constexpr int kBfloat16Depth = 1, kBfloat16Bytes = 0;
#endif
#if defined(FASTSAL_INT8_DOT)
typedef GroupTile<Int8Format, true> Int8Tile;
constexpr int kInt8Depth = 4, kInt8Bytes = 1;
#else
typedef GroupTile<FloatFormat, false> Int8Tile;
constexpr int kInt8Depth = 1, kInt8Bytes = 4;
#endif

constexpr int operand_bytes(Precision precision) {
  return precision == Precision::int8 ? kInt8Bytes : precision == Precision::bfloat16 ? kBfloat16Bytes : 0;
}

constexpr int depth_of(Precision precision) {
  return precision == Precision::int8 ? kInt8Depth : precision == Precision::bfloat16 ? kBfloat16Depth : 1;
}

// The chunk that comes after a chunk, cut into parts that the tiles ask for in turn.
class NextChunk {
 public:
  NextChunk(int tiles, int steps) : tiles_(tiles), steps_(steps) {}

  void set(const PackedLinear& linear, const Panel& panel, int k, int k_end) {
    const int k_count = k_end - k < kSumChunk ? k_end - k : kSumChunk;
    left_ = int64_t{k_count} * panel.vectors * kLanes * stored_bytes(linear.precision);
    ahead_.next = stored_chunk(linear, panel, k);
    ahead_.lines = static_cast<int>(divide_up(left_, int64_t{Prefetch::kLine} * tiles_ * steps_));
  }

  Prefetch take() {
    if (left_ <= 0) return {};
    const Prefetch part = ahead_;
    const int64_t bytes = int64_t{ahead_.lines} * steps_ * Prefetch::kLine;
    ahead_.next += bytes;
    left_ -= bytes;
    return part;
  }

 private:
  const int tiles_, steps_;
  Prefetch ahead_;
  int64_t left_ = 0;
};

// One of a caller's panels before `last` for all rows, k in [k_begin, k_end) chunk by chunk; the chunk of the panel
// stays in cache for all rows. `input_row(i)` is row i at k_begin, where `scales` begin too (null unless
// int8).
template <typename InputRow>
FASTSAL_INLINE void multiply_panel(const PackedLinear& linear, int index, int last, int rows, int k_begin, int k_end,
                                   Activation kind, InputRow input_row, const float* scales, int64_t scales_stride,
                                   float* output, int64_t output_stride) {
  if (rows == 0) return;
  const Panel panel = panel_of(linear, index);
  const int entry = operand_bytes(linear.precision) ? operand_bytes(linear.precision) : 4;
  alignas(64) float unpacked[kSumChunk * kPanelWidth];
  for (int k = k_begin; k < k_end;) {
    const int next = k + kSumChunk - k % kSumChunk;
    const int end = next < k_end ? next : k_end;
    const float* row_scales = scales + (k - k_begin) / kSumChunk * chunk_scales(linear.group) * scales_stride;
    Tile tile;
    tile.panel = chunk_of(linear, panel, k, end - k, unpacked);
    tile.panel_scales =
        panel.scales ? panel.scales + k / kSumChunk * chunk_scales(linear.group) * panel.vectors * kLanes : nullptr;
    tile.row_scales_stride = scales_stride;
    tile.bias = panel.bias;
    tile.k_count = end - k;
    tile.group = linear.group;
    tile.output_stride = output_stride;
    tile.add = k > 0;
    tile.finish = end == linear.in_features;
    tile.activation = kind;
    const bool in_panel = end < k_end;
    NextChunk next_chunk(static_cast<int>(divide_up(rows, kTileRows)),
                         static_cast<int>(divide_up(end - k, depth_of(linear.precision))));
    if (in_panel || index + 1 < last)
      next_chunk.set(linear, in_panel ? panel : panel_of(linear, index + 1), in_panel ? end : k_begin, k_end);
    for (int row = 0; row < rows; row += kTileRows) {
      const int count = rows - row < kTileRows ? rows - row : kTileRows;
      const void* pointers[kTileRows];
      for (int i = 0; i < count; ++i) {
        const void* first = input_row(row + i);
        pointers[i] = static_cast<const char*>(first) + static_cast<int64_t>(k - k_begin) * entry;
      }
      tile.rows = pointers;
      tile.row_scales = row_scales + row;
      tile.output = output + row * output_stride;
      tile.ahead = next_chunk.take();
      switch (linear.precision) {
        case Precision::float32:
          run_tile<SumTile<FloatFormat>>(count, panel.vectors, tile);
          break;
        case Precision::bfloat16:
          run_tile<Bfloat16Tile>(count, panel.vectors, tile);
          break;
        case Precision::int8:
          run_tile<Int8Tile>(count, panel.vectors, tile);
          break;
      }
    }
    k = end;
  }
}

static void linear(const LinearTask& task) {
  const Operand& input = task.input;
  for (int panel = task.first_panel; panel < task.last_panel; ++panel)
    multiply_panel(
        *task.weights, panel, task.last_panel, task.rows, task.k_begin, task.k_end, task.activation,
        [&](int row) { return static_cast<const char*>(input.rows) + row * input.row_bytes; }, input.scales,
        input.scales_stride, task.output + static_cast<int64_t>(panel - task.base_panel) * kPanelWidth,
        task.output_stride);
}
