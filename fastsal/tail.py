"""The modules of a SentenceTransformer that run behind what the kernels compute in one pass.

Dense and Normalize keep off torch's OpenMP threads (see `fastsal.rows`). What torch itself runs may wake them:
LayerNorm (for two rows already), Dense with a residual or in bfloat16, and activations but tanh on large results.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from sentence_transformers.base.modules import Dense, Normalize
from torch import Tensor, nn

from fastsal.linear import is_hooked, linear_and_tanh
from fastsal.rows import by_rows


def run_tail(tail: Sequence[nn.Module], embeddings: Tensor) -> Tensor:
    """Sentence embeddings (B, D) through each of `tail`, the modules that `fastsal.pipeline` lets through: (B, D')."""
    for module in tail:
        if _is_plain_dense(module):
            embeddings = linear_and_tanh(module.linear, module.activation_function, embeddings)  # type: ignore[arg-type]
        elif type(module) is Normalize:
            embeddings = by_rows(partial(_run, module), embeddings)
        else:
            embeddings = _run(module, embeddings)
    return embeddings


def _is_plain_dense(module: nn.Module) -> bool:
    """Whether all that `module` does is its linear layer and its activation."""
    return (
        type(module) is Dense
        and not module.use_residual
        and module.module_output_name == "sentence_embedding"
        and isinstance(module.activation_function, nn.Module)
        and not is_hooked(module)
    )


def _run(module: nn.Module, embeddings: Tensor) -> Tensor:
    return module({"sentence_embedding": embeddings, "modality": "text"})["sentence_embedding"]
