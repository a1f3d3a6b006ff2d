"""Linear kernels against plain PyTorch."""

from __future__ import annotations

import pytest
import torch
from kernel_case import DEVICE, DTYPES, TUNING, normal, poisoned, rounded
from oracle import ACTIVATION_FUNCTIONS
from tolerance import assert_as_exact_as_reference
from torch.nn import functional

from fastsal.engine.spec import ACTIVATIONS
from fastsal.kernels.triton.linear import (
    bias_activation_in_place,
    linear,
    linear_into,
    project_norm,
    project_norm_into,
)


def reference_linear(x, weight, bias, residual, activation):
    y = ACTIVATION_FUNCTIONS[activation](functional.linear(x, weight, bias))
    return y if residual is None else y + residual


def reference_project_norm(x, weight, bias, residual, norm_weight, norm_bias, eps):
    y = functional.linear(x, weight, bias) + residual
    return functional.layer_norm(y, y.shape[-1:], norm_weight, norm_bias, eps)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activations(dtype, activation):
    x, weight, bias = rounded(dtype, normal(33, 26), normal(40, 26, std=0.8), normal(40))
    truth = reference_linear(x.double(), weight.double(), bias.double(), None, activation)
    reference = reference_linear(x, weight, bias, None, activation)
    assert_as_exact_as_reference(linear(x, weight, bias, None, activation), reference, truth)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("num_rows", [1, 15, 129])
@pytest.mark.parametrize(("num_columns", "num_inputs"), [(26, 26), (96, 32), (1, 1), (70, 200)])
@pytest.mark.parametrize("extras", ["bias", "residual", "none"])
def test_sizes(dtype, num_rows, num_columns, num_inputs, extras):
    x, weight = rounded(dtype, normal(num_rows, num_inputs), normal(num_columns, num_inputs, std=num_inputs**-0.5))
    bias, residual = rounded(dtype, normal(num_columns), normal(num_rows, num_columns, seed=1))
    bias = None if extras == "none" else bias
    residual = residual if extras == "residual" else None
    doubles = [None if t is None else t.double() for t in (x, weight, bias, residual)]
    out = poisoned(num_rows, num_columns, dtype=dtype)
    linear_into(x, weight, bias, residual, "linear", out, TUNING)
    reference = reference_linear(x, weight, bias, residual, "linear")
    assert_as_exact_as_reference(out, reference, reference_linear(*doubles, "linear"))


def test_strided_rows():
    x, weight, bias = rounded(torch.float32, normal(20, 64), normal(24, 32), normal(24))
    out = poisoned(20, 48, dtype=torch.float32)
    linear_into(x[:, 16:48], weight, bias, None, "linear", out[:, :24], TUNING)
    torch.testing.assert_close(out[:, :24], functional.linear(x[:, 16:48], weight, bias))
    assert out[:, 24:].isnan().all()


def test_sums_are_float32():
    """bfloat16 and float16 sums would stall at 256 and 2048."""
    dtype = torch.bfloat16 if DEVICE.type == "cuda" else torch.float16
    ones = torch.ones(1, 4096, dtype=dtype, device=DEVICE)
    assert linear(ones, ones, None, None, "linear").item() == 4096


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("num_rows", "num_columns", "num_inputs"), [(1, 26, 26), (17, 312, 40), (130, 64, 26)])
def test_project_norm(dtype, num_rows, num_columns, num_inputs):
    x, weight = rounded(dtype, normal(num_rows, num_inputs), normal(num_columns, num_inputs, std=num_inputs**-0.5))
    bias, scale, shift = rounded(dtype, normal(num_columns), normal(num_columns, seed=1), normal(num_columns, seed=2))
    (residual,) = rounded(dtype, normal(num_rows, num_columns, seed=3) + 4)
    arguments = (x, weight, bias, residual, scale, shift)
    out = poisoned(num_rows, num_columns, dtype=dtype)
    project_norm_into(*arguments, 1e-12, out, TUNING)
    truth = reference_project_norm(*(t.double() for t in arguments), 1e-12)
    assert_as_exact_as_reference(out, reference_project_norm(*arguments, 1e-12), truth)


@pytest.mark.parametrize("dtype", DTYPES)
def test_bias_and_activation_in_place(dtype):
    x, bias = rounded(dtype, normal(33, 70), normal(70))
    truth, reference = functional.gelu(x.double() + bias.double()), functional.gelu(x + bias)
    bias_activation_in_place(x, bias, "gelu", TUNING)
    assert_as_exact_as_reference(x, reference, truth)


@pytest.mark.parametrize("value", [3.0, 0.0, 6e4, -6e4])
def test_project_norm_of_constant_rows_is_the_bias(value):
    zeros = torch.zeros(70, 16, dtype=torch.float16, device=DEVICE)
    bias = torch.full((70,), value, dtype=torch.float16, device=DEVICE)
    scale, shift = rounded(torch.float16, normal(70), normal(70, seed=1))
    out = project_norm(zeros[:5], zeros, bias, zeros.new_zeros(5, 70), scale, shift, 1e-12)
    assert torch.equal(out, shift.expand(5, 70))


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # numpy's, in the interpreter
@pytest.mark.parametrize("dtype", [dtype for dtype in DTYPES if dtype != torch.float32])
@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh"])
def test_the_cheap_gelu_is_exact_to_the_dtypes_rounding(dtype, activation):
    """Every value by itself, not only in the norm: also the small ones of negative numbers."""
    steps = torch.cat([torch.linspace(-6.5, 8, 4000), torch.linspace(-0.01, 0.01, 96)]).double()
    (x,) = rounded(dtype, steps.view(32, 128))
    approximate = "tanh" if activation == "gelu_tanh" else "none"
    truth = functional.gelu(x.double(), approximate=approximate)
    odd = torch.tensor([float("nan"), float("-inf")], dtype=dtype, device=DEVICE)
    out = x.clone()
    out[0, :2] = odd
    bias_activation_in_place(out, torch.zeros(128, dtype=dtype, device=DEVICE), activation, TUNING)
    assert out[0, :2].isnan().all()
    error, eps = (out.double() - truth).abs()[1:], torch.finfo(dtype).eps
    # half a unit in the last place, and a quarter of that for the formula; below the normal numbers units are equal
    assert (error <= 0.625 * eps * truth[1:].abs() + 2.0**-25).all()
