"""Casts in pieces: the bits are those of torch on the whole tensor."""

from __future__ import annotations

import pytest
import torch

from fastsal.backends.rows import GRAIN, as_numpy, cast, from_numpy

SIZES = [(3, 5), (GRAIN // 64 - 1, 64), (GRAIN // 64, 64), (700, 191), (2, GRAIN + 1)]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("source", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("target", [torch.float32, torch.bfloat16, torch.float16])
def test_cast(source, target, size):
    tensor = (1e4 * torch.randn(size).exp()).to(source)  # some are infinite in float16
    result = cast(tensor, target)
    assert torch.equal(result, tensor.to(target))
    assert result.dtype is target
    assert torch.equal(cast(tensor.T, target), tensor.T.to(target))


def test_cast_to_the_same_dtype_copies_nothing():
    tensor = torch.randn(500, 100)
    assert cast(tensor, None) is tensor
    assert cast(tensor, torch.float32) is tensor


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.int64])
def test_numpy_and_back_is_the_same_memory(dtype):
    tensor = torch.ones(2, 3, dtype=dtype)
    back = from_numpy(as_numpy(tensor), dtype)
    assert back.dtype is dtype
    assert back.data_ptr() == tensor.data_ptr()
