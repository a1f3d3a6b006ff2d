"""Padded batches of tensors <-> packed batches, as a drop-in module's forward takes and gives them.

Integers are packed on the host, where every backend checks them; hidden states stay on their device.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from fastsal.backends.rows import as_numpy, cast
from fastsal.engine.packing import PackedBatch, pack_padded, pack_rectangle


def pack(
    shape: tuple[int, int],
    mask: Tensor | None,
    input_ids: Tensor | None = None,
    inputs_embeds: Tensor | None = None,
    position_ids: Tensor | None = None,
    token_type_ids: Tensor | None = None,
) -> tuple[PackedBatch, np.ndarray | None]:
    """Take the tokens where `mask` is true out of a (B, S) = `shape` batch.

    Args:
        mask: (B, S) bool; holes and empty rows are allowed. None: all of them.
        input_ids: (B, S) integers, or `inputs_embeds`: (B, S, embedding_size). Exactly one of them.
        position_ids: (B, S) or (1, S) integers; the column numbers when None.
        token_type_ids: (B, S) or (1, S) integers; zeros when None.

    Returns:
        The packed batch and the (T,) int64 indices of its tokens in the flattened (B * S) batch for `unpack`; None
        without a mask.
    """
    ids, positions, types = map(_on_host, (input_ids, position_ids, token_type_ids))
    index = None
    if mask is None:
        batch = pack_rectangle(shape, ids, positions, types)
    else:
        batch, index = pack_padded(mask.cpu().numpy(), ids, positions, types)
    if inputs_embeds is None:
        return batch, index
    vectors = _gather(inputs_embeds.detach().reshape(-1, inputs_embeds.shape[2]), index)
    return PackedBatch(batch.cu_seqlens, batch.position_ids, batch.token_type_ids, inputs_embeds=vectors), index


def unpack(packed: Tensor, index: np.ndarray, num_rows: int, num_columns: int) -> Tensor:
    """Scatter (T, H) packed rows to (B, S, H); masked positions are zeros."""
    padded = packed.new_empty(num_rows * num_columns, packed.shape[-1])
    if packed.is_cpu:  # by numpy: see fastsal.backends.rows
        rows = as_numpy(padded)
        rows.fill(0)
        rows[index] = as_numpy(packed)
    else:
        padded.zero_().index_copy_(0, torch.from_numpy(index).to(packed.device), packed)
    return padded.view(num_rows, num_columns, -1)


def _on_host(ids: Tensor | None) -> np.ndarray | None:
    return None if ids is None else ids.detach().cpu().numpy()


def _gather(vectors: Tensor, index: np.ndarray | None) -> np.ndarray | Tensor:
    """The rows of (B * S, E) `vectors` that `index` names: float32 numbers on the CPU, a tensor elsewhere."""
    if vectors.is_cpu:
        rows = np.ascontiguousarray(cast(vectors, torch.float32).numpy())
        return rows if index is None else rows.take(index, axis=0)
    return vectors.contiguous() if index is None else vectors[torch.from_numpy(index).to(vectors.device)]
