// Lays weight matrices out in the panels that the kernels read.
#pragma once

#include <vector>

#include "encoder.h"

namespace fastsal {

// Hands out parts of one buffer. With no buffer it only counts, so that one function serves to size and to fill.
class Packer {
 public:
  Packer(const Kernels& kernels, float* memory) : kernels_(kernels), memory_(memory) {}

  // The matrices stacked along their rows (output features).
  PackedLinear linear(const std::vector<LinearView>& parts);
  PackedLinear linear(const LinearView& part) { return linear(std::vector<LinearView>{part}); }
  NormWeights norm(const NormView& view, int columns, float eps);

  // A (channels, input, kernel) convolution as a matrix over kernel_size rows of `row_columns` >= input columns.
  PackedLinear convolution(const ConvolutionView& view, int input, int row_columns);

  int64_t used() const { return used_; }

 private:
  float* take(int64_t floats);
  // Allots panels and bias for out x in; `at(n, k)` and `bias(n)` give the values.
  template <typename At, typename Bias>
  PackedLinear pack(int out_features, int in_features, At at, Bias bias);

  const Kernels& kernels_;
  float* memory_;
  int64_t used_ = 0;
};

inline int64_t round_up(int64_t value, int64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

}  // namespace fastsal
