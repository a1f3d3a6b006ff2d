// Runs the encoder from several threads at once, with shared and single blocks, every precision and pooling way, and
// compares with the serial results to the bit. Built with a sanitizer by `make sanitize`.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "dispatch.h"
#include "encoder.h"
#include "pooling.h"
#include "self_check.h"
#include "threads.h"

using namespace fastsal;

namespace {

constexpr int kHeads = 3, kHeadSize = 11, kHidden = kHeads * kHeadSize, kInner = 390, kEmbedding = 17, kRows = 300;
constexpr int kCallers = 4, kCalls = 6;

std::mt19937 generator(0);

std::vector<float> normal(size_t count, float scale) {
  std::normal_distribution<float> draw(0.f, scale);
  std::vector<float> values(count);
  for (float& value : values) value = draw(generator);
  return values;
}

struct Arrays {
  std::vector<std::vector<float>> all;
  const float* make(size_t count, float scale) {
    all.push_back(normal(count, scale));
    return all.back().data();
  }
  LinearView linear(int rows, int columns) {
    return {make(static_cast<size_t>(rows) * columns, 0.1f), make(static_cast<size_t>(rows), 0.1f), rows, columns};
  }
  NormView norm(int size) { return {make(static_cast<size_t>(size), 1.f), make(static_cast<size_t>(size), 0.1f)}; }
};

struct Tokens {
  std::vector<int64_t> ids, positions, types, bounds{0};
  explicit Tokens(const std::vector<int>& lengths) {
    for (int length : lengths) {
      for (int t = 0; t < length; ++t) {
        ids.push_back((t * 7 + length) % kRows);
        positions.push_back(t);
        types.push_back(t % 2);
      }
      bounds.push_back(static_cast<int64_t>(ids.size()));
    }
  }
  Batch batch() const {
    return {ids.data(),
            nullptr,
            positions.data(),
            types.data(),
            bounds.data(),
            static_cast<int64_t>(ids.size()),
            static_cast<int64_t>(bounds.size()) - 1};
  }
};

int check(const Kernels& kernels, Precision precision) {
  Arrays arrays;
  WeightsView weights;
  weights.words = arrays.make(kRows * kEmbedding, 1.f);
  weights.positions = arrays.make(kRows * kEmbedding, 1.f);
  weights.types = arrays.make(2 * kEmbedding, 1.f);
  weights.embedding_norm = arrays.norm(kEmbedding);
  weights.mapping = arrays.linear(kHidden, kEmbedding);
  const float* smoothing = arrays.make(kHidden, 0.f);
  for (float& value : arrays.all.back()) value = 0.5f;
  weights.layers.push_back({arrays.linear(kHidden, kHidden), arrays.linear(kHidden, kHidden),
                            arrays.linear(kHidden, kHidden), arrays.linear(kHidden, kHidden), arrays.norm(kHidden),
                            arrays.linear(kInner, kHidden), arrays.linear(kHidden, kInner), arrays.norm(kHidden),
                            smoothing, smoothing});
  const EncoderSpec spec{kRows,  kRows,     2,     kEmbedding, kHidden, kHeads, kHeadSize, kInner, Activation::gelu,
                         1e-12f, precision, {0, 0}};
  const Encoder encoder(kernels, spec, weights, 2);

  const ConvolutionView convolution{arrays.make(20 * kHidden * 3, 0.1f), arrays.make(20, 0.1f), 20, 3, 1};
  const std::vector<Pooling> poolings = [&] {
    std::vector<Pooling> list;
    list.emplace_back(kernels, kHidden, std::vector<int>{kCls}, std::vector<ConvolutionView>{}, 0, true);
    list.emplace_back(kernels, kHidden, std::vector<int>{kWeightedMean, kLastToken}, std::vector<ConvolutionView>{}, 0,
                      true);
    list.emplace_back(kernels, kHidden, std::vector<int>{kMax, kMean}, std::vector<ConvolutionView>{}, 1, false);
    list.emplace_back(kernels, kHidden, std::vector<int>{kMean}, std::vector<ConvolutionView>{convolution}, 0, true);
    list.emplace_back(kernels, kHidden, std::vector<int>{kMax}, std::vector<ConvolutionView>{convolution}, 0, false);
    return list;
  }();
  const std::vector<Tokens> inputs = {Tokens({}),       Tokens({0, 0}),
                                      Tokens({12}),     Tokens({1, 0, 40, 3}),
                                      Tokens({250, 7}), Tokens(std::vector<int>(40, 13)),
                                      Tokens({300})};
  int wrong = 0;
  for (const Tokens& tokens : inputs) {
    const size_t floats = tokens.ids.size() * kHidden;
    std::vector<float> serial(3 * floats), shared(3 * floats), last(floats);
    encoder.hidden_states(tokens.batch(), true, serial.data(), 1);
    encoder.hidden_states(tokens.batch(), true, shared.data(), 3);
    encoder.hidden_states(tokens.batch(), false, last.data(), 2);
    wrong += serial != shared || !std::equal(last.begin(), last.end(), serial.end() - static_cast<ptrdiff_t>(floats));
  }
  for (const Pooling& pooling : poolings) {
    for (const Tokens& tokens : inputs) {
      const size_t floats = static_cast<size_t>((tokens.bounds.size() - 1) * pooling.output_size());
      std::vector<float> expected(floats);
      encoder.sentence_embeddings(tokens.batch(), pooling, expected.data(), 1);
      std::vector<int> failures(kCallers, 0);
      std::vector<std::thread> callers;
      for (int caller = 0; caller < kCallers; ++caller)
        callers.emplace_back([&, caller] {
          std::vector<float> output(floats);
          for (int call = 0; call < kCalls; ++call) {
            encoder.sentence_embeddings(tokens.batch(), pooling, output.data(), 1 + (caller + call) % 3);
            failures[static_cast<size_t>(caller)] +=
                std::memcmp(output.data(), expected.data(), floats * sizeof(float)) != 0;
          }
        });
      for (std::thread& caller : callers) caller.join();
      for (int count : failures) wrong += count;
    }
  }
  return wrong;
}

// On memory of exactly the needed size: each row alone, and a team's shares, against all at once.
int check_plain_linear(const Kernels& kernels) {
  int wrong = 0;
  for (int columns : {1, kernels.lanes - 1, kernels.lanes, kernels.lanes + 1, 33})
    for (int rows = 0; rows < 10; ++rows) {
      const int outputs = rows + columns % 7 + 1;
      const std::vector<float> input = normal(static_cast<size_t>(rows * columns), 1.f);
      const std::vector<float> weight = normal(static_cast<size_t>(outputs * columns), 1.f);
      const std::vector<float> bias = normal(static_cast<size_t>(outputs), 1.f);
      std::vector<float> whole(static_cast<size_t>(rows * outputs)), parts(whole.size());
      const PlainLinearTask task{input.data(), columns, rows,    weight.data(), bias.data(),
                                 columns,      0,       outputs, whole.data(),  outputs};
      kernels.plain_linear(task);
      run_team(3, [&](const Team& team) {
        const Range mine = share(outputs, team);
        for (int row = 0; row < rows; ++row) {
          PlainLinearTask part = task;
          part.input += row * columns;
          part.rows = 1;
          part.output = parts.data() + row * outputs;
          part.first_output = static_cast<int>(mine.begin);
          part.last_output = static_cast<int>(mine.end);
          kernels.plain_linear(part);
        }
      });
      wrong += whole != parts;
    }
  return wrong;
}

// The check that guards an instruction set accepts what is right and notices a product that is not.
int check_self_check(const Kernels& kernels) {
  if (!kernels.layout(Precision::bfloat16).operand_bytes || !kernels.layout(Precision::int8).native) return 0;
  static void (*linear)(const LinearTask&);
  linear = kernels.linear;
  Kernels broken = kernels;
  broken.linear = [](const LinearTask& task) {
    linear(task);
    task.output[task.output_stride * (task.rows - 1)] += 1.f;
  };
  return !self_check(kernels).empty() + self_check(broken).empty();
}

}  // namespace

int main() {
  int wrong = 0;
  for (const InstructionSet& set : instruction_sets()) {
    if (!set.runs_here) continue;
    wrong += check_plain_linear(*set.kernels) + check_self_check(*set.kernels);
    for (Precision precision : {Precision::float32, Precision::bfloat16, Precision::int8})
      wrong += check(*set.kernels, precision);
    std::printf("%s: %d results differ so far\n", set.kernels->name, wrong);
  }
  return wrong != 0;
}
