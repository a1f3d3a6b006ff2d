"""Reading Hugging Face modules: computing from what was read must give Hugging Face's numbers, in float64 exactly."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from models_zoo import TINY, random_batch, tiny_albert, tiny_bert, true_states
from oracle import OracleEncoder
from torch import nn
from torch.nn.utils import parametrize, prune
from transformers.activations import ACT2CLS, ACT2FN
from transformers.models.albert.modeling_albert import AlbertLayer

from fastsal.engine.spec import ACTIVATIONS
from fastsal.modules.architectures import read_encoder
from fastsal.modules.padding import pack, unpack

OPTIONS = {
    "plain": {},
    "one head": {"num_attention_heads": 1},
    "head size 26": {"hidden_size": 52, "num_attention_heads": 2},
    "head size 10": {"hidden_size": 30, "num_attention_heads": 3},
    "three types": {"type_vocab_size": 3},
    "few positions": {"max_position_embeddings": 9},
    "large eps": {"layer_norm_eps": 0.1},
    "one layer": {"num_hidden_layers": 1},
    "narrow feed-forward": {"intermediate_size": 7},
    "feed-forward in chunks": {"chunk_size_feed_forward": 1},
    "eager attention": {"attn_implementation": "eager"},
}
ALBERT_OPTIONS = {
    "embedding size is hidden size": {"embedding_size": 32},
    "embedding size is above hidden size": {"embedding_size": 40},
    "two groups": {"num_hidden_layers": 5, "num_hidden_groups": 2},
    "inner groups": {"num_hidden_layers": 4, "num_hidden_groups": 2, "inner_group_num": 2},
    "three groups": {"num_hidden_layers": 7, "num_hidden_groups": 3, "inner_group_num": 3},
    "as many groups as layers": {"num_hidden_layers": 3, "num_hidden_groups": 3},
}
CASES = [(name, title) for name in TINY for title in OPTIONS] + [("albert", title) for title in ALBERT_OPTIONS]

#: ACT2FN's name -> ours, for all that the kernels compute.
ACTIVATION_NAMES = {
    "gelu": "gelu",
    "gelu_10": "gelu_10",
    "gelu_accurate": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_new": "gelu_tanh",
    "gelu_python": "gelu",
    "gelu_python_tanh": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "hardswish": "hardswish",
    "laplace": "laplace",
    "leaky_relu": "leaky_relu",
    "linear": "linear",
    "mish": "mish",
    "quick_gelu": "quick_gelu",
    "relu": "relu",
    "relu2": "relu2",
    "relu6": "relu6",
    "sigmoid": "sigmoid",
    "silu": "silu",
    "sqrtsoftplus": "sqrtsoftplus",
    "swish": "silu",
    "tanh": "tanh",
}


def assert_reads_right(model):
    batch = random_batch()
    reading = read_encoder(model)
    assert reading.reason is None
    assert len(reading.weights.layers) == len(set(reading.spec.layer_schedule))
    mask = batch["attention_mask"].bool()
    packed, index = pack((4, 9), mask, batch["input_ids"], token_type_ids=batch["token_type_ids"])
    states = OracleEncoder(reading.spec, reading.weights).hidden_states(packed, all_layers=True)
    states = torch.stack([unpack(state, index, 4, 9) for state in states])
    torch.testing.assert_close(states, true_states(model, batch), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(("architecture", "title"), CASES)
def test_every_config_option(architecture, title):
    assert_reads_right(TINY[architecture](**{**OPTIONS, **ALBERT_OPTIONS}[title]))


@pytest.mark.parametrize("hidden_act", sorted(ACT2CLS))
def test_every_activation(architecture, hidden_act):
    """B28."""
    model = TINY[architecture](hidden_act=hidden_act)
    reading = read_encoder(model)
    if hidden_act in ACTIVATION_NAMES:
        assert reading.spec.activation == ACTIVATION_NAMES[hidden_act]
        assert_reads_right(model)
    else:
        assert "activation" in reading.reason


@pytest.mark.parametrize("hidden_act", sorted(ACTIVATION_NAMES))
def test_activation_formulas(hidden_act):
    """The function itself, also where forms differ most and in the tails."""
    from oracle import ACTIVATION_FUNCTIONS

    x = torch.cat([torch.linspace(-12, 12, 4801, dtype=torch.float64), torch.tensor([-1e3, -0.0, 1e3]).double()])
    ours = ACTIVATION_FUNCTIONS[ACTIVATION_NAMES[hidden_act]]
    torch.testing.assert_close(ours(x), ACT2FN[hidden_act](x), rtol=1e-9, atol=1e-9)


def test_names_are_those_of_the_spec():
    assert set(ACTIVATION_NAMES.values()) == set(ACTIVATIONS)


@pytest.mark.parametrize(
    ("module", "name"),
    [
        (nn.GELU(), "gelu"),
        (nn.GELU(approximate="tanh"), "gelu_tanh"),
        (nn.Identity(), "linear"),
        (nn.LeakyReLU(0.2), None),
        (nn.PReLU(), None),
        (nn.Softplus(), None),
        (nn.Sequential(nn.ReLU()), None),
    ],
)
def test_replaced_activation_decides_not_the_config(module, name):
    model = tiny_albert()
    model.encoder.albert_layer_groups[0].albert_layers[0].activation = module
    reading = read_encoder(model)
    assert (reading.spec.activation if reading.spec else None) == name


def test_callable_activation_is_refused():
    model = tiny_bert()
    del model.encoder.layer[0].intermediate.intermediate_act_fn
    model.encoder.layer[0].intermediate.intermediate_act_fn = torch.tanh
    assert "intermediate_act_fn" in read_encoder(model).reason


def test_weights_are_the_live_tensors(model):
    reading = read_encoder(model)
    assert reading.weights.word_embeddings.data_ptr() == model.embeddings.word_embeddings.weight.data_ptr()
    assert not reading.weights.word_embeddings.requires_grad


def test_resized_tables_decide_not_the_config(model):
    model.resize_token_embeddings(71)
    model.config.vocab_size = 5
    assert read_encoder(model).spec.vocab_size == 71


def _first_attention(model):
    if hasattr(model.encoder, "layer"):
        return model.encoder.layer[0].attention.self
    return model.encoder.albert_layer_groups[0].albert_layers[0].attention


class _LowRank(nn.Module):
    """What adapters do to a linear layer."""

    def __init__(self, base):
        super().__init__()
        self.base, self.weight, self.bias = base, base.weight, base.bias

    def forward(self, x):
        return self.base(x) + 1


class _MyLinear(nn.Linear):
    pass


def _replace(make):
    def change(model):
        attention = _first_attention(model)
        attention.query = make(attention.query)

    return change


def _without_bias(linear):
    result = nn.Linear(linear.in_features, linear.out_features, bias=False)
    result.weight = linear.weight
    return result


class _Doubled(nn.Module):
    def forward(self, weight):
        return 2 * weight


CHANGES = {
    "adapter": _replace(_LowRank),
    "subclass": _replace(lambda linear: _MyLinear(linear.in_features, linear.out_features)),
    "no bias": _replace(_without_bias),
    "other shape": _replace(lambda linear: nn.Linear(linear.in_features, linear.out_features // 2)),
    "not there": _replace(lambda linear: None),
    "forward hook": lambda m: _first_attention(m).query.register_forward_hook(lambda *a: None),
    "forward pre-hook": lambda m: _first_attention(m).register_forward_pre_hook(lambda *a: None),
    "pruning": lambda m: prune.l1_unstructured(_first_attention(m).key, "weight", 0.3),
    "parametrization": lambda m: parametrize.register_parametrization(_first_attention(m).value, "weight", _Doubled()),
    "weight norm": lambda m: torch.nn.utils.parametrizations.weight_norm(_first_attention(m).value),
    "forward replaced": lambda m: setattr(m.embeddings, "forward", partial(m.embeddings.forward)),
    "scaling": lambda m: setattr(_first_attention(m), "scaling", 1.0),
    "causal": lambda m: setattr(_first_attention(m), "is_causal", True),
    "one other eps": lambda m: setattr(m.embeddings.LayerNorm, "eps", 0.5),
    "max_norm": lambda m: setattr(m.embeddings.word_embeddings, "max_norm", 1.0),
    "mixed dtypes": lambda m: m.embeddings.half(),
    "meta device": lambda m: m.to("meta"),
    "other positions": lambda m: m.embeddings.position_ids.add_(1),
    "other types": lambda m: m.embeddings.token_type_ids.fill_(1),
    "dropout replaced": lambda m: setattr(m.embeddings, "dropout", nn.ReLU()),
    "tables of other widths": lambda m: setattr(m.embeddings, "token_type_embeddings", nn.Embedding(2, 3)),
}


@pytest.mark.parametrize("change", CHANGES)
def test_unknown_parts_are_refused_and_not_read_wrongly(model, change):
    assert read_encoder(model).reason is None
    CHANGES[change](model)
    reading = read_encoder(model)
    assert reading.reason
    assert reading.spec is None
    assert reading.weights is None


def test_transformers_own_recorder_hooks_are_no_obstacle(model):
    model(**random_batch(), output_hidden_states=True)
    assert _has_hooks(model)
    assert read_encoder(model).reason is None


def _has_hooks(model):
    return any(module._forward_hooks for module in model.modules())


def test_other_layer_class_is_refused():
    class MyLayer(AlbertLayer):
        def forward(self, *args, **kwargs):
            return super().forward(*args, **kwargs) * 2

    model = tiny_albert()
    model.encoder.albert_layer_groups[0].albert_layers[0] = MyLayer(model.config)
    assert "MyLayer" in read_encoder(model).reason


def test_layers_that_differ_are_refused():
    model = tiny_bert()
    model.encoder.layer[1] = tiny_bert(intermediate_size=20).encoder.layer[0]
    assert "different" in read_encoder(model).reason


@pytest.mark.parametrize("groups", [4, 9])
def test_config_with_more_groups_than_the_model(groups):
    model = tiny_albert(num_hidden_layers=9, num_hidden_groups=3)
    model.config.num_hidden_groups = groups
    assert "layer groups" in read_encoder(model).reason


def test_no_layers():
    assert "no layers" in read_encoder(tiny_albert(num_hidden_layers=0)).reason
    assert "no layers" in read_encoder(tiny_bert(num_hidden_layers=0)).reason


def test_decoder_is_refused():
    assert "decoder" in read_encoder(tiny_bert(is_decoder=True)).reason


def test_inference_tensors_are_refused_as_their_changes_leave_no_trace():
    with torch.inference_mode():
        model = tiny_bert()
    assert "inference" in read_encoder(model).reason


def test_other_modules_are_a_type_error():
    with pytest.raises(TypeError, match="AlbertModel or BertModel"):
        read_encoder(nn.Linear(2, 2))
