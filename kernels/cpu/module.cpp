// Python bindings: tensors come in through DLPack, the forward pass runs without the GIL.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <stdexcept>

#include "content_sample.h"
#include "dispatch.h"
#include "encoder.h"
#include "pooling.h"
#include "roofline.h"
#include "threads.h"

namespace nb = nanobind;

namespace {

using fastsal::Encoder;
using fastsal::Pooling;

template <typename T, int kDimensions>
using Array = nb::ndarray<T, nb::ndim<kDimensions>, nb::c_contig, nb::device::cpu>;
using Floats = Array<const float, 1>;
using Matrix = Array<const float, 2>;
using Ids = Array<const int64_t, 1>;
using LinearArrays = std::pair<Matrix, Floats>;
using NormArrays = std::pair<Floats, Floats>;

[[noreturn]] void wrong(const std::string& name, const std::string& expected, const std::string& got) {
  throw std::invalid_argument(name + " must be " + expected + ", got " + got);
}

std::string shape(int64_t rows, int64_t columns) {
  return "(" + std::to_string(rows) + ", " + std::to_string(columns) + ")";
}

const float* table(const Matrix& matrix, const char* name, int64_t rows, int64_t columns) {
  if (static_cast<int64_t>(matrix.shape(0)) != rows || static_cast<int64_t>(matrix.shape(1)) != columns)
    wrong(name, "of shape " + shape(rows, columns), shape(matrix.shape(0), matrix.shape(1)));
  return matrix.data();
}

fastsal::LinearView linear(const LinearArrays& arrays, const char* name, int rows, int columns) {
  if (static_cast<int64_t>(arrays.second.shape(0)) != rows)
    wrong(name, "with a bias of " + std::to_string(rows) + " values", std::to_string(arrays.second.shape(0)));
  return {table(arrays.first, name, rows, columns), arrays.second.data(), rows, columns};
}

fastsal::NormView norm(const NormArrays& arrays, const char* name, int columns) {
  for (const Floats& values : {arrays.first, arrays.second})
    if (static_cast<int64_t>(values.shape(0)) != columns)
      wrong(name, "of " + std::to_string(columns) + " values", std::to_string(values.shape(0)));
  return {arrays.first.data(), arrays.second.data()};
}

const float* smoothing(const std::optional<Floats>& values, const char* name, int columns) {
  if (values && static_cast<int>(values->shape(0)) != columns)
    wrong(name, "of " + std::to_string(columns) + " values", std::to_string(values->shape(0)));
  return values ? values->data() : nullptr;
}

constexpr std::array<const char*, fastsal::kPrecisions> kPrecisionNames = {"float32", "bfloat16", "int8"};

fastsal::Precision precision_from_name(const std::string& name) {
  for (size_t i = 0; i < kPrecisionNames.size(); ++i)
    if (name == kPrecisionNames[i]) return static_cast<fastsal::Precision>(i);
  throw std::invalid_argument("precision must be 'float32', 'bfloat16' or 'int8', got '" + name + "'");
}

// Fewer multiplications take less time than it takes to wake a thread.
constexpr int64_t kTeamProducts = 1 << 22;

void activate(const fastsal::Kernels& kernels, float* values, int64_t count, fastsal::Activation kind) {
  float vector[64] = {};
  for (int64_t done = 0; done < count; done += kernels.lanes) {
    const size_t bytes = static_cast<size_t>(std::min<int64_t>(kernels.lanes, count - done)) * sizeof(float);
    std::memcpy(vector, values + done, bytes);
    kernels.activate(vector, kernels.lanes, 1, kernels.lanes, kind);
    std::memcpy(values + done, vector, bytes);
  }
}

// The kernels want rows of whole vectors.
void norm_rows(const fastsal::Kernels& kernels, float* rows, int64_t count, int64_t columns,
               const fastsal::NormView& view, float eps) {
  const int64_t padded = (columns + kernels.lanes - 1) / kernels.lanes * kernels.lanes;
  std::vector<float> memory(static_cast<size_t>(4 * padded));
  float *row = memory.data(), *zeros = row + padded, *weight = zeros + padded, *bias = weight + padded;
  std::copy(view.weight, view.weight + columns, weight);
  std::copy(view.bias, view.bias + columns, bias);
  const fastsal::NormTask task{row, padded, zeros, padded, 1, static_cast<int>(columns), {weight, bias, eps}};
  for (float* values = rows; values < rows + count * columns; values += columns) {
    std::copy(values, values + columns, row);
    kernels.layer_norm(task);
    std::copy(row, row + columns, values);
  }
}

// Runs Python's signal handlers every so often while a call runs without the GIL, so that Ctrl-C ends a long one. To
// take the GIL may mean to wait for another thread: not at every layer.
class SignalCheck {
 public:
  bool operator()() {
    const auto now = std::chrono::steady_clock::now();
    if (now - last_ < std::chrono::milliseconds(50)) return false;
    last_ = now;
    nb::gil_scoped_acquire locked;
    return PyErr_CheckSignals() != 0;
  }

 private:
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
};

// Runs `call` without the GIL; what a signal handler raised meanwhile is raised.
template <typename Call>
void interruptible(const Call& call) {
  try {
    nb::gil_scoped_release unlocked;
    call(SignalCheck());
  } catch (const fastsal::Interrupted&) {
    throw nb::python_error();
  }
}

// Keeps the embedding tables alive: the encoder reads them where they are.
struct PyEncoder {
  Matrix words, positions, types;
  std::unique_ptr<Encoder> encoder;
};

// One layer's arrays in running order.
struct LayerArrays {
  LinearArrays query, key, value, attention_output;
  NormArrays attention_norm;
  LinearArrays up, down;
  NormArrays output_norm;
  std::optional<Floats> qkv_smoothing, up_smoothing;
};

fastsal::Batch batch_of(const PyEncoder& self, const std::optional<Ids>& ids, const std::optional<Matrix>& vectors,
                        const Ids& positions, const Ids& types, const Ids& cu_seqlens) {
  const int64_t tokens = static_cast<int64_t>(positions.shape(0));
  if (ids.has_value() == vectors.has_value())
    throw std::invalid_argument("give exactly one of input_ids and inputs_embeds");
  const auto check = [&](int64_t count, const char* name) {
    if (count != tokens) wrong(name, std::to_string(tokens) + " tokens long, as position_ids", std::to_string(count));
  };
  if (ids) check(static_cast<int64_t>(ids->shape(0)), "input_ids");
  if (vectors) {
    check(static_cast<int64_t>(vectors->shape(0)), "inputs_embeds");
    table(*vectors, "inputs_embeds", tokens, self.encoder->spec().embedding_size);
  }
  check(static_cast<int64_t>(types.shape(0)), "token_type_ids");
  if (cu_seqlens.shape(0) == 0) wrong("cu_seqlens", "of at least one value", "none");
  return {ids ? ids->data() : nullptr,
          vectors ? vectors->data() : nullptr,
          positions.data(),
          types.data(),
          cu_seqlens.data(),
          tokens,
          static_cast<int64_t>(cu_seqlens.shape(0)) - 1};
}

int mode_from_name(const std::string& name) {
  const std::vector<std::pair<std::string, fastsal::PoolingMode>> modes = {
      {"cls", fastsal::kCls},
      {"max", fastsal::kMax},
      {"mean", fastsal::kMean},
      {"mean_sqrt_len_tokens", fastsal::kMeanSqrtLength},
      {"weightedmean", fastsal::kWeightedMean},
      {"lasttoken", fastsal::kLastToken},
  };
  for (const auto& [known, mode] : modes)
    if (known == name) return mode;
  throw std::invalid_argument("pooling mode must be one that the kernels know, got '" + name + "'");
}

}  // namespace

NB_MODULE(_cpu, m) {
  m.doc() = "fastsal's CPU kernels";
  nb::set_leak_warnings(false);  // models that live until the interpreter exits are no leak

  nb::class_<fastsal::InstructionSet>(m, "InstructionSet", "An instruction set of this build.")
      .def_prop_ro("name", [](const fastsal::InstructionSet& self) { return std::string(self.kernels->name); })
      .def_ro("runs_here", &fastsal::InstructionSet::runs_here)
      .def_ro("refused", &fastsal::InstructionSet::refused,
              "Why it does not run, though the processor has its instructions; mostly empty.")
      .def_ro("model", &fastsal::InstructionSet::model, "Instructions in plain C++: for tests.")
      .def_prop_ro(
          "native",
          [](const fastsal::InstructionSet& self) {
            std::vector<std::string> names;
            for (size_t precision = 0; precision < kPrecisionNames.size(); ++precision)
              if (self.kernels->layouts[precision].native) names.push_back(kPrecisionNames[precision]);
            return names;
          },
          "The precisions that it multiplies in; others' weights become floats in the kernels.");

  m.def(
      "instruction_sets", [] { return fastsal::instruction_sets(); },
      "This build's instruction sets, fastest first, then the models.");

  m.def(
      "selected_instruction_set", [] { return std::string(fastsal::select_kernels().name); },
      "The instruction set that a new encoder uses: FASTSAL_CPU_ISA if set, else the fastest.");

  m.def(
      "activate",
      [](Array<float, 1> values, const std::string& activation) {
        const fastsal::Kernels& kernels = fastsal::select_kernels();
        const fastsal::Activation kind = fastsal::activation_from_name(activation);
        nb::gil_scoped_release unlocked;
        activate(kernels, values.data(), static_cast<int64_t>(values.shape(0)), kind);
      },
      nb::arg("values").noconvert(), nb::arg("activation"),
      "Applies an activation in place; for tests of its accuracy.");

  m.def(
      "linear",
      [](const Matrix& input, const Matrix& weight, const std::optional<Floats>& bias, Array<float, 2> output,
         const std::string& activation, int threads) {
        const int64_t rows = static_cast<int64_t>(input.shape(0)), columns = static_cast<int64_t>(input.shape(1));
        const int64_t outputs = static_cast<int64_t>(weight.shape(0));
        table(weight, "weight", outputs, columns);
        if (static_cast<int64_t>(output.shape(0)) != rows || static_cast<int64_t>(output.shape(1)) != outputs)
          wrong("output", "of shape " + shape(rows, outputs), shape(output.shape(0), output.shape(1)));
        if (bias && static_cast<int64_t>(bias->shape(0)) != outputs)
          wrong("bias", "of " + std::to_string(outputs) + " values", std::to_string(bias->shape(0)));
        fastsal::PlainLinearTask task{input.data(),
                                      columns,
                                      static_cast<int>(rows),
                                      weight.data(),
                                      bias ? bias->data() : nullptr,
                                      static_cast<int>(columns),
                                      0,
                                      static_cast<int>(outputs),
                                      output.data(),
                                      outputs};
        const fastsal::Kernels& kernels = fastsal::select_kernels();
        const fastsal::Activation kind = fastsal::activation_from_name(activation);
        const bool worth_a_team = rows * outputs * columns >= kTeamProducts;
        nb::gil_scoped_release unlocked;
        fastsal::run_team(worth_a_team ? threads : 1, [&](const fastsal::Team& team) {
          fastsal::PlainLinearTask mine = task;
          const fastsal::Range range = fastsal::share(outputs, team);
          mine.first_output = static_cast<int>(range.begin);
          mine.last_output = static_cast<int>(range.end);
          kernels.plain_linear(mine);
          for (int64_t row = 0; row < rows; ++row)
            activate(kernels, output.data() + row * outputs + range.begin, range.end - range.begin, kind);
        });
      },
      nb::arg("input").noconvert(), nb::arg("weight").noconvert(), nb::arg("bias").noconvert().none(),
      nb::arg("output").noconvert(), nb::arg("activation"), nb::arg("threads"),
      "output = activation(input @ weight.T + bias); a row's result does not depend on the other rows.");

  m.def(
      "layer_norm",
      [](Array<float, 2> rows, const Floats& weight, const Floats& bias, float eps) {
        const int64_t count = static_cast<int64_t>(rows.shape(0)), columns = static_cast<int64_t>(rows.shape(1));
        const fastsal::NormView view = norm({weight, bias}, "layer_norm", static_cast<int>(columns));
        nb::gil_scoped_release unlocked;
        norm_rows(fastsal::select_kernels(), rows.data(), count, columns, view, eps);
      },
      nb::arg("rows").noconvert(), nb::arg("weight").noconvert(), nb::arg("bias").noconvert(), nb::arg("eps"),
      "Applies a LayerNorm to each row, in place.");

  m.def(
      "normalize",
      [](Array<float, 2> rows) {
        const fastsal::Kernels& kernels = fastsal::select_kernels();
        const int64_t count = static_cast<int64_t>(rows.shape(0)), columns = static_cast<int64_t>(rows.shape(1));
        nb::gil_scoped_release unlocked;
        for (int64_t row = 0; row < count; ++row) kernels.normalize(rows.data() + row * columns, columns);
      },
      nb::arg("rows").noconvert(), "Scales each row to L2 norm 1, in place; zeros stay zeros.");

  m.def(
      "content_sample",
      [](const Ids& addresses, const Ids& sizes) {
        if (sizes.shape(0) != addresses.shape(0))
          wrong("sizes", std::to_string(addresses.shape(0)) + " values, as addresses", std::to_string(sizes.shape(0)));
        std::vector<fastsal::Piece> pieces;
        pieces.reserve(addresses.shape(0));
        for (size_t i = 0; i < addresses.shape(0); ++i)
          pieces.push_back({reinterpret_cast<const unsigned char*>(addresses.data()[i]), sizes.data()[i]});
        return fastsal::content_sample(pieces.data(), static_cast<int64_t>(pieces.size()));
      },
      nb::arg("addresses"), nb::arg("sizes"),
      "A number that changes when all of one of these pieces of memory, which must exist, is written anew.");

  m.def(
      "peak_rate",
      [](const std::string& precision) {
        const fastsal::Precision wanted = precision_from_name(precision);
        nb::gil_scoped_release unlocked;
        return fastsal::peak_rate(fastsal::select_kernels(), wanted);
      },
      nb::arg("precision"), "Operations per second of one core with all operands in registers.");

  m.def(
      "product_rate",
      [](const std::string& precision, int rows, int in_features, int out_features) {
        if (rows < 1 || in_features < 1 || out_features < 1) throw std::invalid_argument("sizes must be positive");
        const fastsal::Precision wanted = precision_from_name(precision);
        nb::gil_scoped_release unlocked;
        return fastsal::product_rate(fastsal::select_kernels(), wanted, rows, in_features, out_features);
      },
      nb::arg("precision"), nb::arg("rows"), nb::arg("in_features"), nb::arg("out_features"),
      "Operations per second of one core for a matrix product.");

  nb::enum_<fastsal::Scheme>(m, "Scheme", "How threads share the work of a call; it changes no bit of the result.")
      .value("by_cost", fastsal::Scheme::by_cost)
      .value("block_per_thread", fastsal::Scheme::block_per_thread)
      .value("shared_blocks", fastsal::Scheme::shared_blocks);

  nb::class_<LayerArrays>(m, "Layer",
                          "The parameters of one layer, each a (weight, bias) pair of float32 arrays; for int8 also "
                          "what the columns of two inputs are divided by.")
      .def(nb::init<LinearArrays, LinearArrays, LinearArrays, LinearArrays, NormArrays, LinearArrays, LinearArrays,
                    NormArrays, std::optional<Floats>, std::optional<Floats>>(),
           nb::kw_only(), nb::arg("query"), nb::arg("key"), nb::arg("value"), nb::arg("attention_output"),
           nb::arg("attention_norm"), nb::arg("up"), nb::arg("down"), nb::arg("output_norm"),
           nb::arg("qkv_smoothing").none(), nb::arg("up_smoothing").none());

  nb::class_<Pooling>(m, "Pooling", "Pooling modes, convolutions packed for one instruction set, normalisation.")
      .def_prop_ro("output_size", &Pooling::output_size);

  nb::class_<PyEncoder>(m, "Encoder", "An encoder with its weights packed for one instruction set.")
      .def(
          "__init__",
          [](PyEncoder* self, int num_heads, int head_size, int intermediate_size, const std::string& activation,
             float layer_norm_eps, const std::string& precision, std::vector<int> layer_schedule, Matrix words,
             Matrix positions, Matrix types, const NormArrays& embedding_norm,
             const std::optional<LinearArrays>& mapping, const std::vector<LayerArrays>& layers, int threads) {
            fastsal::EncoderSpec spec;
            spec.vocab_size = static_cast<int64_t>(words.shape(0));
            spec.max_positions = static_cast<int64_t>(positions.shape(0));
            spec.type_vocab_size = static_cast<int64_t>(types.shape(0));
            spec.embedding_size = static_cast<int>(words.shape(1));
            if (num_heads < 1 || head_size < 1 || intermediate_size < 1 || spec.embedding_size < 1)
              throw std::invalid_argument(
                  "num_heads, head_size, intermediate_size and embedding_size must be positive");
            spec.hidden_size = num_heads * head_size;
            spec.num_heads = num_heads;
            spec.head_size = head_size;
            spec.intermediate_size = intermediate_size;
            spec.activation = fastsal::activation_from_name(activation);
            spec.layer_norm_eps = layer_norm_eps;
            spec.precision = precision_from_name(precision);
            for (int layer : layer_schedule)
              if (layer < 0 || layer >= static_cast<int>(layers.size()))
                wrong("layer_schedule", "of indices below " + std::to_string(layers.size()), std::to_string(layer));
            spec.layer_schedule = std::move(layer_schedule);
            const int hidden = spec.hidden_size;
            if (!mapping && spec.embedding_size != hidden)
              wrong("embedding_size", std::to_string(hidden) + ", the hidden size, where there is no mapping",
                    std::to_string(spec.embedding_size));

            fastsal::WeightsView view;
            view.words = words.data();
            view.positions = table(positions, "position_embeddings", positions.shape(0), spec.embedding_size);
            view.types = table(types, "type_embeddings", types.shape(0), spec.embedding_size);
            view.embedding_norm = norm(embedding_norm, "embedding_norm", spec.embedding_size);
            view.mapping = mapping ? linear(*mapping, "mapping", hidden, spec.embedding_size) : fastsal::LinearView{};
            for (const LayerArrays& layer : layers)
              view.layers.push_back({linear(layer.query, "query", hidden, hidden),
                                     linear(layer.key, "key", hidden, hidden),
                                     linear(layer.value, "value", hidden, hidden),
                                     linear(layer.attention_output, "attention_output", hidden, hidden),
                                     norm(layer.attention_norm, "attention_norm", hidden),
                                     linear(layer.up, "up", intermediate_size, hidden),
                                     linear(layer.down, "down", hidden, intermediate_size),
                                     norm(layer.output_norm, "output_norm", hidden),
                                     smoothing(layer.qkv_smoothing, "qkv_smoothing", hidden),
                                     smoothing(layer.up_smoothing, "up_smoothing", hidden)});
            std::unique_ptr<Encoder> encoder;
            {
              nb::gil_scoped_release unlocked;
              encoder = std::make_unique<Encoder>(fastsal::select_kernels(), std::move(spec), view, threads);
            }
            new (self) PyEncoder{words, positions, types, std::move(encoder)};
          },
          nb::kw_only(), nb::arg("num_heads"), nb::arg("head_size"), nb::arg("intermediate_size"),
          nb::arg("activation"), nb::arg("layer_norm_eps"), nb::arg("precision"), nb::arg("layer_schedule"),
          nb::arg("word_embeddings"), nb::arg("position_embeddings"), nb::arg("type_embeddings"),
          nb::arg("embedding_norm"), nb::arg("mapping").none(), nb::arg("layers"), nb::arg("threads"))
      .def_prop_ro("instruction_set", [](const PyEncoder& self) { return std::string(self.encoder->kernels().name); })
      .def_prop_ro("packed_bytes",
                   [](const PyEncoder& self) { return self.encoder->packed_floats() * int64_t{sizeof(float)}; })
      .def(
          "pooling",
          [](const PyEncoder& self, const std::vector<std::string>& modes,
             const std::vector<std::tuple<Array<const float, 3>, std::optional<Floats>, int>>& convolutions, int skip,
             bool normalize) {
            std::vector<int> ids;
            for (const std::string& mode : modes) ids.push_back(mode_from_name(mode));
            const int hidden = self.encoder->spec().hidden_size;
            std::vector<fastsal::ConvolutionView> views;
            for (const auto& [weight, bias, stride] : convolutions) {
              const int channels = static_cast<int>(weight.shape(0));
              if (static_cast<int>(weight.shape(1)) != hidden)
                wrong("convolution weight", "of " + std::to_string(hidden) + " input channels",
                      std::to_string(weight.shape(1)));
              if (channels < 1 || weight.shape(2) < 1 || stride < 1)
                throw std::invalid_argument("a convolution needs positive channels, kernel size and stride");
              if (bias && static_cast<int>(bias->shape(0)) != channels)
                wrong("convolution bias", "of " + std::to_string(channels) + " values", std::to_string(bias->shape(0)));
              views.push_back(
                  {weight.data(), bias ? bias->data() : nullptr, channels, static_cast<int>(weight.shape(2)), stride});
            }
            nb::gil_scoped_release unlocked;
            return Pooling(self.encoder->kernels(), hidden, std::move(ids), views, skip < 0 ? 0 : skip, normalize);
          },
          nb::kw_only(), nb::arg("modes"), nb::arg("convolutions"), nb::arg("skip"), nb::arg("normalize"))
      .def(
          "hidden_states",
          [](const PyEncoder& self, const std::optional<Ids>& ids, const std::optional<Matrix>& vectors,
             const Ids& positions, const Ids& types, const Ids& cu_seqlens, Array<float, 3> output, int threads) {
            const fastsal::Batch batch = batch_of(self, ids, vectors, positions, types, cu_seqlens);
            const fastsal::EncoderSpec& spec = self.encoder->spec();
            const size_t states = spec.layer_schedule.size() + 1;
            if ((output.shape(0) != 1 && output.shape(0) != states) ||
                static_cast<int64_t>(output.shape(1)) != batch.num_tokens ||
                static_cast<int64_t>(output.shape(2)) != spec.hidden_size)
              wrong("output", "of shape (1 or " + std::to_string(states) + ", tokens, hidden_size)", "another");
            interruptible([&](const fastsal::Interrupt& interrupt) {
              self.encoder->hidden_states(batch, output.shape(0) == states && states > 1, output.data(), threads,
                                          interrupt);
            });
          },
          nb::kw_only(), nb::arg("input_ids").none(), nb::arg("inputs_embeds").none(), nb::arg("position_ids"),
          nb::arg("token_type_ids"), nb::arg("cu_seqlens"), nb::arg("output").noconvert(), nb::arg("threads"))
      .def(
          "profile",
          [](const PyEncoder& self, const Pooling& pooling, const Ids& ids, const Ids& positions, const Ids& types,
             const Ids& cu_seqlens) {
            const fastsal::Batch batch = batch_of(self, ids, std::nullopt, positions, types, cu_seqlens);
            std::vector<float> output(static_cast<size_t>(batch.num_sentences * pooling.output_size()));
            fastsal::Profile profile;
            {
              nb::gil_scoped_release unlocked;
              profile = self.encoder->profile(batch, pooling, output.data());
            }
            const char* const names[] = {"embeddings", "products", "conversions", "attention", "norms", "pooling"};
            std::map<std::string, double> seconds;
            for (int part = 0; part < fastsal::kParts; ++part) seconds[names[part]] = profile.seconds[part];
            return seconds;
          },
          nb::kw_only(), nb::arg("pooling"), nb::arg("input_ids"), nb::arg("position_ids"), nb::arg("token_type_ids"),
          nb::arg("cu_seqlens"), "Seconds that one thread spends in each part of sentence_embeddings.")
      .def(
          "sentence_embeddings",
          [](const PyEncoder& self, const Pooling& pooling, const std::optional<Ids>& ids,
             const std::optional<Matrix>& vectors, const Ids& positions, const Ids& types, const Ids& cu_seqlens,
             Array<float, 2> output, int threads, fastsal::Scheme scheme) {
            const fastsal::Batch batch = batch_of(self, ids, vectors, positions, types, cu_seqlens);
            if (static_cast<int64_t>(output.shape(0)) != batch.num_sentences ||
                static_cast<int64_t>(output.shape(1)) != pooling.output_size())
              wrong("output", "of shape " + shape(batch.num_sentences, pooling.output_size()),
                    shape(output.shape(0), output.shape(1)));
            interruptible([&](const fastsal::Interrupt& interrupt) {
              self.encoder->sentence_embeddings(batch, pooling, output.data(), threads, scheme, interrupt);
            });
          },
          nb::kw_only(), nb::arg("pooling"), nb::arg("input_ids").none(), nb::arg("inputs_embeds").none(),
          nb::arg("position_ids"), nb::arg("token_type_ids"), nb::arg("cu_seqlens"), nb::arg("output").noconvert(),
          nb::arg("threads"), nb::arg("scheme") = fastsal::Scheme::by_cost);
}
