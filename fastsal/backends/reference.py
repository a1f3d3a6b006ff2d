"""The reference: sentence embeddings from padded batches of the Hugging Face modules, pooled in plain PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from fastsal.engine.packing import PackedBatch
from fastsal.engine.pooling import PoolingSpec, check_lengths

#: Padded tokens in one forward pass.
_BATCH_TOKENS = 8192


def reference_sentence_embeddings(
    forward: Callable[..., Any], batch: PackedBatch, pooling: PoolingSpec, hidden_size: int, device: torch.device
) -> Tensor:
    """Run `forward` on padded batches of sentences of like lengths, and pool.

    Args:
        forward: an encoder's Hugging Face forward.
        batch: B sentences with `input_ids`.
        hidden_size: of the encoder.
        device: where its parameters are.

    Returns:
        (B, pooling.output_size(hidden_size)) in the dtype that `forward` returns, rows in the order of `batch`.
        Differentiable where `forward` is.

    Raises:
        ValueError: a sentence is shorter than a convolution needs, or the convolutions' lengths differ.
    """
    lengths = torch.from_numpy(batch.cu_seqlens).diff()
    if batch.input_ids is None or not len(lengths):
        return torch.zeros(0, pooling.output_size(hidden_size), device=device)
    check_lengths(lengths.tolist(), pooling)
    order = torch.argsort(lengths, descending=True, stable=True)
    ids = torch.from_numpy(batch.input_ids).split(lengths.tolist())
    types = torch.from_numpy(batch.token_type_ids).split(lengths.tolist())

    results: list[Tensor] = []
    start = 0
    while start < len(order):
        # An empty sentence still needs a column: the reference cannot run without one.
        longest = max(int(lengths[order[start]]), 1)
        rows = order[start : start + max(_BATCH_TOKENS // longest, 1)].tolist()
        start += len(rows)
        mask = torch.arange(longest)[None] < lengths[rows][:, None]
        padded_ids, padded_types = (_pad([tokens[row] for row in rows], longest) for tokens in (ids, types))
        output = forward(
            input_ids=padded_ids.to(device),
            attention_mask=mask.to(device, torch.int64),
            token_type_ids=padded_types.to(device),
            return_dict=True,
        )
        results.append(pool_padded(output.last_hidden_state, mask.to(device), pooling))
    return torch.cat(results)[torch.argsort(order).to(device)]


def pool_padded(hidden: Tensor, mask: Tensor, pooling: PoolingSpec) -> Tensor:
    """Pool (B, S, H) hidden states of right-padded sentences.

    Args:
        mask: (B, S) bool. What is masked is never read, so each row is as if its sentence were alone.

    Returns:
        (B, pooling.output_size(H)) in `hidden`'s dtype; sums are in float32 at least.
    """
    dtype = hidden.dtype
    states = hidden.to(torch.promote_types(dtype, torch.float32)).masked_fill(~mask[..., None], 0)
    lengths = mask.sum(dim=1)
    if pooling.convolutions:
        states, lengths = _convolve(states, lengths, pooling)

    columns = torch.arange(states.shape[1], device=states.device)[None]
    kept = (columns < lengths[:, None]) & (columns >= pooling.skip_tokens)
    has_kept = kept.any(dim=1)
    weights = kept.to(states.dtype)
    positions = weights * (columns + 1)
    count = weights.sum(dim=1, keepdim=True).clamp(min=1e-9)

    def row_at(index: Tensor) -> Tensor:
        return states.gather(1, index[:, None, None].expand(-1, 1, states.shape[2])).squeeze(1)

    def pool(mode: str) -> Tensor:
        if mode == "cls":
            return row_at(pooling.skip_tokens * has_kept)
        if mode == "lasttoken":
            return row_at((lengths - 1).clamp(min=0)) * has_kept[:, None]
        if mode == "max":
            return states.masked_fill(~kept[..., None], float("-inf")).amax(dim=1)
        if mode == "weightedmean":
            return _weighted_sum(positions, states) / positions.sum(dim=1, keepdim=True).clamp(min=1e-9)
        total = _weighted_sum(weights, states)
        return total / (count if mode == "mean" else count.sqrt())

    result = torch.cat([pool(mode) for mode in pooling.modes], dim=1)
    if pooling.normalize:
        result = functional.normalize(result, dim=1)
    return result.to(dtype)


def _weighted_sum(weights: Tensor, states: Tensor) -> Tensor:
    return torch.einsum("bs,bsh->bh", weights, states)


def _convolve(states: Tensor, lengths: Tensor, pooling: PoolingSpec) -> tuple[Tensor, Tensor]:
    """The CNN over states that are zero beyond each sentence's end: (B, S', C), and the number of positions per row."""
    first = pooling.convolutions[0]
    token_counts = lengths.tolist()
    output_lengths = torch.tensor([first.output_length(n) if n else 0 for n in token_counts], device=states.device)
    if not any(token_counts):
        width = sum(c.weight.shape[0] for c in pooling.convolutions)
        return states.new_zeros(len(states), 1, width), output_lengths

    outputs = []
    for convolution in pooling.convolutions:
        weight = convolution.weight.to(states)
        bias = None if convolution.bias is None else convolution.bias.to(states)
        padding = (convolution.kernel_size - 1) // 2
        outputs.append(
            functional.conv1d(states.transpose(1, 2), weight, bias, convolution.stride, padding).transpose(1, 2)
        )
    convolved = torch.cat(outputs, dim=2)
    columns = torch.arange(convolved.shape[1], device=states.device)
    return convolved.masked_fill((columns >= output_lengths[:, None])[..., None], 0), output_lengths


def _pad(rows: list[Tensor], length: int) -> Tensor:
    """(B, length) from 1-D tensors; the padding is id 0, which every table has."""
    padded = rows[0].new_zeros(len(rows), length)
    for index, row in enumerate(rows):
        padded[index, : len(row)] = row
    return padded
