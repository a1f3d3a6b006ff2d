// One forward pass: cuts the batch into blocks of whole sentences and takes each through all layers.
#pragma once

#include <atomic>
#include <thread>
#include <vector>

#include "blocks.h"
#include "encoder.h"
#include "pooling.h"
#include "roofline.h"
#include "threads.h"

namespace fastsal {

class ForwardPass {
 public:
  ForwardPass(const Encoder& encoder, const Batch& batch, int threads, Scheme scheme = Scheme::by_cost);

  void hidden_states(bool all_layers, float* output);
  void profile_into(Profile* profile) { profile_ = profile; }  // one thread only
  void give_up_if(const Interrupt& interrupt) { interrupt_ = interrupt; }
  void sentence_embeddings(const Pooling& pooling, float* output);

 private:
  // Rows of a matrix product's input in the encoder's precision.
  struct OperandBuffer {
    char* rows;
    int64_t row_bytes;
    float* scales;
    int64_t scales_stride;
  };
  // Activations of one block, shared by the team that works on it, and each member's own scratch.
  struct Workspace {
    float* hidden;
    float* update;
    float* qkv;
    float* feed_forward;
    OperandBuffer operand, feed_forward_operand;
    float* queries;            // PoolingWay::one_row
    float* convolution_input;  // zero-padded rows, or sums of windows
    float* member_scratch;     // member_floats() each
    int64_t floats = 0;        // of all that is shared
  };

  void plan_blocks(Scheme scheme);
  void run();
  void run_blocks();
  Workspace carve(float* memory, int members) const;
  int64_t workspace_floats(int members) const;
  int64_t member_floats() const;
  int feed_forward_columns(int members) const;
  float* scratch_of(const Workspace& space, const Team& team) const;

  void ask_whether_to_give_up() const;

  // Each step is run by all members of a team. One whose result the others read ends with a barrier.
  // run_block returns whether to go on with the next.
  bool run_block(size_t index, const Workspace& space, const Team& team) const;
  void embed(const Block& block, const Workspace& space, const Team& team) const;
  void run_layer(const Block& block, const Encoder::Layer& layer, const Workspace& space, const Team& team) const;
  void attend(const Block& block, const Workspace& space, const Team& team) const;
  void run_selected_layer(size_t index, const Encoder::Layer& layer, const Workspace& space, const Team& team) const;
  void finish_layer(const Encoder::Layer& layer, const float* context, int64_t context_stride, int rows,
                    const Workspace& space, const Team& team) const;
  Operand operand(const float* input, int64_t stride, int columns, const PackedLinear& weights, int rows,
                  const OperandBuffer& buffer, const Team& team) const;
  void linear(LinearTask task, int first_panel, int last_panel, const Team& team) const;
  void add_and_norm(const NormWeights& norm, int rows, const Workspace& space, const Team& team) const;
  void copy_out(const Block& block, int state, const Workspace& space, const Team& team) const;

  // forward_pooling.cpp
  void pool(size_t index, const Workspace& space, const Team& team) const;
  void pool_selected(const Block& block, const Workspace& space, const Team& team) const;
  void pool_positions(size_t index, const Workspace& space, const Team& team) const;
  void pool_window_sums(size_t index, const Workspace& space, const Team& team) const;
  void pad_rows(const Block& block, const Workspace& space, const Team& team) const;

  int float_panel_width() const { return kernels_.layout(Precision::float32).panel_width; }
  int64_t tokens_of(int64_t sentence) const { return batch_.cu_seqlens[sentence + 1] - batch_.cu_seqlens[sentence]; }

  const Encoder& encoder_;
  const Kernels& kernels_;
  const EncoderSpec& spec_;
  const Batch& batch_;
  const int threads_;
  std::vector<Block> blocks_;
  bool share_blocks_ = false;
  int max_rows_ = 0;    // of a block
  int max_tokens_ = 0;  // of a sentence
  int64_t hidden_stride_, qkv_stride_, embedding_stride_;
  int panel_width_;  // of the layers' weights
  int64_t query_stride_;

  float* output_ = nullptr;
  bool all_layers_ = false;
  const PoolingPlan* plan_ = nullptr;
  Profile* profile_ = nullptr;
  Interrupt interrupt_;
  const std::thread::id caller_ = std::this_thread::get_id();
  mutable std::atomic<bool> given_up_{false};
};

}  // namespace fastsal
