// Lays weight matrices out in the panels that the kernels read.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels.h"
#include "views.h"

namespace fastsal {

// Hands out parts of one buffer. With no buffer it only counts, so that one function serves to size and to fill.
class Packer {
 public:
  Packer(const Kernels& kernels, float* memory, int threads = 1)
      : kernels_(kernels), memory_(memory), threads_(threads) {}

  // The matrices stacked along their rows (output features). For int8 `group` is a divisor of kSumChunk; `smoothing`
  // (may be null) multiplies the input columns.
  PackedLinear linear(const std::vector<LinearView>& parts, Precision precision, int group = kSmallestGroup,
                      const float* smoothing = nullptr);
  NormWeights norm(const NormView& view, int columns, float eps);

  // A (channels, input, kernel) convolution as a matrix over kernel_size rows of `row_columns` >= input columns.
  PackedLinear convolution(const ConvolutionView& view, int input, int row_columns);

  int64_t used() const { return used_; }

 private:
  float* take(int64_t floats);
  // 1 / smoothing, padded with zeros to whole vectors; null for null.
  const float* inverse(const float* smoothing, int columns);
  // `row(n, scratch)` gives the in_features weights of output n, maybe in `scratch`, which has room for them; `bias(n)`
  // its bias. Threads share the panels.
  template <typename Row, typename Bias>
  PackedLinear pack(int out_features, int in_features, Precision precision, int group, Row row, Bias bias);

  const Kernels& kernels_;
  float* memory_;
  const int threads_;
  int64_t used_ = 0;
};

inline int64_t round_up(int64_t value, int64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

// Rows apart by whole vectors and one more: a stride of a power of two would put a tile's rows into one cache set, and
// the attention kernel may read a vector past a row's end.
inline int64_t stride_of(int64_t columns, int lanes) { return round_up(columns, lanes) + lanes; }

// Likewise; the kernels write whole vectors and read whole groups of four entries.
inline int64_t operand_row_bytes(int64_t columns, int entry) { return round_up(columns * entry, 64) + 64; }

}  // namespace fastsal
