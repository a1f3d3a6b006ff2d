"""Bad input to the native encoder gets an error that names it, before any table is read."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from instruction_sets import CHOSEN_INSTRUCTION_SETS, INSTRUCTION_SETS
from random_encoder import random_batch, random_encoder

from fastsal import _cpu
from fastsal.backends.cpu import CpuBackend, CpuEncoder
from fastsal.engine.packing import PackedBatch
from fastsal.engine.pooling import PoolingSpec
from fastsal.engine.spec import Linear


@pytest.fixture(scope="module")
def encoder() -> CpuEncoder:
    return CpuEncoder(*random_encoder(vocab_size=50, max_positions=20))


def changed(field: str, index: int, value: int) -> PackedBatch:
    batch = random_batch([3, 4])
    ids = getattr(batch, field).copy()
    ids[index] = value
    return dataclasses.replace(batch, **{field: ids})


@pytest.mark.parametrize(
    ("field", "value", "limit"),
    [
        ("input_ids", 50, 50),
        ("input_ids", -1, 50),
        ("input_ids", 2**31 + 5, 50),
        ("input_ids", -(2**62), 50),
        ("token_type_ids", 2, 2),
        ("token_type_ids", -1, 2),
        ("position_ids", 20, 20),
        ("position_ids", -1, 20),
    ],
)
def test_out_of_range_ids(encoder, field, value, limit):
    batch = changed(field, 5, value)
    expected = rf"{field} must be in \[0, {limit}\), got {value} at token 5"
    with pytest.raises(IndexError, match=expected):
        encoder.hidden_states(batch)
    with pytest.raises(IndexError, match=expected):
        encoder.sentence_embeddings(batch, PoolingSpec())


@pytest.mark.parametrize("cu_seqlens", [[0, 3], [0, 8], [1, 7], [0, 5, 3, 7], [-1, 7], []])
def test_boundaries_that_do_not_fit(encoder, cu_seqlens):
    batch = dataclasses.replace(random_batch([3, 4]), cu_seqlens=np.array(cu_seqlens, np.int64))
    with pytest.raises(ValueError, match="cu_seqlens"):
        encoder.native._native.sentence_embeddings(
            pooling=encoder.pooling(PoolingSpec()),
            input_ids=batch.input_ids,
            inputs_embeds=None,
            position_ids=batch.position_ids,
            token_type_ids=batch.token_type_ids,
            cu_seqlens=batch.cu_seqlens,
            output=torch.empty(max(len(cu_seqlens) - 1, 0), 16),
            threads=1,
        )


def test_lengths_that_differ(encoder):
    batch = random_batch([3, 4])
    for field in ("input_ids", "token_type_ids"):
        with pytest.raises(ValueError, match=f"{field} must be 7 tokens long"):
            encoder.hidden_states(dataclasses.replace(batch, **{field: getattr(batch, field)[:-1]}))


def test_word_vectors_of_the_wrong_width(encoder):
    batch = dataclasses.replace(random_batch([3]), input_ids=None, inputs_embeds=torch.zeros(3, 15))
    with pytest.raises(ValueError, match=r"inputs_embeds must be of shape \(3, 16\), got \(3, 15\)"):
        encoder.hidden_states(batch)


def test_both_or_neither_of_ids_and_vectors(encoder):
    batch = random_batch([3])
    for ids, vectors in ((None, None), (batch.input_ids, torch.zeros(3, 16))):
        with pytest.raises(ValueError, match="exactly one"):
            encoder.hidden_states(dataclasses.replace(batch, input_ids=ids, inputs_embeds=vectors))


def test_output_of_the_wrong_shape(encoder):
    batch = random_batch([3, 4])
    arguments = {
        "input_ids": batch.input_ids,
        "inputs_embeds": None,
        "position_ids": batch.position_ids,
        "token_type_ids": batch.token_type_ids,
        "cu_seqlens": batch.cu_seqlens,
        "threads": 1,
    }
    with pytest.raises(ValueError, match="output must be of shape"):
        encoder.native._native.hidden_states(output=torch.empty(2, 7, 16), **arguments)
    with pytest.raises(ValueError, match="output must be of shape"):
        encoder.native._native.sentence_embeddings(
            pooling=encoder.pooling(PoolingSpec()), output=torch.empty(2, 15), **arguments
        )


def test_a_pooling_of_another_encoder(encoder, monkeypatch):
    """Its panels and its width are another's: using it would read past the rows."""
    batch = random_batch([3, 4])
    arguments = {
        "input_ids": batch.input_ids,
        "position_ids": batch.position_ids,
        "token_type_ids": batch.token_type_ids,
        "cu_seqlens": batch.cu_seqlens,
    }
    others = [CpuEncoder(*random_encoder(2, 64, 32))]
    if len(INSTRUCTION_SETS) > 1:
        monkeypatch.setenv("FASTSAL_CPU_ISA", INSTRUCTION_SETS[-1])
        others.append(CpuEncoder(*random_encoder()))
    for other in others:
        pooling = other.pooling(PoolingSpec())
        output = torch.empty(2, pooling.output_size)
        with pytest.raises(ValueError, match="pooling must be made by this encoder"):
            encoder.native._native.sentence_embeddings(
                pooling=pooling, inputs_embeds=None, output=output, threads=1, **arguments
            )
        with pytest.raises(ValueError, match="pooling must be made by this encoder"):
            encoder.native._native.profile(pooling=pooling, **arguments)


def test_weights_of_the_wrong_shape():
    spec, weights = random_encoder()
    layer = dataclasses.replace(weights.layers[0], up=Linear(torch.zeros(40, 15), torch.zeros(40)))
    with pytest.raises(ValueError, match=r"up must be of shape \(40, 16\), got \(40, 15\)"):
        CpuEncoder(spec, dataclasses.replace(weights, layers=(layer, weights.layers[1])))
    with pytest.raises(ValueError, match="layer_schedule"):
        CpuEncoder(dataclasses.replace(spec, layer_schedule=(0, 2)), weights)
    with pytest.raises(ValueError, match="activation"):
        CpuEncoder(dataclasses.replace(spec, activation="softplus"), weights)


def test_empty_batches(encoder):
    for lengths in ([], [0], [0, 0, 0]):
        batch = random_batch(lengths)
        assert encoder.hidden_states(batch).shape == (0, 16)
        assert encoder.hidden_states(batch, all_layers=True).shape == (3, 0, 16)
        means = encoder.sentence_embeddings(batch, PoolingSpec(("mean",)))
        assert torch.equal(means, torch.zeros(len(lengths), 16))
        assert (encoder.sentence_embeddings(batch, PoolingSpec(("max",))) == float("-inf")).all()


def test_an_unknown_instruction_set_is_an_error_with_the_choices(monkeypatch):
    monkeypatch.setenv("FASTSAL_CPU_ISA", "sse9")
    with pytest.raises(ValueError, match=f"FASTSAL_CPU_ISA must name .*{CHOSEN_INSTRUCTION_SETS[-1]}.*got 'sse9'"):
        CpuEncoder(*random_encoder())
    assert "sse9" in (CpuBackend().unavailable() or "")


def test_the_fastest_instruction_set_is_the_default(monkeypatch):
    monkeypatch.delenv("FASTSAL_CPU_ISA", raising=False)
    assert _cpu.selected_instruction_set() == CHOSEN_INSTRUCTION_SETS[0]
    assert CpuBackend().unavailable() is None
    assert CHOSEN_INSTRUCTION_SETS[0] in CpuBackend().describe()
