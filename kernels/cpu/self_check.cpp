#include "self_check.h"

#include <vector>

#include "memory.h"
#include "packing.h"

namespace fastsal {
namespace {

constexpr int kRows = 37, kColumns = 70, kDepth = 500;  // nothing fills its last tile

// Integers in [-127, 127], with -127 and 127 in every group: both precisions hold them, and their products' sums,
// exactly.
std::vector<float> integers(int count, int step) {
  std::vector<float> values(static_cast<size_t>(count) * kDepth);
  for (int i = 0; i < count * kDepth; ++i)
    values[static_cast<size_t>(i)] = static_cast<float>(i % kDepth % 64 == 5   ? 127
                                                        : i % kDepth % 64 == 9 ? -127
                                                                               : i * step % 31 - 15);
  return values;
}

bool is_exact(const Kernels& kernels, Precision precision) {
  const std::vector<float> weights = integers(kColumns, 7), input = integers(kRows, 11);
  const std::vector<LinearView> parts = {{weights.data(), nullptr, kColumns, kDepth}};
  Packer counter(kernels, nullptr);
  counter.linear(parts, precision);
  const Buffer memory(counter.used());
  Packer packer(kernels, memory.data());
  const PackedLinear packed = packer.linear(parts, precision);

  const Layout& layout = kernels.layout(precision);
  const int64_t output_stride = stride_of(round_up(kColumns, layout.panel_width), kernels.lanes);
  std::vector<float> output(static_cast<size_t>(kRows * output_stride));
  const int64_t row_bytes = operand_row_bytes(kDepth, layout.operand_bytes);
  std::vector<char> rows(static_cast<size_t>(kRows * row_bytes));
  std::vector<float> scales(static_cast<size_t>(kRows) * scales_of(kDepth, packed.group));
  kernels.convert({input.data(), kDepth, kRows, kDepth, &packed, rows.data(), row_bytes, scales.data(), kRows});
  kernels.linear({&packed,
                  {rows.data(), row_bytes, scales.data(), kRows},
                  output.data(),
                  output_stride,
                  kRows,
                  0,
                  kDepth,
                  0,
                  0,
                  packed.num_panels,
                  Activation::linear});

  for (int row = 0; row < kRows; ++row)
    for (int column = 0; column < kColumns; ++column) {
      float expected = 0.f;
      for (int k = 0; k < kDepth; ++k)
        expected += input[static_cast<size_t>(row * kDepth + k)] * weights[static_cast<size_t>(column * kDepth + k)];
      if (output[static_cast<size_t>(row * output_stride + column)] != expected) return false;
    }
  return true;
}

}  // namespace

std::string self_check(const Kernels& kernels) {
  if (!is_exact(kernels, Precision::bfloat16)) return "its bfloat16 products are wrong";
  if (!is_exact(kernels, Precision::int8)) return "its int8 products are wrong";
  return "";
}

}  // namespace fastsal
