// Embeddings, LayerNorm and attention. Included by the kernel files inside their own namespace.

// Normalises `row` in place. Spare lanes of the last vector are zeros before and after.
FASTSAL_INLINE void normalize_row(float* row, int columns, const NormWeights& norm) {
  Vec total{};
  for (int c = 0; c < columns; c += kLanes) total += load(row + c);
  const float mean = sum(total) / static_cast<float>(columns);
  Vec squares{};
  int c = 0;
  for (; c + kLanes <= columns; c += kLanes) {
    const Vec centred = load(row + c) - mean;
    squares = multiply_add(centred, centred, squares);
  }
  if (c < columns) {
    float centred[kLanes];
    store(centred, load(row + c) - mean);
    const Vec kept = load_partial(centred, columns - c);
    squares = multiply_add(kept, kept, squares);
  }
  const float scale = 1.f / __builtin_sqrtf(sum(squares) / static_cast<float>(columns) + norm.eps);
  for (c = 0; c < columns; c += kLanes)
    store(row + c, multiply_add((load(row + c) - mean) * scale, load(norm.weight + c), load(norm.bias + c)));
}

static void layer_norm(const NormTask& task) {
  for (int r = 0; r < task.rows; ++r) {
    float* hidden = task.hidden + r * task.hidden_stride;
    const float* update = task.update + r * task.update_stride;
    for (int c = 0; c < task.columns; c += kLanes) store(hidden + c, load(hidden + c) + load(update + c));
    normalize_row(hidden, task.columns, task.norm);
  }
}

static void embed(const EmbeddingTask& task) {
  for (int r = 0; r < task.rows; ++r) {
    const int64_t width = task.columns;
    const float* word = task.words + (task.ids ? task.ids[r] : r) * width;
    const float* type = task.types + task.type_ids[r] * width;
    const float* position = task.positions + task.position_ids[r] * width;
    float* output = task.output + r * task.output_stride;
    for (int c = 0; c < task.columns; c += kLanes) {
      if (c + kLanes <= task.columns) {
        store(output + c, (load(word + c) + load(type + c)) + load(position + c));
      } else {
        const int rest = task.columns - c;
        store(output + c,
              (load_partial(word + c, rest) + load_partial(type + c, rest)) + load_partial(position + c, rest));
      }
    }
    normalize_row(output, task.columns, task.norm);
  }
}

// Attention of one head over one sentence, kTileRows queries at a time against all keys: the scores of a tile
// (kTileRows x tokens) live in L1, never a tokens x tokens matrix. Keys are first transposed into panels like weights.
static int64_t attention_scratch(int tokens, int head_size) {
  const int64_t padded = round_up(tokens, kLanes);
  return padded * head_size + padded * kTileRows;
}

template <int kRows, int kVectors>
static void score_tile(const float* const* queries, const float* keys, int head_size, float* scores, int64_t stride) {
  Vec accumulators[kRows][kVectors] = {};
  multiply<FloatFormat, kRows, kVectors>(queries, keys, kVectors * kLanes, head_size, accumulators);
  for (int i = 0; i < kRows; ++i)
    for (int j = 0; j < kVectors; ++j) store(scores + i * stride + j * kLanes, accumulators[i][j]);
}

// Turns the scores of one row into exp(scale * (score - max)); returns 1 / their sum.
FASTSAL_INLINE float softmax_row(float* scores, int tokens, int padded, float scale) {
  for (int c = tokens; c < padded; ++c) scores[c] = -__builtin_inff();
  Vec best = load(scores);
  for (int c = kLanes; c < padded; c += kLanes) best = max(load(scores + c), best);
  const float peak = max_lane(best);
  Vec total{};
  for (int c = 0; c < padded; c += kLanes) {
    const Vec weight = exp((load(scores + c) - peak) * scale);
    store(scores + c, weight);
    total += weight;
  }
  return 1.f / sum(total);
}

template <int kRows, int kVectors>
static void context_tile(const float* const* weights, const AttentionTask& task, const float* inverse_sums,
                         float* context, int column) {
  const int columns = task.head_size - column;
  Vec accumulators[kRows][kVectors] = {};
  multiply<FloatFormat, kRows, kVectors>(weights, task.values + column, task.stride, task.tokens, accumulators);
  for (int i = 0; i < kRows; ++i) {
    for (int j = 0; j < kVectors; ++j) {
      const Vec value = accumulators[i][j] * inverse_sums[i];
      float* to = context + i * task.query_stride + column + j * kLanes;
      store_columns(to, value, columns - j * kLanes);
    }
  }
}

template <int kRows>
static void attend_rows(const AttentionTask& task, const float* keys, float* scores, int row) {
  const int padded = round_up(task.tokens, kLanes);
  float* query = task.queries + row * task.query_stride;
  const float* rows[kRows];
  for (int i = 0; i < kRows; ++i) rows[i] = query + i * task.query_stride;
  for (int c = 0; c < padded; c += kPanelWidth) {
    const float* panel = keys + static_cast<int64_t>(c) * task.head_size;
    switch (padded - c >= kPanelWidth ? kTileVectors : (padded - c) / kLanes) {
      case 1:
        score_tile<kRows, 1>(rows, panel, task.head_size, scores + c, padded);
        break;
#if FASTSAL_TILE_VECTORS > 2
      case 2:
        score_tile<kRows, 2>(rows, panel, task.head_size, scores + c, padded);
        break;
      case 3:
        score_tile<kRows, 3>(rows, panel, task.head_size, scores + c, padded);
        break;
#endif
      default:
        score_tile<kRows, kTileVectors>(rows, panel, task.head_size, scores + c, padded);
    }
  }
  const float scale = 1.f / __builtin_sqrtf(static_cast<float>(task.head_size));
  float inverse_sums[kRows];
  for (int i = 0; i < kRows; ++i) {
    inverse_sums[i] = softmax_row(scores + static_cast<int64_t>(i) * padded, task.tokens, padded, scale);
    rows[i] = scores + static_cast<int64_t>(i) * padded;
  }
  for (int c = 0; c < task.head_size; c += kPanelWidth) {
    const int columns = task.head_size - c;
    switch (columns >= kPanelWidth ? kTileVectors : round_up(columns, kLanes) / kLanes) {
      case 1:
        context_tile<kRows, 1>(rows, task, inverse_sums, query, c);
        break;
#if FASTSAL_TILE_VECTORS > 2
      case 2:
        context_tile<kRows, 2>(rows, task, inverse_sums, query, c);
        break;
      case 3:
        context_tile<kRows, 3>(rows, task, inverse_sums, query, c);
        break;
#endif
      default:
        context_tile<kRows, kTileVectors>(rows, task, inverse_sums, query, c);
    }
  }
}

static void attention(const AttentionTask& task) {
  const int padded = round_up(task.tokens, kLanes);
  float* keys = task.scratch;
  float* scores = keys + static_cast<int64_t>(padded) * task.head_size;
  for (int c = 0; c < padded; c += kPanelWidth) {
    const int width = padded - c < kPanelWidth ? padded - c : kPanelWidth;
    float* panel = keys + static_cast<int64_t>(c) * task.head_size;
    for (int j = 0; j < width; ++j)
      for (int k = 0; k < task.head_size; ++k)
        panel[k * width + j] = c + j < task.tokens ? task.keys[(c + j) * task.stride + k] : 0.f;
  }
  int row = 0;
  for (; row + kTileRows <= task.num_queries; row += kTileRows) attend_rows<kTileRows>(task, keys, scores, row);
  switch (task.num_queries - row) {
    case 1:
      return attend_rows<1>(task, keys, scores, row);
    case 2:
      return attend_rows<2>(task, keys, scores, row);
    case 3:
      return attend_rows<3>(task, keys, scores, row);
#if FASTSAL_TILE_ROWS > 4
    case 4:
      return attend_rows<4>(task, keys, scores, row);
    case 5:
      return attend_rows<5>(task, keys, scores, row);
#endif
  }
}
