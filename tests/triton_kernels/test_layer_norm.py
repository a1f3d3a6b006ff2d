"""LayerNorm of a sum against plain PyTorch."""

from __future__ import annotations

import pytest
import torch
from kernel_case import DEVICE, DTYPES, TUNING, normal, poisoned, rounded
from tolerance import assert_as_exact_as_reference
from torch.nn import functional

from fastsal.kernels.triton.layer_norm import residual_norm, residual_norm_into


def reference(x, bias, residual, norm_weight, norm_bias, eps):
    total = x if bias is None else x + bias
    total = total if residual is None else total + residual
    return functional.layer_norm(total, total.shape[-1:], norm_weight, norm_bias, eps)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("num_rows", [1, 3, 33])
@pytest.mark.parametrize("num_columns", [1, 26, 312])
def test_sums(dtype, num_rows, num_columns):
    x, residual = rounded(dtype, normal(num_rows, num_columns), normal(num_rows, num_columns, seed=1) + 3)
    bias, scale, shift = rounded(dtype, *(normal(num_columns, seed=seed) for seed in range(3)))
    for extras in ((bias, residual), (None, residual), (bias, None)):
        arguments = (x, *extras, scale, shift)
        out = poisoned(num_rows, num_columns, dtype=dtype)
        residual_norm_into(*arguments, 1e-12, out, TUNING)
        truth = reference(*(None if t is None else t.double() for t in arguments), 1e-12)
        assert_as_exact_as_reference(out, reference(*arguments, 1e-12), truth)


@pytest.mark.parametrize("value", [3.0, 0.0, 6e4, -6e4])
@pytest.mark.parametrize("num_columns", [1, 26, 312])
def test_constant_rows_come_out_as_the_bias(value, num_columns):
    x = torch.full((3, num_columns), value, dtype=torch.float16, device=DEVICE)
    scale, shift = rounded(torch.float16, normal(num_columns), normal(num_columns, seed=1))
    assert torch.equal(residual_norm(x, None, None, scale, shift, 1e-12), shift.expand(3, num_columns))


def test_result_may_replace_an_input():
    x, residual, scale, shift = rounded(torch.float32, normal(9, 26), normal(9, 26, seed=1), normal(26), normal(26))
    expected = residual_norm(x, None, residual, scale, shift, 1e-5)
    residual_norm_into(x, None, residual, scale, shift, 1e-5, residual, TUNING)
    assert torch.equal(residual, expected)
