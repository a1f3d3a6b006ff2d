// What follows the encoder: convolutions, pooling modes, normalisation; and where the pooled positions of a batch lie.
#pragma once

#include <cstdint>
#include <vector>

#include "blocks.h"
#include "kernels.h"
#include "memory.h"
#include "views.h"

namespace fastsal {

// How the embeddings come about. All ways give what pooling over every position would, up to rounding.
enum class PoolingWay {
  positions,    // every position is computed and pooled
  one_row,      // cls, lasttoken: the last layer computes one token of each sentence
  window_sums,  // mean over a convolution, which is linear: the windows are averaged first, then multiplied once
};

// Pooling with its convolutions packed for one instruction set.
struct Pooling {
  Pooling(const Kernels& kernels, int hidden_size, std::vector<int> modes,
          const std::vector<ConvolutionView>& convolutions, int skip, bool normalize);

  int64_t output_size() const { return static_cast<int64_t>(modes.size()) * columns; }
  PoolingWay way() const;
  // PoolingWay::one_row: the token of a sentence of `tokens` > 0 tokens.
  int64_t selected_token(int64_t tokens) const;

  std::vector<int> modes;
  int skip;
  bool normalize;
  const Kernels* kernels;
  int hidden_size;
  int columns;        // of one mode's result
  int input_columns;  // of a zero-padded row, whole vectors
  int max_padding = 0;
  int max_kernel_size = 0;
  std::vector<PackedConvolution> convolutions;
  Buffer weights;
};

// Where the pooled positions of every sentence lie, for the whole batch; offsets count from the block's first row. With
// PoolingWay::one_row a sentence has one position, its selected token, or none.
struct PoolingPlan {
  // Throws std::invalid_argument for a sentence that the convolutions refuse.
  PoolingPlan(const Pooling& pooling, PoolingWay way, const int64_t* cu_seqlens, const std::vector<Block>& blocks,
              int64_t hidden_stride);

  const Pooling& pooling;
  const PoolingWay way;
  std::vector<std::vector<int64_t>> row_offset;  // per convolution (one entry without any), per position
  std::vector<int32_t> sentence, position;       // per position; the sentence counts from its block's first
  std::vector<int32_t> lengths;                  // per sentence
  std::vector<int64_t> first_position;           // per block, and the end
  int64_t max_positions = 0;                     // of a block
  int64_t max_sentences = 0;                     // of a block
  int64_t max_input_rows = 0;                    // zero-padded, of a block
};

}  // namespace fastsal
