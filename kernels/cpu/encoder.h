// A BERT- or ALBERT-family encoder on the CPU: packed weights, and the forward pass over packed tokens.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "kernels.h"
#include "memory.h"
#include "views.h"

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

struct Pooling;
struct Profile;

// How threads share the work: a block of sentences for each, or all on one block after the other.
enum class Scheme { by_cost, block_per_thread, shared_blocks };

// Asked on the calling thread, once per layer: whether to give up. An empty one is not asked.
using Interrupt = std::function<bool()>;

// What a call throws that gave up; its output is unfinished.
struct Interrupted : std::exception {
  const char* what() const noexcept override { return "interrupted"; }
};

class Encoder {
 public:
  // `threads` pack the weights; they change no bit.
  Encoder(const Kernels& kernels, EncoderSpec spec, const WeightsView& weights, int threads);

  const Kernels& kernels() const { return kernels_; }
  const EncoderSpec& spec() const { return spec_; }
  int64_t packed_floats() const { return weights_.size(); }

  // output: (T, hidden_size), or (layers + 1, T, hidden_size) with all_layers. Throws std::out_of_range for an id, type
  // or position outside its table, std::invalid_argument for bad cu_seqlens, before any table is read; Interrupted.
  void hidden_states(const Batch& batch, bool all_layers, float* output, int threads,
                     const Interrupt& interrupt = {}) const;

  // output: (B, pooling.output_size()). Throws also std::invalid_argument for a sentence that the convolutions refuse.
  // The scheme changes no bit of it; one is named to measure it.
  void sentence_embeddings(const Batch& batch, const Pooling& pooling, float* output, int threads,
                           Scheme scheme = Scheme::by_cost, const Interrupt& interrupt = {}) const;

  // As sentence_embeddings, on one thread; tells where the time went.
  Profile profile(const Batch& batch, const Pooling& pooling, float* output) const;

 private:
  friend class ForwardPass;
  struct Layer {
    PackedLinear qkv, attention_output, up, down;
    NormWeights attention_norm, output_norm;
  };

  void check(const Batch& batch) const;
  void check(const Pooling& pooling) const;

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
