// Embeddings and LayerNorm. Included by the kernel files inside their own namespace.

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
