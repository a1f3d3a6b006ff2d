// A product with a weight matrix as PyTorch stores it, for what is applied to one row of each sentence and so is not
// worth packing. Included by the kernel files inside their own namespace.

constexpr int kPlainOutputs = 4, kPlainRows = kTileRows > 4 ? 4 : 2;

// One step of a tile's sums: the columns from `c` on, `count` of them or a vector.
template <bool kWhole>
FASTSAL_INLINE void plain_step(const float* const (&inputs)[kPlainRows], const float* const (&weights)[kPlainOutputs],
                               int c, int count, Vec (&sums)[kPlainRows][kPlainOutputs]) {
  Vec values[kPlainRows];
#pragma GCC unroll 4
  for (int i = 0; i < kPlainRows; ++i) values[i] = kWhole ? load(inputs[i] + c) : load_partial(inputs[i] + c, count);
#pragma GCC unroll 4
  for (int j = 0; j < kPlainOutputs; ++j) {
    const Vec weight = kWhole ? load(weights[j] + c) : load_partial(weights[j] + c, count);
#pragma GCC unroll 4
    for (int i = 0; i < kPlainRows; ++i) sums[i][j] = multiply_add(values[i], weight, sums[i][j]);
  }
}

// Every sum runs over the columns in order in one vector, and then over its lanes, whatever the rows beside it.
static void plain_linear(const PlainLinearTask& task) {
  for (int first = task.first_output; first < task.last_output; first += kPlainOutputs) {
    const int outputs = task.last_output - first < kPlainOutputs ? task.last_output - first : kPlainOutputs;
    const float* weights[kPlainOutputs];
    for (int j = 0; j < kPlainOutputs; ++j)  // those beyond the end repeat the last one
      weights[j] = task.weight + (first + (j < outputs ? j : outputs - 1)) * int64_t{task.in_features};
    for (int row = 0; row < task.rows; row += kPlainRows) {
      const int rows = task.rows - row < kPlainRows ? task.rows - row : kPlainRows;
      const float* inputs[kPlainRows];
      for (int i = 0; i < kPlainRows; ++i)
        inputs[i] = task.input + (row + (i < rows ? i : rows - 1)) * task.input_stride;

      Vec sums[kPlainRows][kPlainOutputs] = {};
      int c = 0;
      for (; c + kLanes <= task.in_features; c += kLanes) plain_step<true>(inputs, weights, c, kLanes, sums);
      if (c < task.in_features) plain_step<false>(inputs, weights, c, task.in_features - c, sums);
      for (int i = 0; i < rows; ++i)
        for (int j = 0; j < outputs; ++j)
          task.output[(row + i) * task.output_stride + first + j] =
              sum(sums[i][j]) + (task.bias ? task.bias[first + j] : 0.f);
    }
  }
}
