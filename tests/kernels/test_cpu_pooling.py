"""Native pooling and convolution against the plain PyTorch twin."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from instruction_sets import INSTRUCTION_SETS
from oracle import OracleEncoder
from random_encoder import random_batch, random_encoder, random_tokens
from tolerance import assert_as_exact_as_reference

from fastsal.backends.cpu import CpuEncoder
from fastsal.engine.packing import PackedBatch, pack_token_lists
from fastsal.engine.pooling import POOLING_MODES, Convolution, PoolingSpec
from fastsal.engine.spec import EncoderSpec, EncoderWeights

LENGTHS = [1, 2, 7, 16, 17, 33, 129, 4]


@pytest.fixture(params=INSTRUCTION_SETS)
def isa(request, monkeypatch) -> str:
    monkeypatch.setenv("FASTSAL_CPU_ISA", request.param)
    return request.param


def convolution(hidden: int, kernel_size: int, channels: int = 20, stride: int = 1, bias: bool = True) -> Convolution:
    generator = torch.Generator().manual_seed(kernel_size)
    weight = torch.randn(channels, hidden, kernel_size, generator=generator) * (hidden * kernel_size) ** -0.5
    return Convolution(weight, torch.randn(channels, generator=generator) if bias else None, stride)


def assert_embeddings_match(
    spec: EncoderSpec, weights: EncoderWeights, batch: PackedBatch, pooling: PoolingSpec
) -> None:
    truth = OracleEncoder(spec, weights).sentence_embeddings(batch, pooling)
    reference = OracleEncoder(spec, weights, torch.float32).sentence_embeddings(batch, pooling)
    out = CpuEncoder(spec, weights).sentence_embeddings(batch, pooling)
    finite = truth.isfinite()
    assert torch.equal(out[~finite], truth[~finite].float())
    assert_as_exact_as_reference(out[finite], reference[finite], truth[finite])


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("modes", [*[(m,) for m in POOLING_MODES], ("mean", "cls"), POOLING_MODES])
def test_modes(isa, modes, normalize):
    spec, weights = random_encoder(3, 7)
    normalize = normalize and "max" not in modes  # -inf cannot be normalised
    assert_embeddings_match(spec, weights, random_batch([*LENGTHS, 0]), PoolingSpec(modes, normalize=normalize))


@pytest.mark.parametrize("skip", [0, 1, 2, 17, 200])
def test_leading_tokens_can_be_left_out(isa, skip):
    spec, weights = random_encoder(3, 7)
    assert_embeddings_match(spec, weights, random_batch(LENGTHS), PoolingSpec(POOLING_MODES, skip_tokens=skip))


@pytest.mark.parametrize("kernel_sizes", [(1,), (3,), (5,), (1, 3, 5), (7, 3), (2,), (4,)])
@pytest.mark.parametrize("channels", [1, 16, 70])
def test_convolutions(isa, kernel_sizes, channels):
    spec, weights = random_encoder(3, 7)
    convolutions = tuple(convolution(spec.hidden_size, k, channels) for k in kernel_sizes)
    lengths = [length for length in LENGTHS if length >= 4]
    pooling = PoolingSpec(("max", "mean", "cls"), convolutions)
    assert_embeddings_match(spec, weights, random_batch(lengths), pooling)


@pytest.mark.parametrize(("kernel_size", "stride"), [(3, 2), (3, 3), (1, 2), (5, 4), (2, 2)])
def test_strides(isa, kernel_size, stride):
    spec, weights = random_encoder(3, 7)
    pooling = PoolingSpec(POOLING_MODES, (convolution(spec.hidden_size, kernel_size, stride=stride),), skip_tokens=1)
    assert_embeddings_match(spec, weights, random_batch([length for length in LENGTHS if length > 1]), pooling)


def test_convolution_without_bias(isa):
    spec, weights = random_encoder(3, 7)
    pooling = PoolingSpec(("max",), (convolution(spec.hidden_size, 3, bias=False),))
    assert_embeddings_match(spec, weights, random_batch(LENGTHS), pooling)


def test_maximum_of_negative_values_is_not_zero(isa):
    """Neither the zeros beyond a sentence nor those of a packed row may win."""
    spec, weights = random_encoder(2, 8)
    conv = Convolution(torch.randn(20, 16, 3) * 0.01, torch.full((20,), -5.0))
    out = CpuEncoder(spec, weights).sentence_embeddings(random_batch(LENGTHS), PoolingSpec(("max",), (conv,)))
    assert (out < -4).all()


def test_nan_survives_the_maximum(isa):
    spec, weights = random_encoder(2, 8)
    batch = random_batch([3, 2])
    vectors = weights.word_embeddings[batch.input_ids].clone()
    vectors[1] = float("nan")
    poisoned = PackedBatch(batch.cu_seqlens, batch.position_ids, batch.token_type_ids, inputs_embeds=vectors)
    out = CpuEncoder(spec, weights).sentence_embeddings(poisoned, PoolingSpec(("max",)))
    assert out[0].isnan().all()
    assert out[1].isfinite().all()


@pytest.mark.parametrize("mode", ["cls", "lasttoken"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
def test_one_row_of_the_last_layer_has_the_bits_of_the_whole_layer(isa, dtype, mode):
    """With cls or lasttoken alone the last layer computes that token only."""
    spec, weights = random_encoder(5, 13, 200)
    batch = random_batch([*LENGTHS, 0])
    encoder = CpuEncoder(spec, weights, dtype)
    for skip in (0, 1, 3):
        alone = encoder.sentence_embeddings(batch, PoolingSpec((mode,), skip_tokens=skip))
        beside = encoder.sentence_embeddings(batch, PoolingSpec((mode, "mean"), skip_tokens=skip))
        assert torch.equal(alone, beside[:, : spec.hidden_size])


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("mode", ["mean", "weightedmean"])
@pytest.mark.parametrize("kernel_sizes", [(1,), (5,), (2,), (1, 3, 5)])
def test_averaged_windows_give_the_mean_of_the_convolution(isa, kernel_sizes, mode, stride):
    """A mean over a linear convolution is computed from the mean window; beside max it is computed in full."""
    spec, weights = random_encoder(3, 7)
    convolutions = tuple(convolution(spec.hidden_size, k, 70, stride) for k in kernel_sizes)
    batch = random_batch([2, 7, 33, 130, 0, 5])
    assert_embeddings_match(spec, weights, batch, PoolingSpec((mode,), convolutions))
    encoder = CpuEncoder(spec, weights)
    short = encoder.sentence_embeddings(batch, PoolingSpec((mode,), convolutions))
    full = encoder.sentence_embeddings(batch, PoolingSpec((mode, "max"), convolutions))
    torch.testing.assert_close(short, full[:, : short.shape[1]])


def test_sentence_too_short_for_a_convolution_is_named():
    spec, weights = random_encoder(2, 8)
    pooling = PoolingSpec(("max",), (convolution(16, 4),))
    with pytest.raises(ValueError, match="sentence 1 has 1 tokens, too few for a convolution of kernel size 4"):
        CpuEncoder(spec, weights).sentence_embeddings(random_batch([5, 1]), pooling)


def test_convolutions_of_different_lengths_are_refused():
    spec, weights = random_encoder(2, 8)
    pooling = PoolingSpec(("max",), (convolution(16, 1), convolution(16, 2)))
    with pytest.raises(ValueError, match="different lengths"):
        CpuEncoder(spec, weights).sentence_embeddings(random_batch([5]), pooling)


def test_changed_convolution_weights_are_packed_again():
    spec, weights = random_encoder(2, 8)
    encoder, batch = CpuEncoder(spec, weights), random_batch([5])
    conv = convolution(16, 3)
    before = encoder.sentence_embeddings(batch, PoolingSpec(("mean",), (conv,)))
    conv.weight.mul_(2)
    conv.bias.mul_(2)
    torch.testing.assert_close(encoder.sentence_embeddings(batch, PoolingSpec(("mean",), (conv,))), before * 2)


@pytest.mark.parametrize("isa_name", INSTRUCTION_SETS)
@settings(max_examples=25, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 150), min_size=1, max_size=10),
    modes=st.lists(st.sampled_from(POOLING_MODES), min_size=1, max_size=3),
    kernel_sizes=st.sampled_from([(), (1, 3), (5,)]),
    skip=st.integers(0, 3),
    threads=st.sampled_from([1, 2, 3]),
)
def test_an_embedding_has_the_same_bits_in_any_batch(isa_name, lengths, modes, kernel_sizes, skip, threads):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FASTSAL_CPU_ISA", isa_name)
        encoder = CpuEncoder(*random_encoder(3, 11))
    convolutions = tuple(convolution(33, k) for k in kernel_sizes)
    pooling = PoolingSpec(tuple(modes), convolutions, skip, normalize="max" not in modes)
    sentences = random_tokens(lengths)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        alone = torch.cat([encoder.sentence_embeddings(pack_token_lists([s]), pooling) for s in sentences])
        torch.set_num_threads(threads)
        together = encoder.sentence_embeddings(pack_token_lists(sentences), pooling)
    finally:
        torch.set_num_threads(before)
    assert torch.equal(alone, together)
