"""What instruction sets have in common, bit by bit, and how one is chosen."""

from __future__ import annotations

import pytest
import torch
from instruction_sets import CHOSEN_INSTRUCTION_SETS, INSTRUCTION_SETS
from random_encoder import random_batch, random_encoder

from fastsal import _cpu
from fastsal.backends.cpu import CpuBackend, CpuEncoder
from fastsal.engine.packing import PackedBatch

#: Batches of 1 to 70 rows: every size of a tile of rows, and blocks of one, two and four tiles.
LENGTHS = [1, 2, 3, 15, 16, 17, 31, 32, 33, 63, 65, 70]


def hidden_states(isa: str, dtype: str, monkeypatch: pytest.MonkeyPatch, **shape) -> list[torch.Tensor]:
    monkeypatch.setenv("FASTSAL_CPU_ISA", isa)
    encoder = CpuEncoder(*random_encoder(3, 26, 420, **shape), dtype)
    return [encoder.hidden_states(random_batch([length])) for length in LENGTHS]


def assert_same_bits(one: str, other: str, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (one, other):
        if name not in INSTRUCTION_SETS:
            pytest.skip(f"{name} does not run on this processor")
    pairs = zip(hidden_states(one, dtype, monkeypatch), hidden_states(other, dtype, monkeypatch), strict=True)
    for length, (a, b) in zip(LENGTHS, pairs, strict=True):
        assert torch.equal(a, b), length


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
@pytest.mark.parametrize("name", ["amx", "avx_vnni"])
def test_a_model_has_the_bits_of_the_instructions(name, dtype, monkeypatch):
    assert_same_bits(name, f"{name}_model", dtype, monkeypatch)


@pytest.mark.parametrize("name", ["amx", "amx_model"])
def test_int8_has_the_bits_of_avx512_vnni(name, monkeypatch):
    """The same integers, scaled and added up in the same order."""
    assert_same_bits(name, "avx512_vnni", "int8", monkeypatch)


@pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
@pytest.mark.parametrize("name", INSTRUCTION_SETS)
def test_a_row_does_not_depend_on_its_place_or_on_the_rows_beside_it(name, dtype, monkeypatch):
    monkeypatch.setenv("FASTSAL_CPU_ISA", name)
    spec, weights = random_encoder(2, 20, 390)
    encoder = CpuEncoder(spec, weights, dtype)
    lengths = [5, 1, 11, 16, 2, 32, 3, 17, 33]
    batch = random_batch(lengths)
    together = encoder.hidden_states(batch)
    bounds = batch.cu_seqlens.tolist()
    for first in range(len(lengths)):
        for last in range(first + 1, len(lengths) + 1):
            rows = slice(bounds[first], bounds[last])
            part = PackedBatch(
                cu_seqlens=batch.cu_seqlens[first : last + 1] - bounds[first],
                position_ids=batch.position_ids[rows],
                token_type_ids=batch.token_type_ids[rows],
                input_ids=batch.input_ids[rows],
            )
            assert torch.equal(encoder.hidden_states(part), together[rows]), (first, last)


def test_a_model_runs_only_where_it_is_named(monkeypatch):
    models = [each.name for each in _cpu.instruction_sets() if each.model]
    assert set(models).isdisjoint(CHOSEN_INSTRUCTION_SETS)
    monkeypatch.delenv("FASTSAL_CPU_ISA", raising=False)
    assert _cpu.selected_instruction_set() not in models
    assert not any(name in CpuBackend().describe() for name in models)


@pytest.mark.parametrize("name", INSTRUCTION_SETS)
def test_the_description_says_what_is_not_computed_natively(name, monkeypatch):
    monkeypatch.setenv("FASTSAL_CPU_ISA", name)
    native = next(each.native for each in _cpu.instruction_sets() if each.name == name)
    assert "float32" in native
    for precision in ("bfloat16", "int8"):
        assert (f"{precision} weights in memory" in CpuBackend().describe()) == (precision not in native)
