"""The loop of `encode` for a model on a GPU: the engine's batches, results that stay where they are computed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing

import torch
from torch import Tensor, nn

from fastsal.backends import PreparedEncoder
from fastsal.engine.encode_loop import packed_batches
from fastsal.engine.packing import PackedBatch
from fastsal.engine.pipeline import Output
from fastsal.engine.tokenization import Tokens
from fastsal.sentence_transformers.tail import run_module


def device_computation(
    encoder: PreparedEncoder, output: Output, tail: Sequence[nn.Module], dtype: torch.dtype | None, to_cpu: bool
) -> Callable[[PackedBatch], Tensor]:
    """A batch of B sentences -> (B, D) of `dtype`. `tail` are the modules that the steps of `output` stand for."""

    def compute(batch: PackedBatch) -> Tensor:
        rows = encoder.sentence_embeddings(batch, output.pooling)
        rows = rows if dtype is None else rows.to(dtype)
        for module in tail:
            rows = run_module(module, rows)
        if output.truncate_dim is not None:
            rows = rows[..., : output.truncate_dim]
        if output.normalize:
            rows = nn.functional.normalize(rows)
        return rows.cpu() if to_cpu else rows

    return compute


def embed_on_device(
    texts: Sequence[str],
    tokenize: Callable[[Sequence[str]], Tokens],
    compute: Callable[[PackedBatch], Tensor],
    max_tokens: int,
    report: Callable[[int], object],
) -> Tensor:
    """As `fastsal.engine.encode_loop.embed`, for tensors: (len(texts), D) where `compute` leaves them."""
    result: Tensor | None = None
    with closing(packed_batches(texts, tokenize, max_tokens)) as batches:
        for positions, batch in batches:
            embeddings = compute(batch)
            if result is None:
                result = embeddings.new_empty(len(texts), embeddings.shape[1])
            result[torch.from_numpy(positions).to(result.device)] = embeddings
            report(len(positions))
    if result is None:
        raise ValueError("texts must not be empty")
    return result
