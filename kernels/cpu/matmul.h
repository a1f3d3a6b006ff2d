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
  typedef IntVec Columns;
  static constexpr int kDepth = 4;
  FASTSAL_INLINE Columns load_columns(const Unit* from) {
    return (IntVec)load(reinterpret_cast<const float*>(from));  // no arithmetic: bits
  }
  FASTSAL_INLINE Sum accumulate(Sum sum, Unit value, Columns columns) { return dot_bytes(sum, value, columns); }
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
  const void* panel;        // the chunk's first k
  const float* bias;        // the panel's
  int k_count;
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

template <int kVectors = kTileVectors>
FASTSAL_INLINE Panel panel_of(const PackedLinear& linear, int index) {
  constexpr int kWidth = kVectors * kLanes;
  const int columns = linear.out_features - index * kWidth;
  const int depth = linear.precision == Precision::float32 ? linear.in_features : padded_depth(linear.in_features);
  const float* scales =
      linear.scales ? linear.scales + int64_t{index} * kWidth * scales_of(linear.in_features, linear.group) : nullptr;
  return {int64_t{index} * kWidth * depth, linear.bias + index * kWidth, scales,
          columns >= kWidth ? kVectors : round_up(columns, kLanes) / kLanes};
}

FASTSAL_INLINE const char* stored_chunk(const PackedLinear& linear, const Panel& panel, int k) {
  const int64_t first = panel.first + static_cast<int64_t>(k) * panel.vectors * kLanes;
  return static_cast<const char*>(linear.panels) + first * stored_bytes(linear.precision);
}

// A chunk of a panel in the layout that the tiles read, as floats where there is no instruction for bfloat16.
FASTSAL_INLINE const void* chunk_of(const PackedLinear& linear, const Panel& panel, int k, [[maybe_unused]] int k_count,
                                    [[maybe_unused]] float* unpacked) {
  const void* stored = stored_chunk(linear, panel, k);
#if !defined(FASTSAL_BF16_DOT)
  if (linear.precision == Precision::bfloat16) {
    const int64_t count = static_cast<int64_t>(k_count) * panel.vectors * kLanes;
    for (int64_t i = 0; i < count; i += kLanes)
      store_bfloat16_as_float(unpacked + i, static_cast<const uint16_t*>(stored) + i);
    return unpacked;
  }
#endif
  return stored;
}

#if defined(FASTSAL_BF16_DOT)
typedef SumTile<Bfloat16Format> Bfloat16Tile;
constexpr int kBfloat16Depth = 2, kBfloat16Bytes = 2;
#else
typedef SumTile<FloatFormat> Bfloat16Tile;
constexpr int kBfloat16Depth = 1, kBfloat16Bytes = 0;
#endif

// The chunk that comes after a chunk, cut into parts that the tiles ask for in turn.
class NextChunk {
 public:
  NextChunk(int tiles, int steps) : tiles_(tiles), steps_(steps) {}

  // The next `chunk` k of a panel from k on, or as many as there are.
  void set(const PackedLinear& linear, const Panel& panel, int k, int k_end, int chunk) {
    const int k_count = k_end - k < chunk ? k_end - k : chunk;
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
// stays in cache for all rows. `input_row(i)` is row i at k_begin.
template <typename InputRow>
FASTSAL_INLINE void multiply_panel(const PackedLinear& linear, int index, int last, int rows, int k_begin, int k_end,
                                   Activation kind, InputRow input_row, float* output, int64_t output_stride) {
  if (rows == 0) return;
  const Panel panel = panel_of(linear, index);
  const bool halves = linear.precision == Precision::bfloat16 && kBfloat16Bytes > 0;
  const int64_t entry = halves ? kBfloat16Bytes : 4;
  alignas(64) float unpacked[kSumChunk * kPanelWidth];
  for (int k = k_begin; k < k_end;) {
    const int next = k + kSumChunk - k % kSumChunk;
    const int end = next < k_end ? next : k_end;
    Tile tile;
    tile.panel = chunk_of(linear, panel, k, end - k, unpacked);
    tile.bias = panel.bias;
    tile.k_count = end - k;
    tile.output_stride = output_stride;
    tile.add = k > 0;
    tile.finish = end == linear.in_features;
    tile.activation = kind;
    const bool in_panel = end < k_end;
    NextChunk next_chunk(static_cast<int>(divide_up(rows, kTileRows)),
                         static_cast<int>(divide_up(end - k, halves ? kBfloat16Depth : 1)));
    if (in_panel || index + 1 < last)
      next_chunk.set(linear, in_panel ? panel : panel_of(linear, index + 1), in_panel ? end : k_begin, k_end,
                     kSumChunk);
    for (int row = 0; row < rows; row += kTileRows) {
      const int count = rows - row < kTileRows ? rows - row : kTileRows;
      const void* pointers[kTileRows];
      for (int i = 0; i < count; ++i) {
        const void* first = input_row(row + i);
        pointers[i] = static_cast<const char*>(first) + (k - k_begin) * entry;
      }
      tile.rows = pointers;
      tile.output = output + row * output_stride;
      tile.ahead = next_chunk.take();
      if (linear.precision == Precision::float32)
        run_tile<SumTile<FloatFormat>>(count, panel.vectors, tile);
      else
        run_tile<Bfloat16Tile>(count, panel.vectors, tile);
    }
    k = end;
  }
}
