"""The product with weights as PyTorch stores them: against float64, and each row for itself."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from instruction_sets import INSTRUCTION_SETS

from fastsal import _cpu
from fastsal.engine import native

SIZES = st.integers(1, 70)


def linear(rows, weight, bias, activation="linear"):
    arrays = (None if tensor is None else tensor.numpy() for tensor in (rows, weight, bias))
    return torch.from_numpy(native.linear(*arrays, activation, torch.get_num_threads()))


@pytest.fixture(params=INSTRUCTION_SETS)
def isa(request, monkeypatch) -> str:
    monkeypatch.setenv("FASTSAL_CPU_ISA", request.param)
    return request.param


def test_any_sizes(isa, one_thread):
    @settings(max_examples=60, deadline=None)
    @given(st.integers(0, 9), SIZES, SIZES, st.booleans(), st.integers(0, 2**31))
    def check(rows, outputs, columns, with_bias, seed):
        generator = torch.Generator().manual_seed(seed)
        x = torch.randn(rows, columns, generator=generator)
        weight = torch.randn(outputs, columns, generator=generator)
        bias = torch.randn(outputs, generator=generator) if with_bias else None
        result = linear(x, weight, bias)
        exact = x.double() @ weight.double().T + (0 if bias is None else bias.double())
        magnitude = x.double().abs() @ weight.double().abs().T + (0 if bias is None else bias.double().abs())
        # every term is rounded at most `columns` times on its way into the sum
        assert ((result.double() - exact).abs() <= (columns + 2) * 2**-24 * magnitude).all()
        for row in range(rows):
            assert torch.equal(linear(x[row : row + 1], weight, bias)[0], result[row])

    check()


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_threads_change_no_bit(isa, threads):
    """Large enough for a team."""
    x, weight, bias = torch.randn(37, 300), torch.randn(601, 300), torch.randn(601)
    outputs = [torch.empty(37, 601) for _ in range(2)]
    for output, count in zip(outputs, (1, threads), strict=True):
        _cpu.linear(x, weight, bias, output, "linear", count)
    assert torch.equal(*outputs)


@pytest.mark.parametrize("outputs", [1, 5, 16, 601])
def test_an_activation_behind(isa, outputs):
    x, weight, bias = torch.randn(37, 300) / 20, torch.randn(outputs, 300), torch.randn(outputs)
    exact = linear(x, weight, bias).double().tanh()
    assert (linear(x, weight, bias, "tanh").double() - exact).abs().max() < 1e-6


def test_nan_and_infinity_stay_in_their_row(isa):
    x = torch.randn(5, 40)
    x[1, 3], x[4, 39] = np.nan, np.inf
    result = linear(x, torch.rand(9, 40) + 0.1, torch.zeros(9))
    assert result[1].isnan().all()
    assert result[4].isposinf().all()
    assert result[[0, 2, 3]].isfinite().all()


def test_shapes_that_do_not_fit():
    x, weight, bias = torch.zeros(2, 3), torch.zeros(4, 3), torch.zeros(4)
    with pytest.raises(ValueError, match=r"weight must be of shape \(4, 5\), got \(4, 3\)"):
        _cpu.linear(torch.zeros(2, 5), weight, bias, torch.zeros(2, 4), "linear", 1)
    with pytest.raises(ValueError, match="bias must be of 4 values, got 3"):
        _cpu.linear(x, weight, torch.zeros(3), torch.zeros(2, 4), "linear", 1)
    with pytest.raises(ValueError, match=r"output must be of shape \(2, 4\), got \(2, 3\)"):
        _cpu.linear(x, weight, bias, torch.zeros(2, 3), "linear", 1)
