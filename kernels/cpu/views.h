// What Python hands in: pointers into its arrays, with their sizes.
#pragma once

#include <cstdint>
#include <vector>

namespace fastsal {

// Row-major (rows, columns) weights and (rows,) bias; `bias` may be null for zeros.
struct LinearView {
  const float* weight;
  const float* bias;
  int rows, columns;
};

struct NormView {
  const float* weight;
  const float* bias;
};

struct LayerView {
  LinearView query, key, value, attention_output;
  NormView attention_norm;
  LinearView up, down;
  NormView output_norm;
  // int8: inputs of q, k, v and of `up` are divided by these per column, weights multiplied; null for ones.
  const float* qkv_smoothing;
  const float* up_smoothing;
};

struct WeightsView {
  const float* words;  // tables stay where they are
  const float* positions;
  const float* types;
  NormView embedding_norm;
  LinearView mapping;  // weight null: none
  std::vector<LayerView> layers;
};

// T tokens of B sentences; sentence b owns tokens cu_seqlens[b] to cu_seqlens[b + 1].
struct Batch {
  const int64_t* ids;  // null: `vectors` holds (T, embedding_size) word vectors
  const float* vectors;
  const int64_t* positions;
  const int64_t* types;
  const int64_t* cu_seqlens;
  int64_t num_tokens, num_sentences;
};

struct ConvolutionView {
  const float* weight;  // (channels, hidden_size, kernel_size)
  const float* bias;    // may be null
  int channels, kernel_size, stride;
};

}  // namespace fastsal
