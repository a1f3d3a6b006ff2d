#include "packing.h"

#include <algorithm>

namespace fastsal {

float* Packer::take(int64_t floats) {
  float* part = memory_ ? memory_ + used_ : nullptr;
  used_ += round_up(floats, 16);  // 64 bytes
  return part;
}

template <typename At, typename Bias>
PackedLinear Packer::pack(int out_features, int in_features, At at, Bias bias) {
  const int width = kernels_.panel_width;
  const int64_t padded = round_up(out_features, kernels_.lanes);
  PackedLinear packed;
  packed.in_features = in_features;
  packed.out_features = out_features;
  packed.num_panels = (out_features + width - 1) / width;
  float* panels = take(padded * in_features);
  float* biases = take(padded);
  packed.panels = panels;
  packed.bias = biases;
  if (!memory_) return packed;
  for (int first = 0; first < padded; first += width) {
    const int columns = static_cast<int>(std::min<int64_t>(width, padded - first));
    float* panel = panels + static_cast<int64_t>(first) * in_features;
    for (int j = 0; j < columns; ++j) {
      const int n = first + j;
      for (int k = 0; k < in_features; ++k)
        panel[static_cast<int64_t>(k) * columns + j] = n < out_features ? at(n, k) : 0.f;
      biases[n] = n < out_features ? bias(n) : 0.f;
    }
  }
  return packed;
}

PackedLinear Packer::linear(const std::vector<LinearView>& parts) {
  int rows = 0;
  for (const LinearView& part : parts) rows += part.rows;
  struct Row {
    const float* weight;
    float bias;
  };
  std::vector<Row> all;
  for (const LinearView& part : parts)
    for (int r = 0; r < part.rows; ++r)
      all.push_back({part.weight + static_cast<int64_t>(r) * part.columns, part.bias ? part.bias[r] : 0.f});
  return pack(
      rows, parts.front().columns, [&](int n, int k) { return all[static_cast<size_t>(n)].weight[k]; },
      [&](int n) { return all[static_cast<size_t>(n)].bias; });
}

PackedLinear Packer::convolution(const ConvolutionView& view, int input, int row_columns) {
  return pack(
      view.channels, view.kernel_size * row_columns,
      [&](int n, int k) {
        const int tap = k / row_columns, column = k % row_columns;
        if (column >= input) return 0.f;
        return view.weight[(static_cast<int64_t>(n) * input + column) * view.kernel_size + tap];
      },
      [&](int n) { return view.bias ? view.bias[n] : 0.f; });
}

NormWeights Packer::norm(const NormView& view, int columns, float eps) {
  const int64_t padded = round_up(columns, kernels_.lanes);
  float* weight = take(padded);
  float* bias = take(padded);
  if (memory_) {
    std::fill(weight, weight + padded, 0.f);
    std::fill(bias, bias + padded, 0.f);
    std::copy(view.weight, view.weight + columns, weight);
    std::copy(view.bias, view.bias + columns, bias);
  }
  return {weight, bias, eps};
}

}  // namespace fastsal
