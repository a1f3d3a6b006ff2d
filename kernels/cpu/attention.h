// Attention of one head over one sentence, kTileRows queries at a time against all keys: the scores of a tile
// (kTileRows x tokens) live in L1, never a tokens x tokens matrix. Included by the kernel files inside their own
// namespace.
//
// Both products run on the register tiles: in float, or where the encoder computes in less, in pairs of bfloat16 if
// there is an instruction for them. Keys become panels as weights do, values one step of units after the other.

// kLanes units from the first `columns` floats of a row; zeros beyond.
FASTSAL_INLINE Vec units_of(FloatFormat, const float* row, int columns) { return load_columns(row, columns); }

// A row in units: the floats themselves, or in `scratch`.
FASTSAL_INLINE const float* row_in_units(FloatFormat, const float* row, int, float*) { return row; }

struct Values {
  const float* units;  // of the head's columns, step by step
  int64_t stride;
};
FASTSAL_INLINE Values values_in_units(FloatFormat, const AttentionTask& task, float*) {
  return {task.values, task.stride};
}

#if defined(FASTSAL_BF16_DOT)
// The bfloat16 of `low`, then those of `high`.
FASTSAL_INLINE Vec to_bfloat16(Vec low, Vec high) { return (Vec)_mm512_cvtne2ps_pbh((__m512)high, (__m512)low); }

FASTSAL_INLINE Vec units_of(Bfloat16Format, const float* row, int columns) {
  const Vec high = columns > kLanes ? load_columns(row + kLanes, columns - kLanes) : Vec{};
  return to_bfloat16(load_columns(row, columns), high);
}

FASTSAL_INLINE const float* row_in_units(Bfloat16Format format, const float* row, int columns, float* scratch) {
  for (int c = 0; c < columns; c += 2 * kLanes) store(scratch + c / 2, units_of(format, row + c, columns - c));
  return scratch;
}

// A step is two tokens, side by side in each lane.
FASTSAL_INLINE Values values_in_units(Bfloat16Format, const AttentionTask& task, float* scratch) {
  alignas(64) static constexpr uint16_t kInterleave[32] = {0,  16, 1,  17, 2,  18, 3,  19, 4,  20, 5,
                                                           21, 6,  22, 7,  23, 8,  24, 9,  25, 10, 26,
                                                           11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
  const __m512i order = _mm512_load_si512(kInterleave);
  const int width = round_up(task.head_size, kLanes);
  for (int t = 0; t < task.tokens; t += 2) {
    const float* row = task.values + t * task.stride;
    for (int c = 0; c < task.head_size; c += kLanes) {
      const int columns = task.head_size - c;
      const Vec high = t + 1 < task.tokens ? load_columns(row + task.stride + c, columns) : Vec{};
      const __m512i halves = (__m512i)to_bfloat16(load_columns(row + c, columns), high);
      // All lanes kept: the form without a mask makes gcc 12 warn inside its own header.
      store(scratch + t / 2 * width + c, (Vec)_mm512_maskz_permutexvar_epi16(0xffffffff, order, halves));
    }
  }
  return {scratch, width};
}
#endif

// The lanes of a and b in turns, beginning with a's: those of their first and of their last halves.
#if FASTSAL_LANES == 16
FASTSAL_INLINE Vec interleave(Vec a, Vec b, IntVec order) {
  return (Vec)_mm512_permutex2var_ps((__m512)a, (__m512i)order, (__m512)b);
}
FASTSAL_INLINE Vec interleave_first(Vec a, Vec b) {
  return interleave(a, b, IntVec{0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23});
}
FASTSAL_INLINE Vec interleave_last(Vec a, Vec b) {
  return interleave(a, b, IntVec{8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31});
}
#elif FASTSAL_LANES == 8
FASTSAL_INLINE Vec interleave_first(Vec a, Vec b) {
  const __m256 low = _mm256_unpacklo_ps((__m256)a, (__m256)b), high = _mm256_unpackhi_ps((__m256)a, (__m256)b);
  return (Vec)_mm256_permute2f128_ps(low, high, 0x20);
}
FASTSAL_INLINE Vec interleave_last(Vec a, Vec b) {
  const __m256 low = _mm256_unpacklo_ps((__m256)a, (__m256)b), high = _mm256_unpackhi_ps((__m256)a, (__m256)b);
  return (Vec)_mm256_permute2f128_ps(low, high, 0x31);
}
#else
FASTSAL_INLINE Vec interleave_first(Vec a, Vec b) { return Vec{a[0], b[0], a[1], b[1]}; }
FASTSAL_INLINE Vec interleave_last(Vec a, Vec b) { return Vec{a[2], b[2], a[3], b[3]}; }
#endif

FASTSAL_INLINE void transpose(Vec (&rows)[kLanes]) {
#pragma GCC unroll 4
  for (int distance = 1; distance < kLanes; distance *= 2) {
    Vec next[kLanes];
#pragma GCC unroll 16
    for (int i = 0; i < kLanes / 2; ++i) {
      next[2 * i] = interleave_first(rows[i], rows[i + kLanes / 2]);
      next[2 * i + 1] = interleave_last(rows[i], rows[i + kLanes / 2]);
    }
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; ++i) rows[i] = next[i];
  }
}

// Where the parts of the scratch memory lie, in floats.
template <typename Format>
struct AttentionScratch {
  int padded;        // tokens in whole vectors
  int key_steps;     // along a head
  int query_units;   // of a row, in whole vectors
  int weight_units;  // likewise
  int64_t scores, queries, weights, values, total;

  explicit AttentionScratch(int tokens, int head_size)
      : padded(round_up(tokens, kLanes)),
        key_steps(steps_of<Format>(head_size)),
        query_units(round_up(key_steps, kLanes)),
        weight_units(round_up(steps_of<Format>(padded), kLanes)) {
    scores = int64_t{padded} * key_steps;
    queries = scores + int64_t{padded} * kTileRows;
    weights = queries;
    values = queries;
    total = queries;
    if (Format::kDepth == 1) return;  // rows and values are read as they are
    weights = queries + int64_t{query_units} * kTileRows;
    values = weights + int64_t{weight_units} * kTileRows;
    total = values + int64_t{steps_of<Format>(tokens)} * round_up(head_size, kLanes);
  }
};

template <typename Format>
static void pack_keys(const AttentionTask& task, const AttentionScratch<Format>& space) {
  for (int first = 0; first < space.padded; first += kLanes) {
    const int begin = first / kPanelWidth * kPanelWidth;
    const int width = space.padded - begin < kPanelWidth ? space.padded - begin : kPanelWidth;
    float* panel = task.scratch + int64_t{begin} * space.key_steps + (first - begin);
    for (int step = 0; step < space.key_steps; step += kLanes) {
      const int column = step * Format::kDepth;
      Vec rows[kLanes];
      for (int i = 0; i < kLanes; ++i) {
        const float* row = task.keys + (first + i) * task.stride + column;
        rows[i] = first + i < task.tokens ? units_of(Format(), row, task.head_size - column) : Vec{};
      }
      transpose(rows);
      const int steps = space.key_steps - step < kLanes ? space.key_steps - step : kLanes;
      for (int i = 0; i < steps; ++i) store(panel + (step + i) * width, rows[i]);
    }
  }
}

template <typename Format, int kRows>
struct AttentionTile {
  const AttentionTask& task;
  const AttentionScratch<Format>& space;
  const Values& values;
  const typename Format::Unit* rows[kRows];  // of the queries, then of the weights
  float inverse_sums[kRows];

  template <int kVectors>
  void score(int column) {
    Vec sums[kRows][kVectors] = {};
    const float* panel = task.scratch + int64_t{column} * space.key_steps;
    multiply<Format, kRows, kVectors>(rows, reinterpret_cast<const typename Format::Unit*>(panel), kVectors * kLanes,
                                      space.key_steps, sums);
    float* scores = task.scratch + space.scores + column;
    for (int i = 0; i < kRows; ++i)
      for (int j = 0; j < kVectors; ++j) store(scores + i * int64_t{space.padded} + j * kLanes, sums[i][j]);
  }

  template <int kVectors>
  void combine(float* context, int column) {
    Vec sums[kRows][kVectors] = {};
    multiply<Format, kRows, kVectors>(rows, reinterpret_cast<const typename Format::Unit*>(values.units + column),
                                      values.stride, steps_of<Format>(task.tokens), sums);
    for (int i = 0; i < kRows; ++i)
      for (int j = 0; j < kVectors; ++j)
        store_columns(context + i * task.query_stride + column + j * kLanes, sums[i][j] * inverse_sums[i],
                      task.head_size - column - j * kLanes);
  }
};

// The scores of a row from column `c` on; -infinity beyond the last token.
FASTSAL_INLINE Vec load_scores(const float* scores, int c, int tokens) {
  const Vec loaded = load(scores + c);
  return tokens - c >= kLanes ? loaded : select(lane_numbers() < tokens - c, loaded, splat(-__builtin_inff()));
}

// Turns the scores of each row into exp(scale * (score - max)), with zeros beyond the last token, and gives 1 / their
// sum. Step by step for all rows, so that no row waits for the row before.
template <int kRows>
FASTSAL_INLINE void softmax(float* scores, int64_t stride, int tokens, float scale, float (&inverse_sums)[kRows]) {
  float peaks[kRows];
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i) {
    const float* row = scores + i * stride;
    Vec best = load_scores(row, 0, tokens);
    for (int c = kLanes; c < tokens; c += kLanes) best = max(load_scores(row, c, tokens), best);
    peaks[i] = max_lane(best);
  }
  Vec totals[kRows] = {};
  for (int c = 0; c < tokens; c += kLanes) {
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i) {
      float* row = scores + i * stride;
      const Vec weight = exp((load_scores(row, c, tokens) - peaks[i]) * scale);
      store(row + c, weight);
      totals[i] += weight;
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i) inverse_sums[i] = 1.f / sum(totals[i]);
}

// Calls run(first column, its vectors) for the tiles that `columns` are cut into.
template <typename Run>
FASTSAL_INLINE void for_each_tile(int columns, Run run) {
  for (int c = 0; c < columns; c += kPanelWidth) {
    switch (columns - c >= kPanelWidth ? kTileVectors : round_up(columns - c, kLanes) / kLanes) {
      case 1:
        run.template operator()<1>(c);
        break;
#if FASTSAL_TILE_VECTORS > 2
      case 2:
        run.template operator()<2>(c);
        break;
      case 3:
        run.template operator()<3>(c);
        break;
#endif
      default:
        run.template operator()<kTileVectors>(c);
    }
  }
}

template <typename Format, int kRows>
static void attend_rows(const AttentionTask& task, const AttentionScratch<Format>& space, const Values& values,
                        int row) {
  typedef const typename Format::Unit Unit;
  float* query = task.queries + row * task.query_stride;
  AttentionTile<Format, kRows> tile{task, space, values, {}, {}};
  for (int i = 0; i < kRows; ++i)
    tile.rows[i] = reinterpret_cast<Unit*>(row_in_units(Format(), query + i * task.query_stride, task.head_size,
                                                        task.scratch + space.queries + i * space.query_units));
  for_each_tile(space.padded, [&]<int kVectors>(int column) { tile.template score<kVectors>(column); });

  const float scale = 1.f / __builtin_sqrtf(static_cast<float>(task.head_size));
  float* scores = task.scratch + space.scores;
  softmax(scores, space.padded, task.tokens, scale, tile.inverse_sums);
  for (int i = 0; i < kRows; ++i)
    tile.rows[i] =
        reinterpret_cast<Unit*>(row_in_units(Format(), scores + i * int64_t{space.padded}, space.padded,
                                             task.scratch + space.weights + i * int64_t{space.weight_units}));
  for_each_tile(task.head_size, [&]<int kVectors>(int column) { tile.template combine<kVectors>(query, column); });
}

template <typename Format>
static void attend(const AttentionTask& task) {
  const AttentionScratch<Format> space(task.tokens, task.head_size);
  pack_keys(task, space);
  const Values values = values_in_units(Format(), task, task.scratch + space.values);
  int row = 0;
  for (; row + kTileRows <= task.num_queries; row += kTileRows)
    attend_rows<Format, kTileRows>(task, space, values, row);
  switch (task.num_queries - row) {
    case 1:
      return attend_rows<Format, 1>(task, space, values, row);
    case 2:
      return attend_rows<Format, 2>(task, space, values, row);
    case 3:
      return attend_rows<Format, 3>(task, space, values, row);
#if FASTSAL_TILE_ROWS > 4
    case 4:
      return attend_rows<Format, 4>(task, space, values, row);
    case 5:
      return attend_rows<Format, 5>(task, space, values, row);
#endif
  }
}

static int64_t attention_scratch(Precision precision, int tokens, int head_size) {
#if defined(FASTSAL_BF16_DOT)
  if (precision != Precision::float32) return AttentionScratch<Bfloat16Format>(tokens, head_size).total;
#endif
  (void)precision;
  return AttentionScratch<FloatFormat>(tokens, head_size).total;
}

static void attention(const AttentionTask& task) {
#if defined(FASTSAL_BF16_DOT)
  if (task.precision != Precision::float32) return attend<Bfloat16Format>(task);
#endif
  attend<FloatFormat>(task);
}
