"""The native encoder against its plain PyTorch twin: shapes, activations, schedules, batch invariance to the bit."""

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
from fastsal.engine.spec import ACTIVATIONS, EncoderSpec, EncoderWeights

AWKWARD_LENGTHS = [1, 2, 3, 5, 6, 7, 15, 16, 17, 31, 32, 33, 63, 64, 65, 0, 12]


@pytest.fixture(params=INSTRUCTION_SETS)
def isa(request, monkeypatch) -> str:
    monkeypatch.setenv("FASTSAL_CPU_ISA", request.param)
    return request.param


def assert_states_match(spec: EncoderSpec, weights: EncoderWeights, batch: PackedBatch) -> None:
    truth = OracleEncoder(spec, weights).hidden_states(batch, all_layers=True)
    reference = OracleEncoder(spec, weights, torch.float32).hidden_states(batch, all_layers=True)
    encoder = CpuEncoder(spec, weights)
    states = encoder.hidden_states(batch, all_layers=True)
    for out, ref, true in zip(states, reference, truth, strict=True):
        assert_as_exact_as_reference(out, ref, true)
    assert torch.equal(encoder.hidden_states(batch), states[-1])


def test_instruction_set_is_the_one_named(isa):
    assert CpuEncoder(*random_encoder()).native.instruction_set == isa


@pytest.mark.parametrize("head_size", [1, 8, 10, 26, 48, 64, 80, 96, 128, 256])
def test_head_sizes(isa, head_size):
    assert_states_match(*random_encoder(num_heads=2, head_size=head_size), random_batch(AWKWARD_LENGTHS))


@pytest.mark.parametrize(
    ("num_heads", "head_size", "intermediate_size", "embedding_size"),
    [(1, 26, 26, None), (12, 26, 1248, 128), (12, 32, 1536, None), (3, 21, 385, 17), (1, 1, 1, 1), (5, 13, 383, 200)],
)
def test_odd_sizes(isa, num_heads, head_size, intermediate_size, embedding_size):
    assert_states_match(
        *random_encoder(num_heads, head_size, intermediate_size, embedding_size), random_batch(AWKWARD_LENGTHS)
    )


@pytest.mark.parametrize("length", [127, 128, 129, 255, 257, 511, 512])
def test_long_sentences(isa, length):
    assert_states_match(*random_encoder(), random_batch([length, 3, length]))


@pytest.mark.parametrize("schedule", [(), (0,), (0,) * 6, (0, 0, 1, 1), (0, 1, 2, 0, 1, 2)])
def test_layer_schedules(isa, schedule):
    assert_states_match(*random_encoder(schedule=schedule, embedding_size=12), random_batch([4, 9]))


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activations(isa, activation):
    assert_states_match(*random_encoder(activation=activation, scale=2.0), random_batch(AWKWARD_LENGTHS))


def test_albert_base_shapes():
    spec, weights = random_encoder(12, 64, 3072, 128, schedule=(0,) * 12, activation="gelu_tanh")
    assert_states_match(spec, weights, random_batch([12, 1, 40]))


def test_word_vectors_in_place_of_ids(isa):
    spec, weights = random_encoder(embedding_size=12)
    batch = random_batch([3, 17])
    vectors = weights.word_embeddings[batch.input_ids]
    by_vectors = PackedBatch(batch.cu_seqlens, batch.position_ids, batch.token_type_ids, inputs_embeds=vectors)
    encoder = CpuEncoder(spec, weights)
    assert torch.equal(encoder.hidden_states(by_vectors), encoder.hidden_states(batch))


def test_scores_far_beyond_the_range_of_exp(isa):
    spec, weights = random_encoder(scale=30.0)  # queries and keys of size 100 and more: one-hot attention
    assert_states_match(spec, weights, random_batch([1, 20, 33]))


@pytest.mark.parametrize("value", [3.0, 0.0, 6e4, -6e4])
def test_constant_rows_come_out_as_the_norm_bias(isa, value):
    spec, weights = random_encoder(embedding_size=26, schedule=())
    batch = random_batch([2])
    zeros = torch.zeros_like
    weights = EncoderWeights(
        weights.word_embeddings, zeros(weights.position_embeddings), zeros(weights.type_embeddings),
        weights.embedding_norm, weights.mapping, ()
    )  # fmt: skip
    constant = PackedBatch(
        batch.cu_seqlens, batch.position_ids, batch.token_type_ids, inputs_embeds=torch.full((2, 26), value)
    )
    bias = weights.embedding_norm.bias
    expected = torch.nn.functional.linear(bias, weights.mapping.weight, weights.mapping.bias)
    torch.testing.assert_close(CpuEncoder(spec, weights).hidden_states(constant)[0], expected)


def test_nan_stays_in_its_sentence(isa):
    spec, weights = random_encoder()
    batch = random_batch([5, 20, 4])
    vectors = weights.word_embeddings[batch.input_ids].clone()
    vectors[7, 3] = float("nan")
    states = CpuEncoder(spec, weights).hidden_states(
        PackedBatch(batch.cu_seqlens, batch.position_ids, batch.token_type_ids, inputs_embeds=vectors)
    )
    assert states[5:25].isnan().all()
    assert states[:5].isfinite().all()
    assert states[25:].isfinite().all()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
@pytest.mark.parametrize("isa_name", INSTRUCTION_SETS)
@settings(max_examples=12, deadline=None)
@given(
    lengths=st.lists(st.one_of(st.integers(0, 40), st.integers(100, 300)), min_size=1, max_size=12),
    threads=st.sampled_from([1, 2, 3, 5]),
    seed=st.integers(0, 1000),
)
def test_a_sentence_has_the_same_bits_in_any_batch(isa_name, dtype, lengths, threads, seed):
    """Alone on one thread, among others, in another order, on several threads."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FASTSAL_CPU_ISA", isa_name)
        encoder = CpuEncoder(*random_encoder(3, 11, 400), dtype)
    sentences = random_tokens(lengths, seed=seed)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        alone = [encoder.hidden_states(pack_token_lists([s]), all_layers=True) for s in sentences]
        torch.set_num_threads(threads)
        together = encoder.hidden_states(pack_token_lists(sentences), all_layers=True)
        reversed_order = encoder.hidden_states(pack_token_lists(sentences[::-1]), all_layers=True)
    finally:
        torch.set_num_threads(before)
    assert torch.equal(torch.cat(alone, dim=1), together)
    assert torch.equal(torch.cat(alone[::-1], dim=1), reversed_order)
