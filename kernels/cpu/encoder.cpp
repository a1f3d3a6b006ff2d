#include "encoder.h"

#include <algorithm>
#include <array>
#include <stdexcept>

#include "forward.h"
#include "packing.h"

namespace fastsal {
namespace {

constexpr std::array kActivationNames = {"linear",  "relu",    "relu2",     "relu6",       "leaky_relu", "sigmoid",
                                         "silu",    "tanh",    "mish",      "gelu",        "gelu_tanh",  "quick_gelu",
                                         "gelu_10", "laplace", "hardswish", "sqrtsoftplus"};

// int8: a wider group takes less time, but one large weight or activation spoils more of them. Chosen by
// benchmarks/int8_accuracy.py: these two matrices can be rounded in wide groups at no cost.
constexpr int kQkvGroup = 192, kAttentionOutputGroup = 384, kUpGroup = 128, kDownGroup = 128;

void check_range(const char* name, const int64_t* values, int64_t count, int64_t limit) {
  for (int64_t i = 0; i < count; ++i)
    if (values[i] < 0 || values[i] >= limit)
      throw std::out_of_range(std::string(name) + " must be in [0, " + std::to_string(limit) + "), got " +
                              std::to_string(values[i]) + " at token " + std::to_string(i));
}

}  // namespace

Activation activation_from_name(const std::string& name) {
  for (size_t i = 0; i < kActivationNames.size(); ++i)
    if (name == kActivationNames[i]) return static_cast<Activation>(i);
  throw std::invalid_argument("activation must be one that the kernels compute, got '" + name + "'");
}

Encoder::Encoder(const Kernels& kernels, EncoderSpec spec, const WeightsView& weights, int threads)
    : kernels_(kernels),
      spec_(std::move(spec)),
      words_(weights.words),
      positions_(weights.positions),
      types_(weights.types) {
  const auto lay_out = [&](float* memory) {
    Packer packer(kernels_, memory, std::max(threads, 1));
    const auto norm = [&](const NormView& view, int columns) {
      return packer.norm(view, columns, spec_.layer_norm_eps);
    };
    embedding_norm_ = norm(weights.embedding_norm, spec_.embedding_size);
    if (weights.mapping.weight) mapping_ = packer.linear({weights.mapping}, Precision::float32);
    layers_.clear();
    for (const LayerView& view : weights.layers) {
      Layer layer;
      layer.qkv = packer.linear({view.query, view.key, view.value}, spec_.precision, kQkvGroup, view.qkv_smoothing);
      layer.attention_output = packer.linear({view.attention_output}, spec_.precision, kAttentionOutputGroup);
      layer.attention_norm = norm(view.attention_norm, spec_.hidden_size);
      layer.up = packer.linear({view.up}, spec_.precision, kUpGroup, view.up_smoothing);
      layer.down = packer.linear({view.down}, spec_.precision, kDownGroup);
      layer.output_norm = norm(view.output_norm, spec_.hidden_size);
      layers_.push_back(layer);
    }
    return packer.used();
  };
  weights_ = Buffer(lay_out(nullptr));
  lay_out(weights_.data());
}

void Encoder::check(const Batch& batch) const {
  int64_t last = 0;
  for (int64_t b = 0; b <= batch.num_sentences; ++b) {
    if (batch.cu_seqlens[b] < last || (b == 0 && batch.cu_seqlens[0] != 0))
      throw std::invalid_argument("cu_seqlens must start at 0 and not decrease");
    last = batch.cu_seqlens[b];
  }
  if (last != batch.num_tokens)
    throw std::invalid_argument("cu_seqlens must end at the number of tokens, " + std::to_string(batch.num_tokens) +
                                ", got " + std::to_string(last));
  if (batch.ids) check_range("input_ids", batch.ids, batch.num_tokens, spec_.vocab_size);
  check_range("position_ids", batch.positions, batch.num_tokens, spec_.max_positions);
  check_range("token_type_ids", batch.types, batch.num_tokens, spec_.type_vocab_size);
}

void Encoder::hidden_states(const Batch& batch, bool all_layers, float* output, int threads,
                            const Interrupt& interrupt) const {
  check(batch);
  ForwardPass pass(*this, batch, threads);
  pass.give_up_if(interrupt);
  pass.hidden_states(all_layers, output);
}

void Encoder::check(const Pooling& pooling) const {
  if (pooling.kernels != &kernels_ || pooling.hidden_size != spec_.hidden_size)
    throw std::invalid_argument("pooling must be made by this encoder: it is for " +
                                std::string(pooling.kernels->name) + " and a hidden size of " +
                                std::to_string(pooling.hidden_size) + ", not for " + kernels_.name + " and " +
                                std::to_string(spec_.hidden_size));
}

void Encoder::sentence_embeddings(const Batch& batch, const Pooling& pooling, float* output, int threads, Scheme scheme,
                                  const Interrupt& interrupt) const {
  check(batch);
  check(pooling);
  ForwardPass pass(*this, batch, threads, scheme);
  pass.give_up_if(interrupt);
  pass.sentence_embeddings(pooling, output);
}

Profile Encoder::profile(const Batch& batch, const Pooling& pooling, float* output) const {
  check(batch);
  check(pooling);
  Profile profile;
  ForwardPass pass(*this, batch, 1);
  pass.profile_into(&profile);
  pass.sentence_embeddings(pooling, output);
  return profile;
}

}  // namespace fastsal
