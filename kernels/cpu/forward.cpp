#include "forward.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <stdexcept>
#include <string>

#include "packing.h"

namespace fastsal {
namespace {

// Tokens of a block: enough rows to hide the weights' way from L3, few enough that activations stay in L2.
constexpr int64_t kBlockTokens = 128;

// A block shared by all threads is larger, so that fewer barriers are met.
constexpr int64_t kSharedBlockTokens = 256;

// Threads share blocks where a block per thread would leave them waiting for longer than this factor of the mean load.
constexpr double kMaxImbalance = 1.15;

struct Range {
  int64_t begin, end;
};

Range share(int64_t count, int member, int members) {
  return {count * member / members, count * (member + 1) / members};
}

// Rows apart by whole vectors and one more: a stride of a power of two would put a tile's rows into one cache set, and
// the attention kernel may read a vector past a row's end.
int64_t stride_of(int64_t columns, int lanes) { return round_up(columns, lanes) + lanes; }

// Likewise; the kernels write whole vectors and read whole groups of four entries.
int64_t operand_row_bytes(int64_t columns, int entry) { return round_up(columns * entry, 64) + 64; }

Operand rows_of(const float* input, int64_t stride) {
  return {input, stride * static_cast<int64_t>(sizeof(float)), nullptr, 0};
}

std::vector<Block> cut_into_blocks(const Batch& batch, int64_t target) {
  std::vector<Block> blocks;
  Block block{0, 0, 0, 0};
  for (int64_t s = 0; s < batch.num_sentences; ++s) {
    const int64_t tokens = batch.cu_seqlens[s + 1] - batch.cu_seqlens[s];
    if (block.rows > 0 && block.rows + tokens - tokens / 2 > target) {
      blocks.push_back(block);
      block = {s, s, batch.cu_seqlens[s], 0};
    }
    block.last_sentence = s + 1;
    block.rows += static_cast<int>(tokens);
  }
  if (block.last_sentence > block.first_sentence) blocks.push_back(block);
  return blocks;
}

// The largest load of a thread over the mean load, when the next free thread takes the next block.
double imbalance(const std::vector<Block>& blocks, int threads) {
  std::vector<int64_t> load(static_cast<size_t>(threads), 0);
  int64_t total = 0;
  for (const Block& block : blocks) {
    *std::min_element(load.begin(), load.end()) += block.rows;
    total += block.rows;
  }
  if (total == 0) return 1;
  return static_cast<double>(*std::max_element(load.begin(), load.end())) * threads / static_cast<double>(total);
}

}  // namespace

PoolingPlan::PoolingPlan(const Pooling& pooling_, const Batch& batch, const std::vector<Block>& blocks,
                         int64_t hidden_stride)
    : pooling(pooling_) {
  const std::vector<PackedConvolution>& convolutions = pooling.convolutions_;
  row_offset.resize(std::max<size_t>(convolutions.size(), 1));
  for (const Block& block : blocks) {
    first_position.push_back(static_cast<int64_t>(position.size()));
    int64_t row = pooling.max_padding_;  // of the sentence in the block's (zero-padded) input
    for (int64_t s = block.first_sentence; s < block.last_sentence; ++s) {
      const int64_t tokens = batch.cu_seqlens[s + 1] - batch.cu_seqlens[s];
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
      for (int64_t t = 0; t < length; ++t) {
        sentence.push_back(static_cast<int32_t>(s - block.first_sentence));
        position.push_back(static_cast<int32_t>(t));
        if (convolutions.empty()) row_offset[0].push_back((row + t) * hidden_stride);
        for (size_t c = 0; c < convolutions.size(); ++c)
          row_offset[c].push_back((row + t * convolutions[c].stride - convolutions[c].padding) *
                                  pooling.input_columns_);
      }
      lengths.push_back(static_cast<int32_t>(length));
      row += tokens + pooling.max_padding_;
    }
    max_positions = std::max(max_positions, static_cast<int64_t>(position.size()) - first_position.back());
    max_input_rows = std::max(max_input_rows, row);
  }
  first_position.push_back(static_cast<int64_t>(position.size()));
}

ForwardPass::ForwardPass(const Encoder& encoder, const Batch& batch, int threads)
    : encoder_(encoder),
      kernels_(encoder.kernels_),
      spec_(encoder.spec_),
      batch_(batch),
      threads_(std::max(threads, 1)),
      hidden_stride_(stride_of(spec_.hidden_size, kernels_.lanes)),
      qkv_stride_(stride_of(3 * int64_t{spec_.hidden_size}, kernels_.lanes)),
      embedding_stride_(stride_of(spec_.embedding_size, kernels_.lanes)) {
  plan_blocks();
}

void ForwardPass::plan_blocks() {
  const int64_t rounds = (batch_.num_tokens + threads_ * kBlockTokens - 1) / (threads_ * kBlockTokens);
  const int64_t target = rounds > 0 ? (batch_.num_tokens + rounds * threads_ - 1) / (rounds * threads_) : kBlockTokens;
  blocks_ = cut_into_blocks(batch_, target);
  share_blocks_ = threads_ > 1 && imbalance(blocks_, threads_) > kMaxImbalance;
  if (share_blocks_) blocks_ = cut_into_blocks(batch_, kSharedBlockTokens);
  for (const Block& block : blocks_) max_rows_ = std::max(max_rows_, block.rows);
  for (int64_t s = 0; s < batch_.num_sentences; ++s)
    max_tokens_ = std::max(max_tokens_, static_cast<int>(batch_.cu_seqlens[s + 1] - batch_.cu_seqlens[s]));
}

void ForwardPass::hidden_states(bool all_layers, float* output) {
  output_ = output;
  all_layers_ = all_layers;
  run();
}

void ForwardPass::sentence_embeddings(const Pooling& pooling, float* output) {
  const PoolingPlan plan(pooling, batch_, blocks_, hidden_stride_);
  output_ = output;
  plan_ = &plan;
  run();
}

// The feed-forward layer is computed chunk by chunk of its columns while they are in cache. A team shares all columns
// of a small block at once, since each chunk costs two barriers.
int ForwardPass::feed_forward_columns(int members) const {
  return members > 1 && max_rows_ <= kBlockTokens ? spec_.intermediate_size
                                                  : std::min(spec_.intermediate_size, kSumChunk);
}

int64_t ForwardPass::workspace_floats(int members) const {
  return carve(nullptr, members).floats + members * member_floats();
}

int64_t ForwardPass::member_floats() const {
  int64_t floats = kernels_.attention_scratch(max_tokens_, spec_.head_size);
  if (plan_ && !plan_->pooling.convolutions_.empty())
    floats = std::max(floats, plan_->max_positions * kernels_.panel_width);
  return round_up(floats, 16);
}

ForwardPass::Workspace ForwardPass::carve(float* memory, int members) const {
  Workspace space;
  const auto take = [&](int64_t floats) {
    float* part = memory ? memory + space.floats : nullptr;
    space.floats += round_up(floats, 16);
    return part;
  };
  const int64_t rows = max_rows_;
  space.hidden = take(rows * hidden_stride_);
  space.update = take(rows * hidden_stride_);
  space.qkv = take(rows * std::max(qkv_stride_, embedding_stride_));
  space.feed_forward = take(rows * stride_of(feed_forward_columns(members), kernels_.lanes));
  const auto take_operand = [&](int columns) {
    const int entry = kernels_.operand_bytes[static_cast<int>(spec_.precision)];
    OperandBuffer buffer;
    buffer.row_bytes = operand_row_bytes(columns, entry);
    buffer.scales_stride = 2 * groups_of(columns);
    buffer.rows = reinterpret_cast<char*>(take(entry ? rows * buffer.row_bytes / 4 : 0));
    buffer.scales = take(spec_.precision == Precision::int8 ? rows * buffer.scales_stride : 0);
    return buffer;
  };
  space.operand = take_operand(spec_.hidden_size);
  space.feed_forward_operand = take_operand(feed_forward_columns(members));
  const bool convolves = plan_ && !plan_->pooling.convolutions_.empty();
  space.convolution_input = take(convolves ? plan_->max_input_rows * plan_->pooling.input_columns_ : 0);
  space.member_scratch = take(0);
  return space;
}

void ForwardPass::run() {
  if (blocks_.empty()) return;
  if (share_blocks_) {
    // The team may turn out smaller; the memory is laid out for the largest.
    const Scratch memory(workspace_floats(threads_));
    const Workspace space = carve(memory.data(), threads_);
    run_team(threads_, [&](const Team& team) {
      for (size_t i = 0; i < blocks_.size(); ++i) run_block(i, space, team);
    });
    return;
  }
  const int members = static_cast<int>(std::min<size_t>(static_cast<size_t>(threads_), blocks_.size()));
  std::vector<Scratch> memory;
  for (int i = 0; i < members; ++i) memory.emplace_back(workspace_floats(1));
  std::atomic<size_t> next{0};
  run_team(members, [&](const Team& team) {
    const Workspace space = carve(memory[static_cast<size_t>(team.member)].data(), 1);
    for (size_t i = next.fetch_add(1); i < blocks_.size(); i = next.fetch_add(1)) run_block(i, space, Team());
  });
}

void ForwardPass::run_block(size_t index, const Workspace& space, const Team& team) const {
  const Block& block = blocks_[index];
  const Range rows = share(block.rows, team.member, team.members);
  const int64_t token = block.first_row + rows.begin;
  const bool maps = encoder_.mapping_.panels != nullptr;
  EmbeddingTask task;
  task.words = batch_.ids ? encoder_.words_ : batch_.vectors + token * spec_.embedding_size;
  task.positions = encoder_.positions_;
  task.types = encoder_.types_;
  task.ids = batch_.ids ? batch_.ids + token : nullptr;
  task.position_ids = batch_.positions + token;
  task.type_ids = batch_.types + token;
  task.output_stride = maps ? embedding_stride_ : hidden_stride_;
  task.output = (maps ? space.qkv : space.hidden) + rows.begin * task.output_stride;
  task.rows = static_cast<int>(rows.end - rows.begin);
  task.columns = spec_.embedding_size;
  task.norm = encoder_.embedding_norm_;
  kernels_.embed(task);
  team.wait();
  if (maps)
    linear(encoder_.mapping_, rows_of(space.qkv, embedding_stride_), space.hidden, hidden_stride_, block.rows,
           Activation::linear, team);
  if (all_layers_) copy_out(block, 0, space, team);
  const int num_layers = static_cast<int>(spec_.layer_schedule.size());
  for (int layer = 0; layer < num_layers; ++layer) {
    run_layer(block, spec_.layer_schedule[static_cast<size_t>(layer)], space, team);
    if (all_layers_) copy_out(block, layer + 1, space, team);
  }
  if (plan_)
    pool(index, space, team);
  else if (!all_layers_)
    copy_out(block, 0, space, team);
  team.wait();  // the next block reuses the memory
}

// The rows in the format that the encoder's precision multiplies: converted, or as they are.
Operand ForwardPass::operand(const float* input, int64_t stride, int columns, const float* inverse_smoothing, int rows,
                             const OperandBuffer& buffer, const Team& team) const {
  if (kernels_.operand_bytes[static_cast<int>(spec_.precision)] == 0) return rows_of(input, stride);
  const Range mine = share(rows, team.member, team.members);
  kernels_.convert({input + mine.begin * stride, stride, static_cast<int>(mine.end - mine.begin), columns,
                    spec_.precision, inverse_smoothing, buffer.rows + mine.begin * buffer.row_bytes, buffer.row_bytes,
                    buffer.scales + mine.begin * buffer.scales_stride, buffer.scales_stride});
  team.wait();
  return {buffer.rows, buffer.row_bytes, buffer.scales, buffer.scales_stride};
}

void ForwardPass::linear(const PackedLinear& weights, const Operand& input, float* output, int64_t output_stride,
                         int rows, Activation activation, const Team& team) const {
  const Range panels = share(weights.num_panels, team.member, team.members);
  kernels_.linear({&weights, input, output, output_stride, rows, 0, weights.in_features, 0,
                   static_cast<int>(panels.begin), static_cast<int>(panels.end), activation});
  team.wait();
}

void ForwardPass::add_and_norm(const Block& block, const NormWeights& norm, const Workspace& space,
                               const Team& team) const {
  const Range rows = share(block.rows, team.member, team.members);
  kernels_.layer_norm({space.hidden + rows.begin * hidden_stride_, hidden_stride_,
                       space.update + rows.begin * hidden_stride_, hidden_stride_,
                       static_cast<int>(rows.end - rows.begin), spec_.hidden_size, norm});
  team.wait();
}

void ForwardPass::run_layer(const Block& block, int index, const Workspace& space, const Team& team) const {
  const Encoder::Layer& layer = encoder_.layers_[static_cast<size_t>(index)];
  const auto operand_of = [&](const float* input, int64_t stride, int columns, const float* inverse_smoothing,
                              const OperandBuffer& buffer) {
    return operand(input, stride, columns, inverse_smoothing, block.rows, buffer, team);
  };
  const int hidden = spec_.hidden_size;
  Operand input = operand_of(space.hidden, hidden_stride_, hidden, layer.qkv_inverse_smoothing, space.operand);
  linear(layer.qkv, input, space.qkv, qkv_stride_, block.rows, Activation::linear, team);
  attend(block, space, team);
  input = operand_of(space.qkv, qkv_stride_, hidden, nullptr, space.operand);
  linear(layer.attention_output, input, space.update, hidden_stride_, block.rows, Activation::linear, team);
  add_and_norm(block, layer.attention_norm, space, team);

  input = operand_of(space.hidden, hidden_stride_, hidden, layer.up_inverse_smoothing, space.operand);
  const int chunk = feed_forward_columns(team.members);
  const int64_t stride = stride_of(chunk, kernels_.lanes);
  for (int column = 0; column < spec_.intermediate_size; column += chunk) {
    const int end = std::min(column + chunk, spec_.intermediate_size);
    const int first_panel = column / kernels_.panel_width;
    const int last_panel = (end + kernels_.panel_width - 1) / kernels_.panel_width;
    Range panels = share(last_panel - first_panel, team.member, team.members);
    kernels_.linear({&layer.up, input, space.feed_forward, stride, block.rows, 0, hidden, first_panel,
                     first_panel + static_cast<int>(panels.begin), first_panel + static_cast<int>(panels.end),
                     spec_.activation});
    team.wait();
    const Operand activated = operand_of(space.feed_forward, stride, end - column, nullptr, space.feed_forward_operand);
    panels = share(layer.down.num_panels, team.member, team.members);
    kernels_.linear({&layer.down, activated, space.update, hidden_stride_, block.rows, column, end, 0,
                     static_cast<int>(panels.begin), static_cast<int>(panels.end), Activation::linear});
    team.wait();
  }
  add_and_norm(block, layer.output_norm, space, team);
}

void ForwardPass::attend(const Block& block, const Workspace& space, const Team& team) const {
  const int64_t sentences = block.last_sentence - block.first_sentence;
  const Range items = share(sentences * spec_.num_heads, team.member, team.members);
  for (int64_t item = items.begin; item < items.end; ++item) {
    const int64_t s = block.first_sentence + item / spec_.num_heads;
    const int64_t first = batch_.cu_seqlens[s];
    const int tokens = static_cast<int>(batch_.cu_seqlens[s + 1] - first);
    if (tokens == 0) continue;
    kernels_.attention({space.qkv + (first - block.first_row) * qkv_stride_, qkv_stride_, tokens, spec_.hidden_size,
                        static_cast<int>(item % spec_.num_heads), spec_.head_size,
                        space.member_scratch + team.member * member_floats()});
  }
  team.wait();
}

void ForwardPass::copy_out(const Block& block, int state, const Workspace& space, const Team& team) const {
  const Range rows = share(block.rows, team.member, team.members);
  const int64_t columns = spec_.hidden_size;
  float* output = output_ + (static_cast<int64_t>(state) * batch_.num_tokens + block.first_row) * columns;
  for (int64_t r = rows.begin; r < rows.end; ++r)
    std::memcpy(output + r * columns, space.hidden + r * hidden_stride_, static_cast<size_t>(columns) * sizeof(float));
}

void ForwardPass::pool(size_t index, const Workspace& space, const Team& team) const {
  const Block& block = blocks_[index];
  const Pooling& pooling = plan_->pooling;
  const int64_t begin = plan_->first_position[index];
  const int64_t sentences = block.last_sentence - block.first_sentence;
  const int64_t width = pooling.output_size();
  const size_t at = static_cast<size_t>(begin);
  float* output = output_ + block.first_sentence * width;

  PoolingTask task;
  task.sentence = plan_->sentence.data() + at;
  task.position = plan_->position.data() + at;
  task.num_positions = static_cast<int>(plan_->first_position[index + 1] - begin);
  task.lengths = plan_->lengths.data() + block.first_sentence;
  task.num_sentences = static_cast<int>(sentences);
  task.columns = pooling.columns_;
  task.skip = pooling.skip_;
  task.modes = pooling.modes_.data();
  task.num_modes = static_cast<int>(pooling.modes_.size());
  task.output = output;
  task.output_stride = width;
  task.products = space.member_scratch + team.member * member_floats();

  const auto pool_panels = [&](int panels) {
    const Range mine = share(panels, team.member, team.members);
    task.first_panel = static_cast<int>(mine.begin);
    task.last_panel = static_cast<int>(mine.end);
    kernels_.pool(task);
  };
  if (pooling.convolutions_.empty()) {
    task.input = space.hidden;
    task.row_offset = plan_->row_offset[0].data() + at;
    task.convolution = nullptr;
    pool_panels((pooling.columns_ + kernels_.panel_width - 1) / kernels_.panel_width);
  } else {
    const int64_t columns = pooling.input_columns_;
    if (team.member == 0) {
      float* row = space.convolution_input;
      const auto zeros = [&](int64_t count) {
        std::memset(row, 0, static_cast<size_t>(count * columns) * sizeof(float));
        row += count * columns;
      };
      zeros(pooling.max_padding_);
      for (int64_t s = block.first_sentence; s < block.last_sentence; ++s) {
        for (int64_t t = batch_.cu_seqlens[s]; t < batch_.cu_seqlens[s + 1]; ++t, row += columns)
          std::memcpy(row, space.hidden + (t - block.first_row) * hidden_stride_,
                      static_cast<size_t>(columns) * sizeof(float));
        zeros(pooling.max_padding_);
      }
    }
    team.wait();
    task.input = space.convolution_input;
    for (size_t c = 0; c < pooling.convolutions_.size(); ++c) {
      task.row_offset = plan_->row_offset[c].data() + at;
      task.convolution = &pooling.convolutions_[c];
      pool_panels(task.convolution->weights.num_panels);
    }
  }
  if (!pooling.normalize_) return;
  team.wait();
  const Range rows = share(sentences, team.member, team.members);
  for (int64_t s = rows.begin; s < rows.end; ++s) kernels_.normalize(output + s * width, width);
}

}  // namespace fastsal
