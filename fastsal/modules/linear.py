"""A linear layer and its tanh behind an encoder, on the CPU kernels instead of torch's.

For the few rows of a pooler, torch wakes its OpenMP threads, for tanh at every call once `torch.set_num_threads` was
used. They spin for milliseconds afterwards, on the processors that the next call's kernels want: on two cores
ALBERT-base took twice the time for a sentence. A row's result by the kernels does not depend on the rows beside it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from fastsal.backends.cpu import as_floats
from fastsal.backends.rows import cast
from fastsal.engine import native
from fastsal.modules.architectures.reader import has_other_forward

#: Of parameters whose products the kernels compute, in float32 at least.
_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def linear_and_tanh(layer: nn.Module, activation: nn.Module, rows: Tensor) -> Tensor:
    """`activation(layer(rows))` for `rows` (B, in_features): by the CPU kernels, in float32, what is a plain product,
    and a tanh behind it. The result has the dtype of `rows`."""
    if not _is_plain_product(layer, rows):
        return activation(layer(rows))
    if type(activation) is nn.Tanh and not is_hooked(activation):
        return _linear(layer, rows, "tanh")
    return activation(_linear(layer, rows, "linear"))


def _linear(layer: Any, rows: Tensor, activation: str) -> Tensor:
    bias = None if layer.bias is None else as_floats(layer.bias)
    output = native.linear(as_floats(rows), as_floats(layer.weight), bias, activation, torch.get_num_threads())
    return cast(torch.from_numpy(output), rows.dtype)


def is_hooked(module: nn.Module) -> bool:
    """Whether calling `module` may do more than its class's forward."""
    return bool(module._forward_hooks or module._forward_pre_hooks) or has_other_forward(module)


def _is_plain_product(layer: nn.Module, rows: Tensor) -> bool:
    if type(layer) is not nn.Linear or is_hooked(layer):
        return False
    tensors = [rows, layer.weight] if layer.bias is None else [rows, layer.weight, layer.bias]
    return (
        rows.dtype in _DTYPES
        and all(type(t) in (Tensor, nn.Parameter) and t.dtype is rows.dtype and t.is_cpu for t in tensors)
        and layer.weight.dim() == rows.dim() == 2
        and rows.shape[1] == layer.weight.shape[1]
        and (layer.bias is None or layer.bias.shape == layer.weight.shape[:1])
        and all(tensor.data_ptr() for tensor in tensors)  # else torch says what is wrong
        and not (torch.is_grad_enabled() and any(t.requires_grad for t in tensors))
    )
