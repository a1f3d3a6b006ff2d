#include "packing.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "threads.h"

namespace fastsal {

float* Packer::take(int64_t floats) {
  float* part = memory_ ? memory_ + used_ : nullptr;
  used_ += round_up(floats, 16);  // 64 bytes
  return part;
}

namespace {

uint16_t to_bfloat16(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  if (value != value) return static_cast<uint16_t>(bits >> 16 | 0x40);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);  // ties to even
}

// Rounds `count` weights to int8; returns the scale, and in *sum the sum of the rounded weights. With `bounded_pairs`
// two neighbours of one sign are at most 127 in sum before they are rounded and 128 after: times 255 each, the largest
// input, that is 32640 and fits into 16 bits.
float quantize(const float* weights, int count, bool bounded_pairs, int8_t* rounded, float* sum) {
  float largest = 0.f;
  for (int k = 0; k < count; ++k) largest = std::max(largest, std::fabs(weights[k]));
  for (int k = 0; bounded_pairs && k + 1 < count; k += 2) {
    const bool one_sign = (weights[k] < 0.f) == (weights[k + 1] < 0.f);
    if (one_sign) largest = std::max(largest, std::fabs(weights[k] + weights[k + 1]));
  }
  const float scale = largest > 0.f ? largest / 127.f : 1.f;
  int total = 0;
  for (int k = 0; k < count; ++k) {
    rounded[k] = static_cast<int8_t>(std::lrint(std::clamp(weights[k] / scale, -127.f, 127.f)));
    total += rounded[k];
  }
  *sum = static_cast<float>(total);
  return scale;
}

}  // namespace

template <typename Row, typename Bias>
PackedLinear Packer::pack(int out_features, int in_features, Precision precision, int group, Row row, Bias bias) {
  const Layout& layout = kernels_.layout(precision);
  const int width = layout.panel_width, together = layout.depth;
  const int64_t padded = round_up(out_features, layout.column_multiple);
  const int64_t depth = precision == Precision::float32 ? in_features : padded_depth(in_features);
  const int64_t entry = stored_bytes(precision);
  const int64_t scales_per_column = precision == Precision::int8 ? scales_of(in_features, group) : 0;
  PackedLinear packed;
  packed.precision = precision;
  packed.in_features = in_features;
  packed.group = group;
  packed.out_features = out_features;
  packed.num_panels = (out_features + width - 1) / width;
  float* memory = take((padded * depth * entry + 3) / 4);
  float* biases = take(padded);
  float* scales = scales_per_column ? take(padded * scales_per_column) : nullptr;
  packed.panels = memory;
  packed.bias = biases;
  packed.scales = scales;
  if (!memory_) return packed;

  std::fill(biases, biases + padded, 0.f);
  std::vector<float> scratch(static_cast<size_t>(threads_) * static_cast<size_t>(in_features));
  const auto pack_column = [&](int n, int64_t first, int64_t columns, char* panel, float* row_scratch) {
    const int64_t column = n - first;
    const float* weights = row(n, row_scratch);
    biases[n] = bias(n);
    const auto put = [&](int k, auto value) {
      const int64_t at = (k / together * columns + column) * together + k % together;
      std::memcpy(panel + at * entry, &value, sizeof value);
    };
    switch (precision) {
      case Precision::float32:
        for (int k = 0; k < in_features; ++k) put(k, weights[k]);
        break;
      case Precision::bfloat16:
        for (int k = 0; k < in_features; ++k) put(k, to_bfloat16(weights[k]));
        break;
      case Precision::int8:
        for (int k = 0; k < in_features; k += group) {
          int8_t rounded[kSumChunk];
          float sum;
          const int count = std::min(group, in_features - k);
          const float scale = quantize(weights + k, count, layout.bounded_pairs, rounded, &sum);
          for (int i = 0; i < count; ++i) put(k + i, rounded[i]);
          float* chunk = scales + first * scales_per_column + k / kSumChunk * chunk_scales(group) * columns + column;
          chunk[0] += scale * sum;
          chunk[(1 + k % kSumChunk / group) * columns] = scale;
        }
        break;
    }
  };
  run_team(threads_, [&](const Team& team) {
    const Range mine = share(packed.num_panels, team);
    float* row_scratch = scratch.data() + static_cast<int64_t>(team.member) * in_features;
    for (int64_t index = mine.begin; index < mine.end; ++index) {
      const int64_t first = index * width, columns = std::min<int64_t>(width, padded - first);
      char* panel = reinterpret_cast<char*>(memory) + first * depth * entry;
      std::memset(panel, 0, static_cast<size_t>(columns * depth * entry));
      if (scales) std::fill_n(scales + first * scales_per_column, columns * scales_per_column, 0.f);
      const int64_t last = std::min<int64_t>(first + width, out_features);
      for (int64_t n = first; n < last; ++n) pack_column(static_cast<int>(n), first, columns, panel, row_scratch);
    }
  });
  return packed;
}

PackedLinear Packer::linear(const std::vector<LinearView>& parts, Precision precision, int group,
                            const float* smoothing) {
  const int columns = parts.front().columns;
  int rows = 0;
  for (const LinearView& part : parts) rows += part.rows;
  const auto part_of = [&](int& n) {
    size_t index = 0;
    while (n >= parts[index].rows) n -= parts[index++].rows;
    return parts[index];
  };
  PackedLinear packed = pack(
      rows, columns, precision, group,
      [&](int n, float* scratch) {
        const LinearView part = part_of(n);
        const float* weights = part.weight + static_cast<int64_t>(n) * columns;
        if (!smoothing) return weights;
        for (int k = 0; k < columns; ++k) scratch[k] = weights[k] * smoothing[k];
        return const_cast<const float*>(scratch);
      },
      [&](int n) {
        const LinearView part = part_of(n);
        return part.bias ? part.bias[n] : 0.f;
      });
  packed.inverse_smoothing = inverse(smoothing, columns);
  return packed;
}

PackedLinear Packer::convolution(const ConvolutionView& view, int input, int row_columns) {
  return pack(
      view.channels, view.kernel_size * row_columns, Precision::float32, kSmallestGroup,
      [&](int n, float* weights) {
        std::fill_n(weights, view.kernel_size * row_columns, 0.f);
        const float* from = view.weight + static_cast<int64_t>(n) * input * view.kernel_size;
        for (int column = 0; column < input; ++column)
          for (int tap = 0; tap < view.kernel_size; ++tap) weights[tap * row_columns + column] = *from++;
        return const_cast<const float*>(weights);
      },
      [&](int n) { return view.bias ? view.bias[n] : 0.f; });
}

const float* Packer::inverse(const float* smoothing, int columns) {
  if (!smoothing) return nullptr;
  const int64_t padded = round_up(columns, kernels_.lanes);
  float* values = take(padded);
  if (memory_) {
    std::fill(values, values + padded, 0.f);
    for (int k = 0; k < columns; ++k) values[k] = 1.f / smoothing[k];
  }
  return values;
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
