// One forward pass: cuts the batch into blocks of whole sentences and takes each through all layers.
#pragma once

#include <vector>

#include "encoder.h"

namespace fastsal {

// Consecutive sentences whose tokens are computed together.
struct Block {
  int64_t first_sentence, last_sentence;
  int64_t first_row;
  int rows;
};

// Where the pooled positions of every sentence lie, for the whole batch; offsets count from the block's first row.
class PoolingPlan {
 public:
  PoolingPlan(const Pooling& pooling, const Batch& batch, const std::vector<Block>& blocks, int64_t hidden_stride);

  const Pooling& pooling;
  std::vector<std::vector<int64_t>> row_offset;  // per convolution (one entry without any), per position
  std::vector<int32_t> sentence, position;       // per position; the sentence counts from its block's first
  std::vector<int32_t> lengths;                  // per sentence
  std::vector<int64_t> first_position;           // per block, and the end
  int64_t max_positions = 0;                     // of a block
  int64_t max_input_rows = 0;                    // zero-padded, of a block
};

class ForwardPass {
 public:
  ForwardPass(const Encoder& encoder, const Batch& batch, int threads);

  void hidden_states(bool all_layers, float* output);
  void sentence_embeddings(const Pooling& pooling, float* output);

 private:
  // Activations of one block, shared by the team that works on it, and each member's own scratch.
  struct OperandBuffer {
    char* rows;
    int64_t row_bytes;
    float* scales;
    int64_t scales_stride;
  };
  struct Workspace {
    float* hidden;
    float* update;
    float* qkv;
    float* feed_forward;
    OperandBuffer operand, feed_forward_operand;
    float* convolution_input;
    float* member_scratch;  // member_floats() each
    int64_t floats = 0;     // of all that is shared
  };
  void plan_blocks();
  void run();
  int64_t member_floats() const;
  int64_t workspace_floats(int members) const;
  Workspace carve(float* memory, int members) const;
  void run_block(size_t index, const Workspace& space, const Team& team) const;
  void run_layer(const Block& block, int layer, const Workspace& space, const Team& team) const;
  void attend(const Block& block, const Workspace& space, const Team& team) const;
  void pool(size_t index, const Workspace& space, const Team& team) const;
  Operand operand(const float* input, int64_t stride, int columns, const float* inverse_smoothing, int rows,
                  const OperandBuffer& buffer, const Team& team) const;
  void linear(const PackedLinear& weights, const Operand& input, float* output, int64_t output_stride, int rows,
              Activation activation, const Team& team) const;
  void add_and_norm(const Block& block, const NormWeights& norm, const Workspace& space, const Team& team) const;
  void copy_out(const Block& block, int state, const Workspace& space, const Team& team) const;
  int feed_forward_columns(int members) const;

  const Encoder& encoder_;
  const Kernels& kernels_;
  const EncoderSpec& spec_;
  const Batch& batch_;
  const int threads_;
  std::vector<Block> blocks_;
  bool share_blocks_ = false;  // all threads on one block, else a block per thread
  int max_rows_ = 0;
  int max_tokens_ = 0;  // of a sentence
  int64_t hidden_stride_, qkv_stride_, embedding_stride_;

  float* output_ = nullptr;
  bool all_layers_ = false;
  const PoolingPlan* plan_ = nullptr;
};

}  // namespace fastsal
