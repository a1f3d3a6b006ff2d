"""`fastsal.accelerate`, `prepare` and `restore`: the encoders in a module, and a SentenceTransformer around them."""

from __future__ import annotations

import sys
from typing import TypeVar

import torch
from torch import nn

from fastsal.modules.acceleration import accelerate_encoders, restore_encoders
from fastsal.modules.encoders import fast_encoders

M = TypeVar("M", bound=nn.Module)


def accelerate(model: M, dtype: str | torch.dtype | None = None, backend: str = "auto", strict: bool = False) -> M:
    """Let fastsal's kernels compute the AlbertModels and BertModels in `model`: in place, by changing their classes.

    Args:
        model: an AlbertModel or BertModel, or any module that contains some: a model with a head, a
            SentenceTransformer (which becomes a SentenceEncoder), a CrossEncoder. Encoders that are accelerated already
            get the new settings.
        dtype: what the kernels compute in: "float32", "bfloat16", "float16", "int8"; None for the dtype of the
            parameters (on a CPU float32 where that is float16). Results have the dtype of the parameters in any case.
        backend: "auto", "cpu", "triton" or "reference".
        strict: raise NotCoveredError where the reference would run, for models (now) and for calls.

    Returns:
        `model`. ``encoder.fastsal_status()`` tells what computes each encoder in it, `restore` undoes it.

    Raises:
        ValueError: there is no encoder to accelerate in `model`, or an unknown dtype or backend.
        BackendError: a dtype or backend that was named cannot run for this model here. `model` is then as it was.
        NotCoveredError: the kernels do not cover an encoder in `model`, and `strict` is set.

    Changed weights are noticed at the next call and packed again: by an optimizer step, `load_state_dict`, `to`,
    `half`, `resize_token_embeddings`, by assigning parameters or submodules. A write that PyTorch counts no version for
    (through ``parameter.data`` or a NumPy view, by a collective, by another process into shared memory) is noticed on
    the CPU where it changes a tensor as a whole: a sample of every tensor's content is compared. Single numbers or rows
    written so may go unnoticed, as do all such writes on a GPU: write ``with torch.no_grad(): parameter.copy_(...)``
    instead.
    """
    accelerate_encoders(model, dtype, backend, strict)
    _change_sentence_transformer(model, fast=True)
    return model


def prepare(model: M) -> M:
    """Pack the weights of the accelerated encoders in `model` now, not at the first call. Returns `model`.

    Before processes are forked: the children then share one copy. Where the kernels do not compute an encoder, nothing
    is done for it.

    Raises:
        ValueError: there is no accelerated encoder in `model`.
        BackendError: a dtype or backend that was named cannot run any more.
    """
    encoders = fast_encoders(model).values()
    if not encoders:
        raise ValueError(f"model must contain an accelerated encoder (fastsal.accelerate), got {type(model).__name__}")
    for encoder in encoders:
        encoder._fastsal.prepare(encoder)
    module = sys.modules.get("fastsal.sentence_transformers.sentence_encoder")
    if module is not None and isinstance(model, module.SentenceEncoder):
        model._prepare_pooling()
    return model


def restore(model: M) -> M:
    """Undo `accelerate` everywhere in `model`, in place, and drop the packed weights. Returns `model`."""
    restore_encoders(model)
    _change_sentence_transformer(model, fast=False)
    return model


def _change_sentence_transformer(model: nn.Module, fast: bool) -> None:
    """SentenceTransformer -> SentenceEncoder and back; other classes stay what they are."""
    if "sentence_transformers" not in sys.modules:  # then `model` is none, and importing it takes seconds
        return
    from sentence_transformers import SentenceTransformer

    from fastsal.sentence_transformers.sentence_encoder import SentenceEncoder

    if fast and type(model) is SentenceTransformer:
        model.__class__ = SentenceEncoder
    elif not fast and type(model) is SentenceEncoder:
        model.__class__ = SentenceTransformer  # type: ignore[assignment]
