"""Puts the kernels under the encoders in a module, in place, and takes them away again."""

from __future__ import annotations

from typing import TypeVar

import torch
from torch import nn
from transformers.modeling_utils import PreTrainedModel

from fastsal.backends import BACKENDS
from fastsal.modules.coverage import NotCoveredError
from fastsal.modules.encoders import FAST_CLASSES, FastEncoderMixin, fast_encoders, reference_class
from fastsal.modules.preparation import Settings, make_plan, make_settings

M = TypeVar("M", bound=nn.Module)


def accelerate_encoders(
    model: M, dtype: str | torch.dtype | None = None, backend: str = "auto", strict: bool = False
) -> M:
    """`fastsal.accelerate`, which says more, for the encoders in `model`: its own class stays what it is."""
    if not isinstance(model, nn.Module):
        raise ValueError(f"model must be a torch module that contains an AlbertModel or BertModel, got {type(model)}")
    if backend not in ("auto", *BACKENDS):
        raise ValueError(f"backend must be 'auto' or one of {BACKENDS}, got {backend!r}")
    settings = make_settings(dtype, backend, strict)
    encoders = [m for m in model.modules() if type(m) in FAST_CLASSES or isinstance(m, FastEncoderMixin)]
    if not encoders:
        found = sorted({type(m).__name__ for m in model.modules() if isinstance(m, PreTrainedModel)})
        described = f"{type(model).__name__} with {', '.join(found)} in it" if found else type(model).__name__
        raise ValueError(f"model must be or contain an AlbertModel or BertModel, got {described}")
    for encoder in encoders:  # all of them before anything is changed
        plan = make_plan(encoder, settings)
        if strict and plan.backend is None and backend != "reference":
            raise NotCoveredError(f"{type(encoder).__name__}: the kernels do not cover this model: {plan.detail}")

    for encoder in encoders:
        encoder.__class__ = FAST_CLASSES.get(type(encoder), type(encoder))
    for fast in fast_encoders(model).values():
        fast._prepare_anew(settings)
    return model


def restore_encoders(model: M) -> M:
    """Undo `accelerate_encoders` everywhere in `model`, in place, and drop the packed weights. Returns `model`."""
    for encoder in fast_encoders(model).values():
        if type(encoder) in FAST_CLASSES.values():
            encoder.__class__ = reference_class(type(encoder))  # type: ignore[assignment]
            del encoder.__dict__["_fastsal"]
        else:  # a subclass of the user's
            encoder._prepare_anew(Settings())
    return model
