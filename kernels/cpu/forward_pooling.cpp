#include <algorithm>
#include <cstring>

#include "forward.h"
#include "packing.h"

namespace fastsal {

void ForwardPass::pool(size_t index, const Workspace& space, const Team& team) const {
  const PartTimer timer(profile_, kPooling);
  const Block& block = blocks_[index];
  const Pooling& pooling = plan_->pooling;
  switch (plan_->way) {
    case PoolingWay::one_row:
      pool_selected(block, space, team);
      break;
    case PoolingWay::window_sums:
      pool_window_sums(index, space, team);
      break;
    case PoolingWay::positions:
      pool_positions(index, space, team);
      break;
  }
  if (!pooling.normalize) return;
  team.wait();
  const int64_t width = pooling.output_size();
  const Range rows = share(block.last_sentence - block.first_sentence, team);
  for (int64_t s = rows.begin; s < rows.end; ++s)
    kernels_.normalize(output_ + (block.first_sentence + s) * width, width);
}

void ForwardPass::pool_selected(const Block& block, const Workspace& space, const Team& team) const {
  if (team.member != 0) return;
  const int64_t columns = spec_.hidden_size;
  const float* row = space.hidden;
  for (int64_t s = block.first_sentence; s < block.last_sentence; ++s) {
    float* output = output_ + s * columns;
    if (tokens_of(s) == 0) {
      std::fill(output, output + columns, 0.f);
      continue;
    }
    std::memcpy(output, row, static_cast<size_t>(columns) * sizeof(float));
    row += hidden_stride_;
  }
}

void ForwardPass::pool_positions(size_t index, const Workspace& space, const Team& team) const {
  const Block& block = blocks_[index];
  const Pooling& pooling = plan_->pooling;
  const int64_t width = pooling.output_size();
  const size_t first = static_cast<size_t>(plan_->first_position[index]);

  PoolingTask task;
  task.sentence = plan_->sentence.data() + first;
  task.position = plan_->position.data() + first;
  task.num_positions = static_cast<int>(plan_->first_position[index + 1] - plan_->first_position[index]);
  task.lengths = plan_->lengths.data() + block.first_sentence;
  task.num_sentences = static_cast<int>(block.last_sentence - block.first_sentence);
  task.columns = pooling.columns;
  task.skip = pooling.skip;
  task.modes = pooling.modes.data();
  task.num_modes = static_cast<int>(pooling.modes.size());
  task.output = output_ + block.first_sentence * width;
  task.output_stride = width;
  task.products = scratch_of(space, team);

  const auto pool_panels = [&](int panels) {
    const Range mine = share(panels, team);
    task.first_panel = static_cast<int>(mine.begin);
    task.last_panel = static_cast<int>(mine.end);
    kernels_.pool(task);
  };
  if (pooling.convolutions.empty()) {
    task.input = space.hidden;
    task.row_offset = plan_->row_offset[0].data() + first;
    task.convolution = nullptr;
    pool_panels((pooling.columns + float_panel_width() - 1) / float_panel_width());
    return;
  }
  pad_rows(block, space, team);
  task.input = space.convolution_input;
  for (size_t c = 0; c < pooling.convolutions.size(); ++c) {
    task.row_offset = plan_->row_offset[c].data() + first;
    task.convolution = &pooling.convolutions[c];
    pool_panels(task.convolution->weights.num_panels);
  }
}

// The block's rows with zeros between the sentences, as many as the widest convolution reaches.
void ForwardPass::pad_rows(const Block& block, const Workspace& space, const Team& team) const {
  const Pooling& pooling = plan_->pooling;
  const int64_t columns = pooling.input_columns;
  if (team.member == 0) {
    float* row = space.convolution_input;
    const auto zeros = [&](int64_t count) {
      std::memset(row, 0, static_cast<size_t>(count * columns) * sizeof(float));
      row += count * columns;
    };
    zeros(pooling.max_padding);
    for (int64_t s = block.first_sentence; s < block.last_sentence; ++s) {
      for (int64_t t = batch_.cu_seqlens[s]; t < batch_.cu_seqlens[s + 1]; ++t, row += columns)
        std::memcpy(row, space.hidden + (t - block.first_row) * hidden_stride_,
                    static_cast<size_t>(columns) * sizeof(float));
      zeros(pooling.max_padding);
    }
  }
  team.wait();
}

// A convolution's mean over the positions is one product with the mean window: for every tap the mean of the rows that
// it meets, zeros beyond the sentence included.
void ForwardPass::pool_window_sums(size_t index, const Workspace& space, const Team& team) const {
  const Block& block = blocks_[index];
  const Pooling& pooling = plan_->pooling;
  const int64_t sentences = block.last_sentence - block.first_sentence;
  const int64_t width = pooling.output_size();
  float* output = output_ + block.first_sentence * width;
  for (size_t m = 0; m < pooling.modes.size(); ++m) {
    for (const PackedConvolution& conv : pooling.convolutions) {
      const int64_t window = int64_t{conv.kernel_size} * pooling.input_columns;
      const Range mine = share(sentences, team);
      for (int64_t s = mine.begin; s < mine.end; ++s) {
        float* sums = space.convolution_input + s * window;
        std::fill(sums, sums + window, 0.f);
        const int64_t first = batch_.cu_seqlens[block.first_sentence + s];
        const int64_t tokens = tokens_of(block.first_sentence + s);
        const int64_t length = plan_->lengths[static_cast<size_t>(block.first_sentence + s)];
        const bool weighted = pooling.modes[m] == kWeightedMean;
        const float total = weighted ? static_cast<float>(length * (length + 1) / 2) : static_cast<float>(length);
        for (int64_t t = 0; t < length; ++t)
          for (int64_t tap = 0; tap < conv.kernel_size; ++tap) {
            const int64_t token = t * conv.stride - conv.padding + tap;
            if (token >= 0 && token < tokens)
              kernels_.add_scaled(sums + tap * pooling.input_columns,
                                  space.hidden + (first + token - block.first_row) * hidden_stride_,
                                  (weighted ? static_cast<float>(t + 1) : 1.f) / total, spec_.hidden_size);
          }
      }
      team.wait();
      const Range panels = share(conv.weights.num_panels, team);
      float* products = scratch_of(space, team);
      for (int64_t p = panels.begin; p < panels.end; ++p) {
        const int panel = static_cast<int>(p);
        const Operand rows{space.convolution_input, window * static_cast<int64_t>(sizeof(float)), nullptr, 0};
        kernels_.linear({&conv.weights, rows, products, float_panel_width(), static_cast<int>(sentences), 0,
                         conv.weights.in_features, panel, panel, panel + 1, Activation::linear});
        const int64_t column = p * float_panel_width();
        const int64_t count = std::min<int64_t>(float_panel_width(), conv.weights.out_features - column);
        for (int64_t s = 0; s < sentences; ++s) {
          const bool empty = plan_->lengths[static_cast<size_t>(block.first_sentence + s)] == 0;
          float* to = output + s * width + static_cast<int64_t>(m) * pooling.columns + conv.first_column + column;
          for (int64_t c = 0; c < count; ++c) to[c] = empty ? 0.f : products[s * float_panel_width() + c];
        }
      }
      team.wait();  // the next convolution reuses the sums
    }
  }
}

}  // namespace fastsal
