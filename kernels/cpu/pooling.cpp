#include "pooling.h"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>

#include "packing.h"

namespace fastsal {

Pooling::Pooling(const Kernels& kernels_, int hidden_size_, std::vector<int> modes_,
                 const std::vector<ConvolutionView>& views, int skip_, bool normalize_)
    : modes(std::move(modes_)),
      skip(skip_),
      normalize(normalize_),
      kernels(&kernels_),
      hidden_size(hidden_size_),
      columns(hidden_size_),
      input_columns(static_cast<int>(round_up(hidden_size_, kernels_.lanes))) {
  if (views.empty()) return;
  const auto lay_out = [&](float* memory) {
    Packer packer(kernels_, memory);
    convolutions.clear();
    columns = 0;
    for (const ConvolutionView& view : views) {
      const int padding = (view.kernel_size - 1) / 2;
      convolutions.push_back(
          {packer.convolution(view, hidden_size, input_columns), view.kernel_size, view.stride, padding, columns});
      columns += view.channels;
      max_padding = std::max(max_padding, padding);
      max_kernel_size = std::max(max_kernel_size, view.kernel_size);
    }
    return packer.used();
  };
  weights = Buffer(lay_out(nullptr));
  lay_out(weights.data());
}

PoolingWay Pooling::way() const {
  if (convolutions.empty()) {
    const bool one = modes.size() == 1 && (modes[0] == kCls || (modes[0] == kLastToken && skip == 0));
    return one ? PoolingWay::one_row : PoolingWay::positions;
  }
  const bool linear = std::all_of(modes.begin(), modes.end(), [](int m) { return m == kMean || m == kWeightedMean; });
  // With skipped positions a short sentence may have none to average; the general way knows what follows.
  return linear && skip == 0 ? PoolingWay::window_sums : PoolingWay::positions;
}

int64_t Pooling::selected_token(int64_t tokens) const {
  if (modes[0] == kLastToken) return tokens - 1;
  return tokens > skip ? skip : 0;
}

PoolingPlan::PoolingPlan(const Pooling& pooling_, PoolingWay way_, const int64_t* cu_seqlens,
                         const std::vector<Block>& blocks, int64_t hidden_stride)
    : pooling(pooling_), way(way_) {
  const std::vector<PackedConvolution>& convolutions = pooling.convolutions;
  row_offset.resize(std::max<size_t>(convolutions.size(), 1));
  for (const Block& block : blocks) {
    first_position.push_back(static_cast<int64_t>(position.size()));
    int64_t row = pooling.max_padding;  // of the sentence in the block's (zero-padded) input
    for (int64_t s = block.first_sentence; s < block.last_sentence; ++s) {
      const int64_t tokens = cu_seqlens[s + 1] - cu_seqlens[s];
      int64_t length = tokens;
      for (size_t c = 0; c < convolutions.size() && tokens > 0; ++c) {
        const PackedConvolution& conv = convolutions[c];
        const int64_t span = tokens + 2 * conv.padding - conv.kernel_size;
        const int64_t outputs = span < 0 ? 0 : span / conv.stride + 1;
        if (outputs == 0)
          throw std::invalid_argument("sentence " + std::to_string(s) + " has " + std::to_string(tokens) +
                                      " tokens, too few for a convolution of kernel size " +
                                      std::to_string(conv.kernel_size));
        if (c > 0 && outputs != length)
          throw std::invalid_argument("the convolutions' kernel sizes and strides give different lengths (" +
                                      std::to_string(length) + " and " + std::to_string(outputs) + ") for sentence " +
                                      std::to_string(s) + ", so they cannot be concatenated");
        length = outputs;
      }
      if (way == PoolingWay::one_row && tokens > 0) {
        sentence.push_back(static_cast<int32_t>(s - block.first_sentence));
        position.push_back(static_cast<int32_t>(pooling.selected_token(tokens)));
      }
      for (int64_t t = 0; t < length && way == PoolingWay::positions; ++t) {
        sentence.push_back(static_cast<int32_t>(s - block.first_sentence));
        position.push_back(static_cast<int32_t>(t));
        if (convolutions.empty()) row_offset[0].push_back((row + t) * hidden_stride);
        for (size_t c = 0; c < convolutions.size(); ++c)
          row_offset[c].push_back((row + t * convolutions[c].stride - convolutions[c].padding) * pooling.input_columns);
      }
      lengths.push_back(static_cast<int32_t>(length));
      row += tokens + pooling.max_padding;
    }
    max_positions = std::max(max_positions, static_cast<int64_t>(position.size()) - first_position.back());
    max_sentences = std::max(max_sentences, block.last_sentence - block.first_sentence);
    max_input_rows = std::max(max_input_rows, row);
  }
  first_position.push_back(static_cast<int64_t>(position.size()));
}

}  // namespace fastsal
