// Pooling, with or without a convolution in front. Included by the kernel files inside their own namespace.

// Folds `count` values of one position into its sentence's result. cls keeps position 0 until one that is not
// skipped comes; the maximum starts at -inf, everything else at 0.
FASTSAL_INLINE void fold(PoolingMode mode, int position, int skip, const float* values, int count, float* result) {
  const bool pooled = position >= skip;
  for (int c = 0; c < count; c += kLanes) {
    const Vec value = load_columns(values + c, count - c);
    const Vec old = load_columns(result + c, count - c);
    Vec next = old;
    switch (mode) {
      case kCls:
        if (position == 0 || position == skip) next = value;
        break;
      case kLastToken:
        if (pooled) next = value;
        break;
      case kMax:
        if (pooled) next = select((value > old) | (value != value), value, old);  // NaN stays
        break;
      case kMean:
      case kMeanSqrtLength:
        if (pooled) next = old + value;
        break;
      case kWeightedMean:
        if (pooled) next = multiply_add(value, static_cast<float>(position + 1), old);
        break;
    }
    store_columns(result + c, next, count - c);
  }
}

// What the sum is divided by; 1 where there is no sum.
FASTSAL_INLINE float divisor(PoolingMode mode, int length, int skip) {
  const float pooled = static_cast<float>(length > skip ? length - skip : 0);
  const float tiny = 1e-9f;
  switch (mode) {
    case kMean:
      return pooled > tiny ? pooled : tiny;
    case kMeanSqrtLength:
      return __builtin_sqrtf(pooled > tiny ? pooled : tiny);
    case kWeightedMean: {
      const float weights = pooled * (static_cast<float>(skip) + (pooled + 1.f) * 0.5f);
      return weights > tiny ? weights : tiny;
    }
    default:
      return 1.f;
  }
}

static void pool(const PoolingTask& task) {
  const PackedConvolution* convolution = task.convolution;
  const int channels = convolution ? convolution->weights.out_features : task.columns;
  const int offset = convolution ? convolution->first_column : 0;
  for (int panel = task.first_panel; panel < task.last_panel; ++panel) {
    const int column = panel * kPanelWidth;
    const int count = channels - column < kPanelWidth ? channels - column : kPanelWidth;
    if (convolution)
      multiply_panel(
          convolution->weights, panel, task.last_panel, task.num_positions, 0, convolution->weights.in_features,
          Activation::linear, [&](int i) { return task.input + task.row_offset[i]; }, task.products, kPanelWidth);
    for (int m = 0; m < task.num_modes; ++m) {
      const PoolingMode mode = static_cast<PoolingMode>(task.modes[m]);
      float* results = task.output + static_cast<int64_t>(m) * task.columns + offset + column;
      const float start = mode == kMax ? -__builtin_inff() : 0.f;
      for (int s = 0; s < task.num_sentences; ++s)
        for (int c = 0; c < count; ++c) results[s * task.output_stride + c] = start;
      for (int i = 0; i < task.num_positions; ++i) {
        const float* values = convolution ? task.products + static_cast<int64_t>(i) * kPanelWidth
                                          : task.input + task.row_offset[i] + column;
        fold(mode, task.position[i], task.skip, values, count, results + task.sentence[i] * task.output_stride);
      }
      for (int s = 0; s < task.num_sentences; ++s) {
        const float by = divisor(mode, task.lengths[s], task.skip);
        if (by == 1.f) continue;
        for (int c = 0; c < count; ++c) results[s * task.output_stride + c] /= by;
      }
    }
  }
}

static void add_scaled(float* sums, const float* values, float scale, int columns) {
  for (int c = 0; c < columns; c += kLanes) store(sums + c, multiply_add(load(values + c), scale, load(sums + c)));
}

// Scales a row to L2 norm 1; the norm is at least 1e-12, so zeros stay zeros (as torch.nn.functional.normalize).
static void normalize(float* row, int64_t columns) {
  Vec total{};
  for (int64_t c = 0; c < columns; c += kLanes) {
    const Vec value = load_columns(row + c, static_cast<int>(columns - c < kLanes ? columns - c : kLanes));
    total = multiply_add(value, value, total);
  }
  const float norm = __builtin_sqrtf(sum(total));
  const float by = norm > 1e-12f ? norm : norm == norm ? 1e-12f : norm;
  for (int64_t c = 0; c < columns; ++c) row[c] /= by;
}
