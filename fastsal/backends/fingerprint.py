"""Whether a PoolingSpec of torch tensors is still as it was packed."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.weak import WeakTensorKeyDictionary

from fastsal.backends.content import ContentSample
from fastsal.engine.pooling import PoolingSpec

#: Steps of the tensors that `optimizer_steps` was asked about.
_steps: WeakTensorKeyDictionary = WeakTensorKeyDictionary()


def pooling_fingerprint(pooling: PoolingSpec) -> tuple:
    """Hashable; changes whenever what is computed does, the convolutions' weights included.

    A holder must keep the spec, so that no other tensor gets the addresses in it.
    """
    tensors: list[Tensor] = [t for c in pooling.convolutions for t in (c.weight, c.bias) if t is not None]
    return (
        pooling.modes,
        pooling.skip_tokens,
        pooling.normalize,
        *((t.data_ptr(), _version(t), t.dtype, tuple(t.shape)) for t in tensors),
        *((c.stride, c.bias is None) for c in pooling.convolutions),
        ContentSample(tensors).take(),
    )


def optimizer_steps(tensor: Tensor) -> int:
    """How often an optimizer has stepped `tensor` since this was first asked about it."""
    return _steps.setdefault(tensor, 0)


def stepped_tensors(optimizer: torch.optim.Optimizer) -> set[int]:
    """The ids of the tensors that a step of `optimizer` may have written to."""
    return {id(p) for group in optimizer.param_groups for p in group["params"] if p.grad is not None}


def _version(tensor: Tensor) -> object:
    """Differs from before whenever the values may."""
    if tensor.is_inference():  # it counts no versions: never known to be as it was
        return object()
    return tensor._version, optimizer_steps(tensor)


def _note_optimizer_step(optimizer: torch.optim.Optimizer, args: object, kwargs: object) -> None:
    """Fused optimizers, transformers' Trainer's default, write parameters without counting versions (torch 2.13)."""
    stepped = stepped_tensors(optimizer)
    for tensor in list(_steps):
        if id(tensor) in stepped:
            _steps[tensor] += 1


register_optimizer_step_post_hook(_note_optimizer_step)
