"""bfloat16 and int8 on every instruction set: against float64, and int8 against a plain PyTorch twin of its scheme."""

from __future__ import annotations

import pytest
import torch
from instruction_sets import INSTRUCTION_SETS
from oracle import ACTIVATION_FUNCTIONS, OracleEncoder
from random_encoder import random_batch, random_encoder
from tolerance import assert_as_exact_as_reference, relative_error
from torch import Tensor
from torch.nn import functional as F

from fastsal.backends.cpu import CpuEncoder
from fastsal.engine.int8 import int8_smoothing
from fastsal.engine.pooling import PoolingSpec
from fastsal.engine.spec import LayerWeights, Linear

LENGTHS = [1, 2, 3, 5, 6, 7, 15, 16, 17, 31, 33, 0, 130]
SHAPES = [
    {},
    {"num_heads": 12, "head_size": 26, "intermediate_size": 1248, "embedding_size": 128},
    {"num_heads": 12, "head_size": 32, "intermediate_size": 1536},
    {"num_heads": 3, "head_size": 21, "intermediate_size": 385, "embedding_size": 17},
    {"num_heads": 1, "head_size": 1, "intermediate_size": 1},
    {"num_heads": 5, "head_size": 26, "intermediate_size": 129},  # a last group of one value
]
CHUNK = 384  # inputs that share an offset
QKV_GROUP, OUTPUT_GROUP, FEED_FORWARD_GROUP = 192, 384, 128


class Int8Twin(OracleEncoder):
    """The int8 scheme in float64: rounding as in the kernels, everything else exact.

    Attention is in bfloat16 where the instruction set multiplies it, exact elsewhere.
    """

    def __init__(self, spec, weights, isa) -> None:
        super().__init__(spec, weights)
        self._bfloat16_attention = isa == "avx512_bf16"
        self._bounded_pairs = isa == "avx2"
        vectors = int8_smoothing(spec, weights.map(Tensor.numpy))
        smoothing = [tuple(map(torch.from_numpy, pair)) for pair in vectors]
        self._smoothing = {id(layer): vectors for layer, vectors in zip(weights.layers, smoothing, strict=True)}

    def _layer(self, x: Tensor, layer: LayerWeights) -> Tensor:
        if not len(x):
            return x
        heads, size = self.spec.num_heads, self.spec.head_size
        qkv_smoothing, up_smoothing = self._smoothing[id(layer)]
        q, k, v = (
            self._rounded(self._quantised(x, linear, QKV_GROUP, qkv_smoothing)).view(-1, heads, size).transpose(0, 1)
            for linear in (layer.query, layer.key, layer.value)
        )
        scores = q @ k.transpose(1, 2) * size**-0.5
        attention = torch.exp(scores - scores.amax(-1, keepdim=True))
        context = self._rounded(attention) @ v / attention.sum(-1, keepdim=True)
        context = context.transpose(0, 1).reshape(x.shape[0], heads * size)
        x = self._norm(x + self._quantised(context, layer.attention_output, OUTPUT_GROUP), layer.attention_norm)
        up = self._quantised(x, layer.up, FEED_FORWARD_GROUP, up_smoothing)
        inner = ACTIVATION_FUNCTIONS[self.spec.activation](up)
        return self._norm(x + self._quantised(inner, layer.down, FEED_FORWARD_GROUP), layer.output_norm)

    def _rounded(self, x: Tensor) -> Tensor:
        return x.bfloat16().double() if self._bfloat16_attention else x

    def _quantised(self, x: Tensor, linear: Linear, group: int, smoothing: Tensor | None = None) -> Tensor:
        weight = linear.weight.double()
        if smoothing is not None:
            x, weight = x / smoothing.double(), weight * smoothing.double()
        result = linear.bias.double().expand(len(x), -1).clone()
        for columns, rows in zip(weight.split(CHUNK, dim=1), x.split(CHUNK, dim=1), strict=True):
            offset, steps_below = _offset(rows)
            for column_group, row_group in zip(columns.split(group, dim=1), rows.split(group, dim=1), strict=True):
                step = self._largest(column_group) / 127
                step[step == 0] = 1
                scale = (row_group.amax(1, keepdim=True).clamp(min=0) - offset) / 255
                scale[scale == 0] = 1
                zero = (-offset / scale + 1e-3).floor()
                scale = torch.where(steps_below > 0, -offset / zero.clamp(min=1), scale)
                rounded = ((row_group / scale).round() + zero).clamp(0, 255) - zero
                result += (rounded * scale) @ ((column_group / step).round() * step).T
        return result

    def _largest(self, weights: Tensor) -> Tensor:
        """What becomes 127 in each row of weights: the largest, or the largest sum of two neighbours of one sign."""
        largest = weights.abs().amax(1, keepdim=True)
        if not self._bounded_pairs:
            return largest
        even, odd = F.pad(weights, (0, weights.shape[1] % 2)).unfold(1, 2, 2).unbind(2)
        sums = torch.where((even < 0) == (odd < 0), (even + odd).abs(), torch.zeros(()))
        return torch.maximum(largest, sums.amax(1, keepdim=True))


def _offset(rows: Tensor) -> tuple[Tensor, Tensor]:
    """What a byte of 0 stands for in each row, and how many steps of the widest group lie between that and 0."""
    low, high = rows.amin(1, keepdim=True).clamp(max=0), rows.amax(1, keepdim=True).clamp(min=0)
    widest = (high - low) / 254
    widest[widest == 0] = 1
    steps = (-low / widest - 1e-3).ceil().clamp(min=0)
    return -steps * widest, steps


@pytest.fixture(params=INSTRUCTION_SETS)
def isa(request, monkeypatch) -> str:
    monkeypatch.setenv("FASTSAL_CPU_ISA", request.param)
    return request.param


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_bfloat16_is_as_exact_as_the_reference(isa, shape):
    spec, weights = random_encoder(**shape)
    batch = random_batch(LENGTHS)
    truth = OracleEncoder(spec, weights).hidden_states(batch)
    reference = OracleEncoder(spec, weights, torch.bfloat16).hidden_states(batch)
    assert_as_exact_as_reference(CpuEncoder(spec, weights, "bfloat16").hidden_states(batch), reference, truth)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_int8_follows_its_scheme(isa, shape):
    """Far closer to the twin than either is to the truth: what differs are a few values that round the other way."""
    spec, weights = random_encoder(**shape, schedule=(0,))
    batch = random_batch(LENGTHS)
    truth = OracleEncoder(spec, weights).hidden_states(batch)
    twin = Int8Twin(spec, weights, isa).hidden_states(batch)
    out = CpuEncoder(spec, weights, "int8").hidden_states(batch)
    assert relative_error(out, twin) <= 0.25 * relative_error(twin, truth) + 1e-6


@pytest.mark.parametrize("activation", ["gelu", "relu"])  # relu: no value below 0
@pytest.mark.parametrize("shift", [0.0, 30.0, -30.0])  # of all channels: rows above 0, and below
def test_int8_follows_its_scheme_for_channels_of_any_size(isa, activation, shift):
    spec, weights = random_encoder(12, 64, 1152, schedule=(0,), activation=activation)
    channels = torch.arange(768)
    weights.embedding_norm.weight.copy_(10.0 ** (channels // 128 % 5 - 2))
    weights.embedding_norm.bias.fill_(shift)
    weights.layers[0].up.bias.copy_(10.0 ** (torch.arange(1152) // 96 % 4 - 2) * (-1) ** torch.arange(1152))
    batch = random_batch([1, 7, 40])
    truth = OracleEncoder(spec, weights).hidden_states(batch)
    twin = Int8Twin(spec, weights, isa).hidden_states(batch)
    out = CpuEncoder(spec, weights, "int8").hidden_states(batch)
    assert relative_error(out, twin) <= 0.25 * relative_error(twin, truth) + 1e-6


@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh"])
@pytest.mark.parametrize(("dtype", "worst", "mean"), [("bfloat16", 0.9999, 0.99995), ("int8", 0.998, 0.9995)])
def test_cosine_of_embeddings(activation, dtype, worst, mean):
    spec, weights = random_encoder(12, 32, 1536, activation=activation)
    batch, pooling = random_batch(LENGTHS[:-2] + [40] * 20), PoolingSpec(("mean",))
    truth = OracleEncoder(spec, weights).sentence_embeddings(batch, pooling)
    cosine = F.cosine_similarity(CpuEncoder(spec, weights, dtype).sentence_embeddings(batch, pooling).double(), truth)
    assert cosine.min() >= worst
    assert cosine.mean() >= mean


@pytest.mark.parametrize("factor", [0.0, 1e-3, 0.01])
@pytest.mark.parametrize("readers", [("query", "key"), ("value",), ("query", "key", "value"), ("up",)])
def test_channels_that_some_weights_ignore_do_not_spoil_the_others(readers, factor):
    """A pruned column of one reader must not decide how the channel is rounded for another."""
    spec, weights = random_encoder(12, 32, 1536)
    batch, pooling = random_batch([40] * 20), PoolingSpec(("mean",))

    def worst_cosine() -> float:
        truth = OracleEncoder(spec, weights).sentence_embeddings(batch, pooling)
        embeddings = CpuEncoder(spec, weights, "int8").sentence_embeddings(batch, pooling).double()
        return float(F.cosine_similarity(embeddings, truth).min())

    for layer in weights.layers:  # as in trained models, the softmax is not flat
        layer.query.weight.mul_(2)
        layer.key.weight.mul_(2)
    untouched = worst_cosine()
    for layer in weights.layers:
        for name in readers:
            getattr(layer, name).weight[:, [3, 77, 200, 380]] *= factor
    assert 1 - worst_cosine() <= 2 * (1 - untouched)


def test_int8_sums_at_the_ends_of_the_range(isa):
    """255 x 127 in every place: a pair of such products overflows 16 bits."""
    spec, weights = random_encoder(num_heads=1, head_size=256, intermediate_size=256, schedule=(0,), activation="relu")
    layer = weights.layers[0]
    ones = Linear(torch.full_like(layer.down.weight, 0.5), torch.zeros_like(layer.down.bias))
    big_bias = Linear(torch.zeros_like(layer.up.weight), torch.full_like(layer.up.bias, 3.0))
    fields = {**vars(layer), "down": ones, "up": big_bias}
    weights = type(weights)(**{**vars(weights), "layers": (LayerWeights(**fields),)})
    batch = random_batch([9])
    truth = OracleEncoder(spec, weights).hidden_states(batch)
    assert relative_error(CpuEncoder(spec, weights, "int8").hidden_states(batch), truth) < 2e-2


@pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_not_finite_is_not_hidden(isa, dtype, value):
    spec, weights = random_encoder()
    batch = random_batch([5, 20, 4])
    vectors = weights.word_embeddings[batch.input_ids].clone()
    vectors[7, 3] = value
    poisoned = type(batch)(batch.cu_seqlens, batch.position_ids, batch.token_type_ids, inputs_embeds=vectors)
    states = CpuEncoder(spec, weights, dtype).hidden_states(poisoned)
    assert not states[5:25].isfinite().any()
    assert states[:5].isfinite().all()
    assert states[25:].isfinite().all()


def test_memory_of_packed_weights():
    spec, weights = random_encoder(12, 64, 3072, 128, schedule=(0,) * 12)
    sizes = {dtype: CpuEncoder(spec, weights, dtype).native.packed_bytes for dtype in ("float32", "bfloat16", "int8")}
    assert sizes["bfloat16"] <= 0.52 * sizes["float32"]
    assert sizes["int8"] <= 0.33 * sizes["float32"]
