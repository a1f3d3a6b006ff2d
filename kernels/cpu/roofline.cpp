#include "roofline.h"

#include <algorithm>
#include <chrono>
#include <vector>

#include "memory.h"
#include "packing.h"

namespace fastsal {
namespace {

constexpr double kMinSeconds = 0.02;
constexpr int kTries = 5;

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Operations per second, the best of several tries: `run(n)` repeats the work n times and returns its operations.
template <typename Run>
double best_rate(Run run) {
  double best = 0;
  int64_t repeats = 1;
  for (int tries = 0; tries < kTries;) {
    const double start = seconds_now();
    const double operations = static_cast<double>(run(repeats));
    const double seconds = seconds_now() - start;
    if (seconds < kMinSeconds) {
      repeats *= 2;
      continue;
    }
    best = std::max(best, operations / seconds);
    ++tries;
  }
  return best;
}

}  // namespace

double PartTimer::now() { return seconds_now(); }

double peak_rate(const Kernels& kernels, Precision precision) {
  return best_rate([&](int64_t repeats) { return repeats * 1000 * kernels.peak(precision, repeats * 1000); });
}

double product_rate(const Kernels& kernels, Precision precision, int rows, int in_features, int out_features) {
  std::vector<float> weights(static_cast<size_t>(out_features) * in_features);
  for (size_t i = 0; i < weights.size(); ++i) weights[i] = static_cast<float>(i % 61) * 0.01f - 0.3f;
  const std::vector<LinearView> parts = {{weights.data(), nullptr, out_features, in_features}};
  Packer counter(kernels, nullptr);
  counter.linear(parts, precision);
  const Buffer memory(counter.used());
  Packer packer(kernels, memory.data());
  const PackedLinear packed = packer.linear(parts, precision);

  const int64_t input_stride = stride_of(in_features, kernels.lanes);
  const int64_t output_stride = stride_of(round_up(out_features, kernels.layout(precision).panel_width), kernels.lanes);
  std::vector<float> input(static_cast<size_t>(rows * input_stride), 0.5f);
  std::vector<float> output(static_cast<size_t>(rows * output_stride));
  Operand operand{input.data(), input_stride * static_cast<int64_t>(sizeof(float)), nullptr, 0};
  const int entry = kernels.layout(precision).operand_bytes;
  const int64_t row_bytes = operand_row_bytes(in_features, entry);
  std::vector<char> converted(static_cast<size_t>(rows * row_bytes));
  std::vector<float> scales(static_cast<size_t>(rows) * scales_of(in_features, packed.group));
  if (entry) {
    operand = {converted.data(), row_bytes, scales.data(), rows};
    kernels.convert({input.data(), input_stride, rows, in_features, &packed, converted.data(), row_bytes, scales.data(),
                     operand.scales_stride});
  }
  const LinearTask task{&packed, operand, output.data(),     output_stride,     rows, 0, in_features,
                        0,       0,       packed.num_panels, Activation::linear};
  return best_rate([&](int64_t repeats) {
    for (int64_t i = 0; i < repeats; ++i) kernels.linear(task);
    return repeats * 2 * rows * in_features * out_features;
  });
}

}  // namespace fastsal
