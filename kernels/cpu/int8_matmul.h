// int8: exact integer sums over a group of k, scaled and added up in float. Included by the kernel files inside their
// own namespace.
//
// Where there are 32 registers both kinds of sums stay in them, since loads and stores of float sums at every group's
// end would take a tenth of the time. So the panels are narrower than those of other precisions, and twice as many k of
// one stay in L1.

constexpr int kInt8Vectors = 2;
constexpr int kInt8PanelWidth = kInt8Vectors * kLanes;
static_assert(kSumChunk % kInt8PanelWidth == 0, "chunks end at panel boundaries");

// Where there are no dot products of bytes, floats stand for the integers, and the offset is in them already.
#if defined(FASTSAL_INT8_DOT)
typedef Int8Format GroupFormat;
constexpr bool kHasOffset = true;
constexpr int kInt8Depth = 4, kInt8Bytes = 1, kInt8Chunk = 2 * kSumChunk;
#else
typedef FloatFormat GroupFormat;
constexpr bool kHasOffset = false;
constexpr int kInt8Depth = 1, kInt8Bytes = 4, kInt8Chunk = kSumChunk;
#endif
// A dot product of pairs waits for its addition only, so that few sums keep the processor busy, and needs registers.
#if defined(FASTSAL_INT8_PAIRS)
constexpr bool kBoundedPairs = true;
constexpr int kInt8Rows = 4;
#else
constexpr bool kBoundedPairs = false;
constexpr int kInt8Rows = kTileRows;
#endif
typedef GroupFormat::Unit GroupUnit;

// A panel and the rows that it multiplies, for consecutive k.
struct Int8Task {
  const GroupUnit* rows;
  int64_t row_stride;
  const float* row_scales;  // of the first row; see Operand
  int64_t row_scales_stride;
  const GroupUnit* panel;
  const float* panel_scales;
  const float* bias;
  int k_count, group;
  float* output;
  int64_t output_stride;
  bool add;     // to what is in the output
  bool finish;  // apply the activation
  Activation activation;
};

// The sums of one chunk of kSumChunk k or what is left of it, added to `values`; leaves the pointers behind it.
template <int kRows, int kVectors, bool kPrefetch>
FASTSAL_INLINE void add_chunk(const GroupUnit* (&rows)[kRows], const GroupUnit*& panel, const float*& scales,
                              const float*& row_scales, int64_t row_scales_stride, int k_count, int group,
                              Vec (&values)[kRows][kVectors], Prefetch& ahead) {
  constexpr int kWidth = kVectors * kLanes;
  if (kHasOffset) {
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i)
#pragma GCC unroll 8
      for (int j = 0; j < kVectors; ++j)
        values[i][j] = multiply_add(load(scales + j * kLanes), row_scales[i], values[i][j]);
  }
  scales += kWidth;
  row_scales += row_scales_stride;
  for (int k = 0; k < k_count; k += group) {
    const int steps = steps_of<GroupFormat>(k_count - k < group ? k_count - k : group);
    GroupFormat::Sum sums[kRows][kVectors] = {};
#if FASTSAL_LANES < 16
    __asm__ volatile("" : "+m"(values));  // 16 registers are for the integer sums: these wait in memory
#endif
    multiply<GroupFormat, kRows, kVectors, kPrefetch>(rows, panel, kWidth, steps, sums, ahead);
    if (kPrefetch) ahead.next += int64_t{steps} * ahead.lines * Prefetch::kLine;
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 8
      for (int j = 0; j < kVectors; ++j) {
        const Vec scaled = __builtin_convertvector(sums[i][j], Vec) * load(scales + j * kLanes);
        values[i][j] = multiply_add(scaled, row_scales[i], values[i][j]);
      }
      rows[i] += steps;
    }
    panel += int64_t{steps} * kWidth;
    scales += kWidth;
    row_scales += row_scales_stride;
  }
}

template <int kRows, int kVectors, bool kPrefetch>
FASTSAL_INLINE void int8_tile(const Int8Task& task, int row, Prefetch ahead) {
  const GroupUnit* rows[kRows];
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i) rows[i] = task.rows + (row + i) * task.row_stride;
  const GroupUnit* panel = task.panel;
  const float* scales = task.panel_scales;
  const float* row_scales = task.row_scales + row;
  float* output = task.output + row * task.output_stride;

  Vec values[kRows][kVectors];
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i)
#pragma GCC unroll 8
    for (int j = 0; j < kVectors; ++j)
      values[i][j] = load((task.add ? output + i * task.output_stride : task.bias) + j * kLanes);
  for (int k = 0; k < task.k_count; k += kSumChunk) {
    const int k_count = task.k_count - k < kSumChunk ? task.k_count - k : kSumChunk;
    add_chunk<kRows, kVectors, kPrefetch>(rows, panel, scales, row_scales, task.row_scales_stride, k_count, task.group,
                                          values, ahead);
  }
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i)
#pragma GCC unroll 8
    for (int j = 0; j < kVectors; ++j) store(output + i * task.output_stride + j * kLanes, values[i][j]);
  if (task.finish) activate(output, task.output_stride, kRows, kVectors * kLanes, task.activation);
}

// Tiles of kRows rows from `row` on as long as there are so many, then one of what is left.
template <int kRows, int kVectors>
static void int8_tiles(const Int8Task& given, int row, int end, NextChunk& next_chunk) {
  const Int8Task task = given;  // not changed by a store into the output
  for (; row + kRows <= end; row += kRows) {
    const Prefetch ahead = next_chunk.take();
    if (kVectors == kInt8Vectors && ahead.lines > 0)
      int8_tile<kRows, kVectors, true>(task, row, ahead);
    else
      int8_tile<kRows, kVectors, false>(task, row, {});
  }
  if constexpr (kRows > 1) {
    if (row < end) int8_tiles<kRows - 1, kVectors>(given, row, end, next_chunk);
  }
}

// As multiply_panel.
static void multiply_int8_panel(const LinearTask& task, int index) {
  if (task.rows == 0) return;
  const PackedLinear& linear = *task.weights;
  const Operand& input = task.input;
  const Panel panel = panel_of<kInt8Vectors>(linear, index);
  const int64_t width = panel.vectors * kLanes;
#if !defined(FASTSAL_INT8_DOT)
  alignas(64) float unpacked[kInt8Chunk * kInt8PanelWidth];
#endif
  Int8Task part;
  part.row_stride = input.row_bytes / static_cast<int64_t>(sizeof(GroupUnit));
  part.row_scales_stride = input.scales_stride;
  part.bias = panel.bias;
  part.group = linear.group;
  part.output = task.output + static_cast<int64_t>(index - task.base_panel) * kInt8PanelWidth;
  part.output_stride = task.output_stride;
  part.activation = task.activation;
  for (int k = task.k_begin; k < task.k_end; k += kInt8Chunk) {
    const int end = k + kInt8Chunk < task.k_end ? k + kInt8Chunk : task.k_end;
    const char* stored = stored_chunk(linear, panel, k);
    const int64_t scales = k / kSumChunk * chunk_scales(linear.group);
    const int64_t row_scales = (k - task.k_begin) / kSumChunk * chunk_scales(linear.group);
    part.rows = static_cast<const GroupUnit*>(input.rows) + (k - task.k_begin) / kInt8Depth;
    part.row_scales = input.scales + row_scales * input.scales_stride;
#if defined(FASTSAL_INT8_DOT)
    part.panel = reinterpret_cast<const GroupUnit*>(stored);
#else
    for (int64_t i = 0; i < (end - k) * width; ++i) unpacked[i] = static_cast<float>(static_cast<int8_t>(stored[i]));
    part.panel = unpacked;
#endif
    part.panel_scales = panel.scales + scales * width;
    part.k_count = end - k;
    part.add = k > 0;
    part.finish = end == linear.in_features;
    NextChunk next_chunk(static_cast<int>(divide_up(task.rows, kInt8Rows)), steps_of<GroupFormat>(end - k));
    if (end < task.k_end)
      next_chunk.set(linear, panel, end, task.k_end, kInt8Chunk);
    else if (index + 1 < task.last_panel)
      next_chunk.set(linear, panel_of<kInt8Vectors>(linear, index + 1), task.k_begin, task.k_end, kInt8Chunk);
    if (panel.vectors == 1)
      int8_tiles<kInt8Rows, 1>(part, 0, task.rows, next_chunk);
    else
      int8_tiles<kInt8Rows, kInt8Vectors>(part, 0, task.rows, next_chunk);
  }
}

static void multiply_int8(const LinearTask& task) {
  for (int panel = task.first_panel; panel < task.last_panel; ++panel) multiply_int8_panel(task, panel);
}
