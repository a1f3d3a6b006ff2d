"""Padded batches and token lists <-> packed tokens: the sentences' tokens one after the other, no padding between.

padded (B, S)             packed (T,)            cu_seqlens (B + 1,)
[ a0 a1 a2  .  . ]
[ b0  .  .  .  . ]   ->   a0 a1 a2 b0 c0 c1      0 3 4 4 6
[  .  .  .  .  . ]
[  . c0  . c1  . ]
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import torch
from torch import Tensor

from fastsal.rows import as_numpy, from_numpy


@dataclass(frozen=True)
class PackedBatch:
    """T tokens of B sentences, packed. All tensors are contiguous and on one device.

    Attributes:
        cu_seqlens: (B + 1,) int64; sentence b owns tokens ``cu_seqlens[b]:cu_seqlens[b + 1]``, which may be none.
        position_ids: (T,) int64, rows of the position table.
        token_type_ids: (T,) int64, rows of the type table.
        input_ids: (T,) int64, rows of the word table; None where `inputs_embeds` is given.
        inputs_embeds: (T, embedding_size), used in place of word embeddings; None where `input_ids` is given.
    """

    cu_seqlens: Tensor
    position_ids: Tensor
    token_type_ids: Tensor
    input_ids: Tensor | None = None
    inputs_embeds: Tensor | None = None

    @property
    def num_sentences(self) -> int:
        return self.cu_seqlens.numel() - 1

    @property
    def num_tokens(self) -> int:
        return self.position_ids.numel()


@dataclass(frozen=True)
class TokenBlocks:
    """B packed sentences in N blocks of whole consecutive sentences. A block has at most `block_tokens` tokens, unless
    it is one longer sentence.

    Attributes:
        blocks: (N, 4) int32: first token, last token + 1, first sentence, last sentence + 1.
        segments: (T,) int32, the number of each token's sentence.
        block_tokens: as asked for.
        longest: tokens of the longest sentence, 0 without any.
    """

    blocks: np.ndarray
    segments: np.ndarray
    block_tokens: int
    longest: int

    def tiles(self) -> np.ndarray:
        """(M, 4) int32 for attention: first token that asks, last + 1, first token that is seen, last + 1.

        A block without tokens has no tile, a longer sentence one for every `block_tokens` of its tokens.
        """
        starts, ends = self.blocks[:, 0], self.blocks[:, 1]
        counts = -((starts - ends) // self.block_tokens)
        block = np.repeat(np.arange(len(self.blocks)), counts)
        index = np.arange(len(block)) - np.repeat(np.cumsum(counts) - counts, counts)
        tiles = np.empty((len(block), 4), np.int32)
        tiles[:, 0] = starts[block] + index * self.block_tokens
        tiles[:, 1] = np.minimum(tiles[:, 0] + self.block_tokens, ends[block])
        tiles[:, 2], tiles[:, 3] = starts[block], ends[block]
        return tiles


def token_blocks(cu_seqlens: np.ndarray, block_tokens: int) -> TokenBlocks:
    """Fill each block with the sentences that follow as long as they fit.

    Args:
        cu_seqlens: (B + 1,) integers, bounds of the sentences, from 0.
        block_tokens: at least 1.
    """
    bounds = cu_seqlens.tolist()
    rows, first = [], 0
    while first < len(bounds) - 1:
        end = max(bisect_right(bounds, bounds[first] + block_tokens) - 1, first + 1)
        rows.append((bounds[first], bounds[end], first, end))
        first = end
    lengths = np.diff(cu_seqlens)
    return TokenBlocks(
        blocks=np.array(rows, np.int32).reshape(-1, 4),
        segments=np.repeat(np.arange(len(lengths), dtype=np.int32), lengths),
        block_tokens=block_tokens,
        longest=int(lengths.max(initial=0)),
    )


def pack_padded(
    mask: Tensor,
    input_ids: Tensor | None = None,
    inputs_embeds: Tensor | None = None,
    position_ids: Tensor | None = None,
    token_type_ids: Tensor | None = None,
) -> tuple[PackedBatch, Tensor]:
    """Gather the tokens where `mask` is true.

    Args:
        mask: (B, S) bool; holes and empty rows are allowed.
        input_ids: (B, S) integer, or `inputs_embeds`: (B, S, embedding_size). Exactly one of them.
        position_ids: (B, S) or (1, S) integer; the column numbers when None.
        token_type_ids: (B, S) or (1, S) integer; zeros when None.

    Returns:
        The packed batch and the (T,) int64 indices of its tokens in the flattened (B * S) batch, for `unpack`.
    """
    shape = (mask.shape[0], mask.shape[1])
    token_index, cu_seqlens, columns = _tokens_of(mask)

    def gather(ids: Tensor) -> Tensor:
        return _take(_flat(ids, shape), token_index)

    batch = PackedBatch(
        cu_seqlens=cu_seqlens,
        position_ids=columns if position_ids is None else gather(position_ids),
        token_type_ids=_zeros(token_index.numel(), mask.device) if token_type_ids is None else gather(token_type_ids),
        input_ids=None if input_ids is None else gather(input_ids),
        inputs_embeds=None if inputs_embeds is None else _take(inputs_embeds.flatten(0, 1), token_index),
    )
    return batch, token_index


def pack_rectangle(
    shape: tuple[int, int],
    input_ids: Tensor | None = None,
    inputs_embeds: Tensor | None = None,
    position_ids: Tensor | None = None,
    token_type_ids: Tensor | None = None,
) -> PackedBatch:
    """Pack a (B, S) = `shape` batch without padding; arguments as for `pack_padded`. Nothing to gather: no copies where
    the inputs are contiguous int64."""
    num_rows, num_columns = shape
    given = input_ids if input_ids is not None else inputs_embeds
    device = torch.device("cpu") if given is None else given.device
    num_tokens = num_rows * num_columns

    if position_ids is None:
        position_ids = _arange(0, num_columns, 1, device)[None]
    return PackedBatch(
        cu_seqlens=_arange(0, num_tokens + 1, num_columns, device),
        position_ids=_flat(position_ids, shape),
        token_type_ids=_zeros(num_tokens, device) if token_type_ids is None else _flat(token_type_ids, shape),
        input_ids=None if input_ids is None else _flat(input_ids, shape),
        inputs_embeds=None if inputs_embeds is None else _contiguous(inputs_embeds).view(num_tokens, -1),
    )


def unpack(packed: Tensor, token_index: Tensor, num_rows: int, num_columns: int) -> Tensor:
    """Scatter (T, H) packed rows to (B, S, H); masked positions are zeros."""
    padded = packed.new_empty(num_rows * num_columns, packed.shape[-1])
    if packed.is_cpu:
        rows = as_numpy(padded)
        rows.fill(0)
        rows[as_numpy(token_index)] = as_numpy(packed)
    else:
        padded.zero_().index_copy_(0, token_index, packed)
    return padded.view(num_rows, num_columns, -1)


def pack_token_lists(
    token_lists: Sequence[Sequence[int] | Tensor | np.ndarray],
    token_type_lists: Sequence[Sequence[int] | Tensor | np.ndarray] | None = None,
    device: torch.device | str = "cpu",
) -> PackedBatch:
    """Pack B sentences given as token ids (lists, 1-D arrays or 1-D tensors of integers); positions count from 0.

    Raises:
        TypeError: a sentence is not a sequence of integers (None among the sentences, text, floats).
        ValueError: `token_type_lists` differs in number or lengths from `token_lists`.
    """
    ids, lengths = _concatenate(token_lists, "token_lists")
    cu_seqlens = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=cu_seqlens[1:])
    if token_type_lists is None:
        types = np.zeros_like(ids)
    else:
        types, type_lengths = _concatenate(token_type_lists, "token_type_lists")
        if not np.array_equal(lengths, type_lengths):
            raise ValueError("token_type_lists must have the same number of sentences and lengths as token_lists")
    positions = np.arange(len(ids), dtype=np.int64) - np.repeat(cu_seqlens[:-1], lengths)
    cu, pos, typ, tok = (torch.from_numpy(a).to(device) for a in (cu_seqlens, positions, types, ids))
    return PackedBatch(cu_seqlens=cu, position_ids=pos, token_type_ids=typ, input_ids=tok)


# What packing needs of torch, on the CPU by numpy (see fastsal.rows).


def _tokens_of(mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The tokens of a (B, S) mask: (T,) indices in the flattened batch, (B + 1,) cu_seqlens, (T,) columns; int64."""
    num_rows, num_columns = mask.shape
    if mask.is_cpu:
        index = np.flatnonzero(as_numpy(mask))
        bounds = index.searchsorted(np.arange(0, mask.numel() + 1, num_columns))
        return torch.from_numpy(index), torch.from_numpy(bounds), torch.from_numpy(index % num_columns)
    token_index = mask.reshape(-1).nonzero().squeeze(1)
    cu_seqlens = torch.zeros(num_rows + 1, dtype=torch.int64, device=mask.device)
    torch.cumsum(mask.sum(dim=1), dim=0, out=cu_seqlens[1:])
    return token_index, cu_seqlens, token_index % num_columns


def _flat(ids: Tensor, shape: tuple[int, int]) -> Tensor:
    """`ids`, (B, S) = `shape` or (1, S) integers, as (B * S,) contiguous int64; no copy where they are."""
    if ids.dtype is torch.int64 and ids.shape == shape and ids.is_contiguous():
        return ids.view(-1)
    if ids.is_cpu:
        array = ids.numpy()
        array = array if array.shape == shape else np.broadcast_to(array, shape)
        return torch.from_numpy(np.ascontiguousarray(array, np.int64).reshape(-1))
    return ids.expand(shape).reshape(-1).long().contiguous()  # a reshaped expansion may still have stride 0


def _contiguous(tensor: Tensor) -> Tensor:
    if tensor.is_contiguous() or not tensor.is_cpu:
        return tensor.contiguous()
    return from_numpy(np.ascontiguousarray(as_numpy(tensor.detach())), tensor.dtype)


def _take(rows: Tensor, index: Tensor) -> Tensor:
    """``rows[index]``, index (T,) int64."""
    if rows.is_cpu:
        return from_numpy(as_numpy(rows.detach()).take(as_numpy(index), axis=0), rows.dtype)
    return rows.index_select(0, index)


def _arange(start: int, stop: int, step: int, device: torch.device) -> Tensor:
    if device.type == "cpu":
        return torch.from_numpy(np.arange(start, stop, step))
    return torch.arange(start, stop, step, device=device)


def _zeros(length: int, device: torch.device) -> Tensor:
    if device.type == "cpu":
        return torch.from_numpy(np.zeros(length, np.int64))
    return torch.zeros(length, dtype=torch.int64, device=device)


def _concatenate(lists: Sequence[Sequence[int] | Tensor | np.ndarray], name: str) -> tuple[np.ndarray, np.ndarray]:
    if isinstance(lists, (str, bytes)) or not hasattr(lists, "__len__"):
        raise TypeError(f"{name} must be a sequence of token id sequences, got {type(lists).__name__}")
    joined = _joined(lists)
    if joined is not None:
        return joined, np.fromiter(map(len, lists), np.int64, len(lists))
    arrays = []
    for index, ids in enumerate(lists):
        array = _as_array(ids)
        if array is None or array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
            got = type(ids).__name__ if array is None else f"{type(ids).__name__} of {array.dtype}, shape {array.shape}"
            raise TypeError(f"{name}[{index}] must be a 1-D sequence of integer token ids, got {got}")
        arrays.append(array.astype(np.int64, copy=False))
    lengths = np.fromiter((len(a) for a in arrays), np.int64, len(arrays))
    return (np.concatenate(arrays) if arrays else np.zeros(0, np.int64)), lengths


def _joined(lists: Sequence[Sequence[int] | Tensor | np.ndarray]) -> np.ndarray | None:
    """The ids of 1-D int64 arrays, or of lists of ints, without a step in Python per sentence; None for all others."""
    kinds = set(map(type, lists))
    if kinds == {np.ndarray}:
        forms = {(a.ndim, a.dtype) for a in lists}  # type: ignore[union-attr]
        return np.concatenate(lists) if forms == {(1, np.dtype(np.int64))} else None
    if kinds == {list}:
        ids = list(chain.from_iterable(lists))
        if set(map(type, ids)) == {int}:
            try:
                return np.frombuffer(array("q", ids), np.int64)
            except OverflowError:  # the slow way names the sentence
                return None
    return None


def _as_array(ids: Sequence[int] | Tensor | np.ndarray) -> np.ndarray | None:
    if ids is None or isinstance(ids, (str, bytes)):
        return None
    if isinstance(ids, Tensor):
        return ids.detach().cpu().numpy()
    try:
        return np.asarray(ids)
    except (ValueError, OverflowError):
        return None
