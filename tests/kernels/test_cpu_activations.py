"""Accuracy of the vector functions over their whole range against float64.

The bound is on |error| / (|true value| + |x| / 8), in units of 2^-24 (half an ulp of 1): relative where the function is
as large as its argument, and as forgiving as float32's own 1 + erf where it cancels.
"""

from __future__ import annotations

import pytest
import torch
from instruction_sets import INSTRUCTION_SETS
from oracle import ACTIVATION_FUNCTIONS

from fastsal import _cpu
from fastsal.engine.spec import ACTIVATIONS

BOUND = {
    "linear": 0.0,
    "relu": 0.0,
    "relu6": 0.0,
    "relu2": 1.0,
    "leaky_relu": 1.0,
    "sigmoid": 3.0,
    "silu": 3.0,
    "tanh": 4.0,
    "mish": 4.0,
    "gelu": 6.0,
    "gelu_10": 6.0,
    "gelu_tanh": 4.0,
    "quick_gelu": 3.0,
    "hardswish": 4.0,
    "sqrtsoftplus": 4.0,
}


def arguments() -> torch.Tensor:
    tiny = torch.logspace(-38, 2, 1 << 14)
    points = [torch.linspace(-100, 100, 1 << 18), torch.linspace(-12, 12, 1 << 19), torch.linspace(-1.5, 1.5, 1 << 18)]
    return torch.cat([*points, tiny, -tiny, torch.zeros(16)])


def test_every_activation_has_a_bound():
    assert set(BOUND) | {"laplace"} == set(ACTIVATIONS) == set(ACTIVATION_FUNCTIONS)


@pytest.fixture(params=INSTRUCTION_SETS)
def isa(request, monkeypatch) -> str:
    monkeypatch.setenv("FASTSAL_CPU_ISA", request.param)
    return request.param


@pytest.mark.parametrize("name", BOUND)
def test_error_bound(isa, name):
    x = arguments()
    y = x.clone()
    _cpu.activate(y, name)
    true = ACTIVATION_FUNCTIONS[name](x.double())
    error = (y.double() - true).abs() / (true.abs() + x.double().abs() / 8 + 1e-36)
    worst = error.argmax()
    assert error[worst] <= BOUND[name] * 2**-24 + 1e-300, f"at {x[worst].item()}: {y[worst]} for {true[worst]}"


def test_laplace_is_within_an_absolute_bound(isa):
    x = arguments()
    y = x.clone()
    _cpu.activate(y, "laplace")  # values in [0, 1]
    assert (y.double() - ACTIVATION_FUNCTIONS["laplace"](x.double())).abs().max() <= 3 * 2**-24


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_special_values(isa, name):
    """NaN stays NaN, large values do what float64 does; at -inf some formulas are inf * 0 there, as they are here."""
    x = torch.tensor([float("nan"), float("inf"), float("-inf"), 0.0, 1e30, -1e30, 3e38, -3e38] * 2)
    y = x.clone()
    _cpu.activate(y, name)
    true = ACTIVATION_FUNCTIONS[name](x.double()).float()
    assert y[x.isnan()].isnan().all()
    defined = ~true.isnan()
    torch.testing.assert_close(y[defined], true[defined])
