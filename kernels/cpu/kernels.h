// The table of kernels that one instruction set provides, and the plain structs they take.
//
// Files compiled for one instruction set (avx512.cpp, avx2.cpp, portable.cpp) include this header and no C++ library
// with inline functions: the linker may keep any one copy of such a function, and an AVX-512 copy kept for all would
// crash older processors.
#pragma once

#include <stdint.h>

namespace fastsal {

// The order is the one of `activation_from_name` in encoder.cpp.
enum class Activation : int {
  linear,
  relu,
  relu2,
  relu6,
  leaky_relu,
  sigmoid,
  silu,
  tanh,
  mish,
  gelu,
  gelu_tanh,
  quick_gelu,
  gelu_10,
  laplace,
  hardswish,
  sqrt_softplus,
};

// Products are summed over at most this many k at a time; the partial sums are then added in order. A fixed boundary,
// so that no schedule changes a bit, and one that halves the rounding error of a single long sum. A multiple of every
// panel width and of every int8 group, so that the feed-forward layer can be computed chunk by chunk.
constexpr int kSumChunk = 384;

// int8: consecutive k form a group that shares a scale, in weights (per output column) and in activations (per row).
// A chunk has one value for all of it, then the scale of each of its groups.
constexpr int kSmallestGroup = 128;
constexpr int chunk_scales(int group) { return 1 + kSumChunk / group; }
constexpr int scales_of(int in_features, int group) {
  return (in_features + kSumChunk - 1) / kSumChunk * chunk_scales(group);
}

enum class Precision : int { float32, bfloat16, int8 };
constexpr int kPrecisions = 3;

constexpr int stored_bytes(Precision precision) {  // of a weight
  return precision == Precision::int8 ? 1 : precision == Precision::bfloat16 ? 2 : 4;
}

// A weight matrix (out_features x in_features) cut into panels of `panel_width` output columns (see Kernels). A panel,
// with w columns from n on and `depth` consecutive k side by side (1, or what a dot product instruction takes: 2
// bfloat16, 4 int8):
//
//   depth 1: W[n][0] W[n+1][0] ... W[n+w-1][0]   W[n][1] W[n+1][1] ...
//   depth 2: W[n][0] W[n][1] W[n+1][0] W[n+1][1] ... W[n+w-1][0] W[n+w-1][1]   W[n][2] W[n][3] ...
//
// The last panel is only as wide as needed, in whole vectors or whole tiles (see Kernels); spare columns and spare k
// (in_features is padded to padded_depth) are zeros. `bias` has spare zeros too. int8 weights have scales: for every
// panel and chunk of kSumChunk k its sum of the weights as rounded, a value for each of the w columns, then the w
// scales of each group.
struct PackedLinear {
  const void* panels = nullptr;
  const float* bias = nullptr;
  const float* scales = nullptr;
  Precision precision = Precision::float32;
  int in_features = 0;
  int out_features = 0;
  int num_panels = 0;
  int group = 0;                             // int8: a divisor of kSumChunk
  const float* inverse_smoothing = nullptr;  // int8: what multiplies every input column first; may be null
};

constexpr int padded_depth(int in_features) { return (in_features + 63) / 64 * 64; }  // whole tiles of AMX

// Rows that a weight matrix multiplies, in the format that its precision needs. int8 rows have per chunk of kSumChunk
// entries its offset, then the scales of its groups: an entry q of a group with scale s stands for s * q + offset. All
// rows' first offsets come first, then the scales of all rows' first groups `scales_stride` further on, and so forth.
struct Operand {
  const void* rows = nullptr;
  int64_t row_bytes = 0;
  const float* scales = nullptr;
  int64_t scales_stride = 0;
};

// output[:, panels] = activation(input @ W.T + bias) for k in [k_begin, k_end): a start at 0 overwrites the output, a
// later one adds to it; bias and activation are applied when k_end is in_features. k_begin is a multiple of kSumChunk.
struct LinearTask {
  const PackedLinear* weights;
  Operand input;  // from column k_begin on
  float* output;  // column of panel `base_panel` in the first row
  int64_t output_stride;
  int rows;
  int k_begin, k_end;
  int base_panel, first_panel, last_panel;
  Activation activation;
};

// output[:, outputs] = input @ weight.T + bias in float32, the weights (out_features x in_features) as PyTorch has
// them.
struct PlainLinearTask {
  const float* input;
  int64_t input_stride;
  int rows;
  const float* weight;
  const float* bias;  // may be null
  int in_features;
  int first_output, last_output;
  float* output;
  int64_t output_stride;
};

// Rows of floats -> the operand that the weights multiply, or those of its columns that a task's k are.
struct ConvertTask {
  const float* input;
  int64_t input_stride;
  int rows, columns;
  const PackedLinear* weights;
  void* output;
  int64_t row_bytes;
  float* scales;
  int64_t scales_stride;
};

struct NormWeights {
  const float* weight = nullptr;  // padded with zeros to whole vectors
  const float* bias = nullptr;    // likewise
  float eps = 0;
};

// hidden = LayerNorm(hidden + update), row by row.
struct NormTask {
  float* hidden;
  int64_t hidden_stride;
  const float* update;
  int64_t update_stride;
  int rows, columns;
  NormWeights norm;
};

// output = LayerNorm(word + type + position), row by row.
struct EmbeddingTask {
  const float* words;  // the word table, or the tokens' own vectors where `ids` is null
  const float* positions;
  const float* types;
  const int64_t* ids;
  const int64_t* position_ids;
  const int64_t* type_ids;
  float* output;
  int64_t output_stride;
  int rows, columns;
  NormWeights norm;
};

// One head of one sentence; all pointers at the head's columns. The context of each query replaces it.
struct AttentionTask {
  float* queries;
  int64_t query_stride;
  int num_queries;
  const float* keys;
  const float* values;
  int64_t stride;  // of keys and values
  int tokens, head_size;
  Precision precision;  // of the encoder
  float* scratch;       // attention_scratch(precision, tokens, head_size) floats
};

enum PoolingMode : int { kCls, kMax, kMean, kMeanSqrtLength, kWeightedMean, kLastToken };

// One convolution of the CNN: its windows lie contiguously in the zero-padded input rows, so it is a matrix product.
struct PackedConvolution {
  PackedLinear weights;  // in_features = kernel_size * columns of the zero-padded input
  int kernel_size, stride, padding;
  int first_column;  // among the channels of all convolutions
};

// Pools the positions of a block's sentences into one row per sentence. A position is a token, or where there is a
// convolution one of its outputs, whose window starts at its row of the zero-padded input.
struct PoolingTask {
  const float* input;
  const int64_t* row_offset;  // per position, in floats from `input`
  const int32_t* sentence;    // per position, ascending
  const int32_t* position;    // per position, counted from 0 in its sentence
  int num_positions;
  const int32_t* lengths;  // per sentence: its number of positions
  int num_sentences;
  const PackedConvolution* convolution;  // null: the positions are pooled as they are
  int columns;                           // of one mode's result, over all convolutions
  int first_panel, last_panel;           // a float32 panel's columns each: of the convolution, or of `columns`
  int skip;                              // leading positions that are not pooled
  const int* modes;                      // PoolingMode
  int num_modes;
  float* output;  // (num_sentences, num_modes * columns)
  int64_t output_stride;
  float* products;  // scratch of a convolution: num_positions * panel_width floats
};

// How an instruction set wants the operands of its products in one precision.
struct Layout {
  int panel_width;      // columns of a weight panel
  int column_multiple;  // what the last panel is padded to
  int depth;            // consecutive k side by side in a panel
  int operand_bytes;    // of an input's entry; 0 where floats are read as they are
  bool native;          // multiplied in this precision; else the weights become floats in the kernels
  bool bounded_pairs;   // int8: two weights of one sign side by side in depth sum up to 128 at most
};

struct Kernels {
  const char* name;
  int lanes;  // floats in a vector
  Layout layouts[kPrecisions];
  void (*linear)(const LinearTask&);
  void (*plain_linear)(const PlainLinearTask&);
  void (*convert)(const ConvertTask&);
  void (*layer_norm)(const NormTask&);
  void (*embed)(const EmbeddingTask&);
  void (*attention)(const AttentionTask&);
  int64_t (*attention_scratch)(Precision precision, int tokens, int head_size);
  void (*pool)(const PoolingTask&);
  void (*add_scaled)(float* sums, const float* values, float scale, int columns);  // whole vectors
  void (*normalize)(float* row, int64_t columns);
  void (*activate)(float* values, int64_t stride, int rows, int columns, Activation activation);
  int64_t (*peak)(Precision precision, int64_t steps);  // see peak.h

  const Layout& layout(Precision precision) const { return layouts[static_cast<int>(precision)]; }
};

}  // namespace fastsal
