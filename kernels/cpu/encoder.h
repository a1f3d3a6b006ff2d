// A BERT- or ALBERT-family encoder on the CPU: packed weights, and the forward pass over packed tokens.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "kernels.h"
#include "memory.h"
#include "threads.h"

namespace fastsal {

struct EncoderSpec {
  int64_t vocab_size, max_positions, type_vocab_size;
  int embedding_size, hidden_size, num_heads, head_size, intermediate_size;
  Activation activation;
  float layer_norm_eps;
  Precision precision;  // of the matrix products
  std::vector<int> layer_schedule;
};

// Throws std::invalid_argument for a name that is none.
Activation activation_from_name(const std::string& name);

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

// Pooling with its convolutions packed for one instruction set.
class Pooling {
 public:
  Pooling(const Kernels& kernels, int hidden_size, std::vector<int> modes,
          const std::vector<ConvolutionView>& convolutions, int skip, bool normalize);

  int64_t output_size() const { return static_cast<int64_t>(modes_.size()) * columns_; }

 private:
  friend class PoolingPlan;
  friend class ForwardPass;
  std::vector<int> modes_;
  int skip_, columns_;
  bool normalize_;
  int input_columns_;  // of a zero-padded row
  int max_padding_ = 0;
  std::vector<PackedConvolution> convolutions_;
  Buffer weights_;
};

class Encoder {
 public:
  Encoder(const Kernels& kernels, EncoderSpec spec, const WeightsView& weights);

  const Kernels& kernels() const { return kernels_; }
  const EncoderSpec& spec() const { return spec_; }
  int64_t packed_floats() const { return weights_.size(); }

  // output: (T, hidden_size), or (layers + 1, T, hidden_size) with all_layers. Throws std::out_of_range for an id, type
  // or position outside its table, std::invalid_argument for bad cu_seqlens, before any table is read.
  void hidden_states(const Batch& batch, bool all_layers, float* output, int threads) const;

  // output: (B, pooling.output_size()). Throws also std::invalid_argument for a sentence that the convolutions refuse.
  void sentence_embeddings(const Batch& batch, const Pooling& pooling, float* output, int threads) const;

 private:
  friend class ForwardPass;
  struct Layer {
    PackedLinear qkv, attention_output, up, down;
    NormWeights attention_norm, output_norm;
    const float* qkv_inverse_smoothing;
    const float* up_inverse_smoothing;
  };

  void check(const Batch& batch) const;

  const Kernels& kernels_;
  EncoderSpec spec_;
  const float* words_;
  const float* positions_;
  const float* types_;
  NormWeights embedding_norm_;
  PackedLinear mapping_;  // panels null: none
  std::vector<Layer> layers_;
  Buffer weights_;
};

}  // namespace fastsal
