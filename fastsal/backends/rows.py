"""Work on tensors around the kernels, on the CPU without torch's OpenMP threads.

torch shares an operation on GRAIN elements or more out to OpenMP threads. They do not survive a fork, and a child
process waits for them for ever; and they spin for milliseconds afterwards, on the processors that the next call's
kernels want. So numpy works on the tensors' memory, or torch in pieces below the grain. Other devices have torch's own.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

#: Elements from which on torch starts OpenMP threads (`at::internal::GRAIN_SIZE`).
GRAIN = 32_768


def as_numpy(tensor: Tensor) -> np.ndarray:
    """The same memory, on the CPU; numpy has no bfloat16, so that is seen as int16."""
    return (tensor.view(torch.int16) if tensor.dtype == torch.bfloat16 else tensor).numpy()


def from_numpy(array: np.ndarray, dtype: torch.dtype) -> Tensor:
    """The same memory as `dtype`: what `as_numpy` is undone by."""
    return torch.from_numpy(array).view(dtype)


def threadless(tensor: Tensor) -> Any:
    """The same memory with the methods that numpy's arrays and tensors share, which start no OpenMP thread."""
    return as_numpy(tensor) if tensor.is_cpu else tensor


def as_bool(mask: Tensor) -> Tensor:
    """`mask` of any dtype, True where it is not zero."""
    if mask.dtype is torch.bool or not mask.is_cpu or mask.dtype is torch.bfloat16:
        return mask.to(torch.bool)
    return torch.from_numpy(mask.detach().numpy() != 0)


def limits(ids: Tensor) -> tuple[int, int]:
    """The smallest and the largest of integers, at least one."""
    low, high = (ids.numpy().min(), ids.numpy().max()) if ids.is_cpu else ids.aminmax()
    return int(low), int(high)


def cast(tensor: Tensor, dtype: torch.dtype | None) -> Tensor:
    """`tensor.to(dtype)`, contiguous where that copies; None keeps the dtype."""
    if dtype is None or tensor.dtype is dtype:
        return tensor
    if not tensor.is_cpu or tensor.numel() < GRAIN:
        return tensor.to(dtype)
    output = torch.empty(tensor.shape, dtype=dtype)
    sources, targets = contiguous(tensor).view(-1).split(GRAIN - 1), output.view(-1).split(GRAIN - 1)
    for source, target in zip(sources, targets, strict=True):
        target.copy_(source)
    return output


def contiguous(tensor: Tensor) -> Tensor:
    """`tensor.contiguous()`, of a tensor without gradients."""
    if tensor.is_contiguous() or not tensor.is_cpu or tensor.numel() < GRAIN:
        return tensor.contiguous()
    return from_numpy(np.ascontiguousarray(as_numpy(tensor)), tensor.dtype)
