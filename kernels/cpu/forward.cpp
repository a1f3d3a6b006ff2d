#include "forward.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "packing.h"

namespace fastsal {
namespace {

// Tokens of a block: enough rows to hide the weights' way from L3, few enough that activations stay in L2.
constexpr int64_t kBlockTokens = 128;

// A block shared by all threads is larger, so that fewer barriers are met.
constexpr int64_t kSharedBlockTokens = 256;

// Threads share blocks where with a block for each the longest would work for more than this factor of the mean:
// sharing costs 0..6 % (benchmarks/test_cpu_schemes.py).
constexpr double kMaxImbalance = 1.05;

Operand rows_of(const float* input, int64_t stride) {
  return {input, stride * static_cast<int64_t>(sizeof(float)), nullptr, 0};
}

LinearTask linear_task(const PackedLinear& weights, const Operand& input, float* output, int64_t output_stride,
                       int rows) {
  return {&weights, input, output, output_stride, rows, 0, weights.in_features, 0, 0, 0, Activation::linear};
}

}  // namespace

ForwardPass::ForwardPass(const Encoder& encoder, const Batch& batch, int threads, Scheme scheme)
    : encoder_(encoder),
      kernels_(encoder.kernels_),
      spec_(encoder.spec_),
      batch_(batch),
      threads_(std::max(threads, 1)),
      hidden_stride_(stride_of(spec_.hidden_size, kernels_.lanes)),
      qkv_stride_(stride_of(3 * int64_t{spec_.hidden_size}, kernels_.lanes)),
      embedding_stride_(stride_of(spec_.embedding_size, kernels_.lanes)),
      panel_width_(kernels_.layout(spec_.precision).panel_width),
      query_stride_(stride_of(round_up(spec_.hidden_size, panel_width_), kernels_.lanes)) {
  plan_blocks(scheme);
}

void ForwardPass::plan_blocks(Scheme scheme) {
  const auto cut = [&](int64_t target) { return cut_into_blocks(batch_.cu_seqlens, batch_.num_sentences, target); };
  const int64_t rounds = (batch_.num_tokens + threads_ * kBlockTokens - 1) / (threads_ * kBlockTokens);
  const int64_t target = rounds > 0 ? (batch_.num_tokens + rounds * threads_ - 1) / (rounds * threads_) : kBlockTokens;
  blocks_ = cut(target);
  share_blocks_ = scheme == Scheme::by_cost ? threads_ > 1 && imbalance(blocks_, threads_) > kMaxImbalance
                                            : scheme == Scheme::shared_blocks;
  if (share_blocks_) blocks_ = cut(kSharedBlockTokens);
  for (const Block& block : blocks_) max_rows_ = std::max(max_rows_, block.rows);
  for (int64_t s = 0; s < batch_.num_sentences; ++s)
    max_tokens_ = std::max(max_tokens_, static_cast<int>(tokens_of(s)));
}

void ForwardPass::hidden_states(bool all_layers, float* output) {
  output_ = output;
  all_layers_ = all_layers;
  run();
}

void ForwardPass::sentence_embeddings(const Pooling& pooling, float* output) {
  const bool no_layer = spec_.layer_schedule.empty();  // that could select a row
  const PoolingWay way = no_layer && pooling.way() == PoolingWay::one_row ? PoolingWay::positions : pooling.way();
  const PoolingPlan plan(pooling, way, batch_.cu_seqlens, blocks_, hidden_stride_);
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

ForwardPass::Workspace ForwardPass::carve(float* memory, int members) const {
  Workspace space;
  const auto take = [&](int64_t floats) {
    float* part = memory ? memory + space.floats : nullptr;
    space.floats += round_up(floats, 16);
    return part;
  };
  const int64_t rows = max_rows_;
  const auto take_operand = [&](int columns) {
    const int entry = kernels_.layout(spec_.precision).operand_bytes;
    OperandBuffer buffer;
    buffer.row_bytes = operand_row_bytes(columns, entry);
    buffer.scales_stride = rows;
    buffer.rows = reinterpret_cast<char*>(take(entry ? rows * buffer.row_bytes / 4 : 0));
    buffer.scales = take(spec_.precision == Precision::int8 ? rows * scales_of(columns, kSmallestGroup) : 0);
    return buffer;
  };
  space.hidden = take(rows * hidden_stride_);
  space.update = take(rows * hidden_stride_);
  space.qkv = take(rows * std::max(qkv_stride_, embedding_stride_));
  space.feed_forward = take(rows * stride_of(feed_forward_columns(members), kernels_.lanes));
  space.operand = take_operand(spec_.hidden_size);
  space.feed_forward_operand = take_operand(feed_forward_columns(members));
  space.queries = nullptr;
  space.convolution_input = nullptr;
  if (plan_) {
    const Pooling& pooling = plan_->pooling;
    if (plan_->way == PoolingWay::one_row)
      space.queries = take(plan_->max_sentences * query_stride_);
    else if (plan_->way == PoolingWay::window_sums)
      space.convolution_input = take(plan_->max_sentences * pooling.max_kernel_size * pooling.input_columns);
    else if (!pooling.convolutions.empty())
      space.convolution_input = take(plan_->max_input_rows * pooling.input_columns);
  }
  space.member_scratch = take(0);
  return space;
}

int64_t ForwardPass::workspace_floats(int members) const {
  return carve(nullptr, members).floats + members * member_floats();
}

int64_t ForwardPass::member_floats() const {
  int64_t floats = kernels_.attention_scratch(spec_.precision, max_tokens_, spec_.head_size);
  if (plan_ && !plan_->pooling.convolutions.empty())
    floats = std::max(floats, std::max(plan_->max_positions, plan_->max_sentences) * float_panel_width());
  return round_up(floats, 16);
}

float* ForwardPass::scratch_of(const Workspace& space, const Team& team) const {
  return space.member_scratch + team.member * member_floats();
}

void ForwardPass::ask_whether_to_give_up() const {
  if (interrupt_ && std::this_thread::get_id() == caller_ && interrupt_())
    given_up_.store(true, std::memory_order_relaxed);
}

void ForwardPass::run() {
  if (blocks_.empty()) return;
  run_blocks();
  if (given_up_.load(std::memory_order_relaxed)) throw Interrupted();
}

void ForwardPass::run_blocks() {
  if (share_blocks_) {
    // The team may turn out smaller; the memory is laid out for the largest.
    const Scratch memory(workspace_floats(threads_));
    const Workspace space = carve(memory.data(), threads_);
    run_team(threads_, [&](const Team& team) {
      for (size_t i = 0; i < blocks_.size() && run_block(i, space, team); ++i) {
      }
    });
    return;
  }
  const int members = static_cast<int>(std::min<size_t>(static_cast<size_t>(threads_), blocks_.size()));
  std::vector<Scratch> memory;
  for (int i = 0; i < members; ++i) memory.emplace_back(workspace_floats(1));
  std::atomic<size_t> next{0};
  run_team(members, [&](const Team& team) {
    const Workspace space = carve(memory[static_cast<size_t>(team.member)].data(), 1);
    size_t i = next.fetch_add(1);
    while (i < blocks_.size() && run_block(i, space, Team())) i = next.fetch_add(1);
  });
}

bool ForwardPass::run_block(size_t index, const Workspace& space, const Team& team) const {
  const Block& block = blocks_[index];
  embed(block, space, team);
  if (all_layers_) copy_out(block, 0, space, team);
  const size_t num_layers = spec_.layer_schedule.size();
  for (size_t i = 0; i < num_layers; ++i) {
    const Encoder::Layer& layer = encoder_.layers_[static_cast<size_t>(spec_.layer_schedule[i])];
    if (plan_ && plan_->way == PoolingWay::one_row && i + 1 == num_layers)
      run_selected_layer(index, layer, space, team);
    else
      run_layer(block, layer, space, team);
    // All members see the same: between this and the next time that it is written lies a barrier of the next layer.
    if (given_up_.load(std::memory_order_relaxed)) return false;
    if (all_layers_) copy_out(block, static_cast<int>(i) + 1, space, team);
  }
  if (plan_)
    pool(index, space, team);
  else if (!all_layers_)
    copy_out(block, 0, space, team);
  team.wait();  // the next block reuses the memory
  return true;
}

void ForwardPass::embed(const Block& block, const Workspace& space, const Team& team) const {
  const Range rows = share(block.rows, team);
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
  {
    const PartTimer timer(profile_, kEmbeddings);
    kernels_.embed(task);
  }
  team.wait();
  if (!maps) return;
  const Operand input = rows_of(space.qkv, embedding_stride_);
  linear(linear_task(encoder_.mapping_, input, space.hidden, hidden_stride_, block.rows), 0,
         encoder_.mapping_.num_panels, team);
}

// The rows in the format that the encoder's precision multiplies: converted, or as they are.
Operand ForwardPass::operand(const float* input, int64_t stride, int columns, const PackedLinear& weights, int rows,
                             const OperandBuffer& buffer, const Team& team) const {
  const PartTimer timer(profile_, kConversions);
  if (kernels_.layout(spec_.precision).operand_bytes == 0) return rows_of(input, stride);
  const Range mine = share(rows, team);
  kernels_.convert({input + mine.begin * stride, stride, static_cast<int>(mine.end - mine.begin), columns, &weights,
                    buffer.rows + mine.begin * buffer.row_bytes, buffer.row_bytes, buffer.scales + mine.begin,
                    buffer.scales_stride});
  team.wait();
  return {buffer.rows, buffer.row_bytes, buffer.scales, buffer.scales_stride};
}

// The team shares the panels [first_panel, last_panel).
void ForwardPass::linear(LinearTask task, int first_panel, int last_panel, const Team& team) const {
  const PartTimer timer(profile_, kProducts);
  const Range panels = share(last_panel - first_panel, team);
  task.first_panel = first_panel + static_cast<int>(panels.begin);
  task.last_panel = first_panel + static_cast<int>(panels.end);
  kernels_.linear(task);
  team.wait();
}

void ForwardPass::add_and_norm(const NormWeights& norm, int rows, const Workspace& space, const Team& team) const {
  const PartTimer timer(profile_, kNorms);
  const Range mine = share(rows, team);
  kernels_.layer_norm({space.hidden + mine.begin * hidden_stride_, hidden_stride_,
                       space.update + mine.begin * hidden_stride_, hidden_stride_,
                       static_cast<int>(mine.end - mine.begin), spec_.hidden_size, norm});
  team.wait();
}

void ForwardPass::run_layer(const Block& block, const Encoder::Layer& layer, const Workspace& space,
                            const Team& team) const {
  const int hidden = spec_.hidden_size;
  const Operand input = operand(space.hidden, hidden_stride_, hidden, layer.qkv, block.rows, space.operand, team);
  linear(linear_task(layer.qkv, input, space.qkv, qkv_stride_, block.rows), 0, layer.qkv.num_panels, team);

  attend(block, space, team);
  finish_layer(layer, space.qkv, qkv_stride_, block.rows, space, team);
}

void ForwardPass::attend(const Block& block, const Workspace& space, const Team& team) const {
  ask_whether_to_give_up();
  const PartTimer timer(profile_, kAttention);
  const int64_t heads = spec_.num_heads;
  const int hidden = spec_.hidden_size;
  const Range items = share((block.last_sentence - block.first_sentence) * heads, team);
  for (int64_t item = items.begin; item < items.end; ++item) {
    const int64_t s = block.first_sentence + item / heads;
    const int tokens = static_cast<int>(tokens_of(s));
    if (tokens == 0) continue;
    float* query = space.qkv + (batch_.cu_seqlens[s] - block.first_row) * qkv_stride_ + item % heads * spec_.head_size;
    kernels_.attention({query, qkv_stride_, tokens, query + hidden, query + 2 * hidden, qkv_stride_, tokens,
                        spec_.head_size, spec_.precision, scratch_of(space, team)});
  }
  team.wait();
}

// The last layer where one token of each sentence is wanted: keys and values of all tokens, all else of that token.
// Leaves one row in `hidden` for each sentence that has tokens.
void ForwardPass::run_selected_layer(size_t index, const Encoder::Layer& layer, const Workspace& space,
                                     const Team& team) const {
  const Block& block = blocks_[index];
  const int hidden = spec_.hidden_size;
  const int width = panel_width_;
  Operand input = operand(space.hidden, hidden_stride_, hidden, layer.qkv, block.rows, space.operand, team);
  linear(linear_task(layer.qkv, input, space.qkv, qkv_stride_, block.rows), hidden / width, layer.qkv.num_panels, team);

  const size_t first = static_cast<size_t>(plan_->first_position[index]);
  const int rows = static_cast<int>(static_cast<size_t>(plan_->first_position[index + 1]) - first);
  const auto sentence_of = [&](int64_t row) {
    return block.first_sentence + plan_->sentence[first + static_cast<size_t>(row)];
  };
  if (team.member == 0) {
    for (int r = 0; r < rows; ++r) {
      const int64_t token = plan_->position[first + static_cast<size_t>(r)];
      const int64_t from = batch_.cu_seqlens[sentence_of(r)] - block.first_row + token;
      std::memmove(space.hidden + r * hidden_stride_, space.hidden + from * hidden_stride_,
                   static_cast<size_t>(hidden_stride_) * sizeof(float));
    }
  }
  team.wait();
  input = operand(space.hidden, hidden_stride_, hidden, layer.qkv, rows, space.operand, team);
  linear(linear_task(layer.qkv, input, space.queries, query_stride_, rows), 0, (hidden + width - 1) / width, team);

  const int64_t heads = spec_.num_heads;
  const Range items = share(rows * heads, team);
  for (int64_t item = items.begin; item < items.end; ++item) {
    const int64_t s = sentence_of(item / heads);
    const int64_t column = item % heads * spec_.head_size;
    const float* keys = space.qkv + (batch_.cu_seqlens[s] - block.first_row) * qkv_stride_ + hidden + column;
    kernels_.attention({space.queries + item / heads * query_stride_ + column, query_stride_, 1, keys, keys + hidden,
                        qkv_stride_, static_cast<int>(tokens_of(s)), spec_.head_size, spec_.precision,
                        scratch_of(space, team)});
  }
  team.wait();
  finish_layer(layer, space.queries, query_stride_, rows, space, team);
}

// From the attention's context to the layer's output, for the first `rows` rows of `hidden`.
void ForwardPass::finish_layer(const Encoder::Layer& layer, const float* context, int64_t context_stride, int rows,
                               const Workspace& space, const Team& team) const {
  const int hidden = spec_.hidden_size;
  Operand input = operand(context, context_stride, hidden, layer.attention_output, rows, space.operand, team);
  linear(linear_task(layer.attention_output, input, space.update, hidden_stride_, rows), 0,
         layer.attention_output.num_panels, team);
  add_and_norm(layer.attention_norm, rows, space, team);

  input = operand(space.hidden, hidden_stride_, hidden, layer.up, rows, space.operand, team);
  const int chunk = feed_forward_columns(team.members);
  const int64_t stride = stride_of(chunk, kernels_.lanes);
  for (int column = 0; column < spec_.intermediate_size; column += chunk) {
    const int end = std::min(column + chunk, spec_.intermediate_size);
    LinearTask up = linear_task(layer.up, input, space.feed_forward, stride, rows);
    up.base_panel = column / panel_width_;
    up.activation = spec_.activation;
    linear(up, up.base_panel, (end + panel_width_ - 1) / panel_width_, team);

    const Operand activated =
        operand(space.feed_forward, stride, end - column, layer.down, rows, space.feed_forward_operand, team);
    LinearTask down = linear_task(layer.down, activated, space.update, hidden_stride_, rows);
    down.k_begin = column;
    down.k_end = end;
    linear(down, 0, layer.down.num_panels, team);
  }
  add_and_norm(layer.output_norm, rows, space, team);
}

void ForwardPass::copy_out(const Block& block, int state, const Workspace& space, const Team& team) const {
  const Range rows = share(block.rows, team);
  const int64_t columns = spec_.hidden_size;
  float* output = output_ + (static_cast<int64_t>(state) * batch_.num_tokens + block.first_row) * columns;
  for (int64_t r = rows.begin; r < rows.end; ++r)
    std::memcpy(output + r * columns, space.hidden + r * hidden_stride_, static_cast<size_t>(columns) * sizeof(float));
}

}  // namespace fastsal
