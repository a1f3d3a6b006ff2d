"""Padded batches and token lists -> packed tokens: the sentences' tokens one after the other, no padding between.

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
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain

import numpy as np

from fastsal.engine.spec import Array


@dataclass(frozen=True)
class PackedBatch:
    """T tokens of B sentences, packed. The arrays of integers are contiguous int64 on the host.

    Attributes:
        cu_seqlens: (B + 1,); sentence b owns tokens ``cu_seqlens[b]:cu_seqlens[b + 1]``, which may be none.
        position_ids: (T,), rows of the position table.
        token_type_ids: (T,), rows of the type table.
        input_ids: (T,), rows of the word table; None where `inputs_embeds` is given.
        inputs_embeds: (T, embedding_size), used in place of word embeddings, contiguous; None where `input_ids` is
            given. float32 on the CPU; for a GPU a tensor that lies there.
    """

    cu_seqlens: np.ndarray
    position_ids: np.ndarray
    token_type_ids: np.ndarray
    input_ids: np.ndarray | None = None
    inputs_embeds: Array | None = None

    @property
    def num_sentences(self) -> int:
        return len(self.cu_seqlens) - 1

    @property
    def num_tokens(self) -> int:
        return len(self.position_ids)


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
    mask: np.ndarray,
    input_ids: np.ndarray | None = None,
    position_ids: np.ndarray | None = None,
    token_type_ids: np.ndarray | None = None,
) -> tuple[PackedBatch, np.ndarray]:
    """Gather the tokens where `mask` is true.

    Args:
        mask: (B, S) bool; holes and empty rows are allowed.
        input_ids: (B, S) integers, or None where the caller has embeddings to gather by the indices returned.
        position_ids: (B, S) or (1, S) integers; the column numbers when None.
        token_type_ids: (B, S) or (1, S) integers; zeros when None.

    Returns:
        The packed batch and the (T,) int64 indices of its tokens in the flattened (B * S) batch.
    """
    num_columns = mask.shape[1]
    index = np.flatnonzero(mask)

    def gather(ids: np.ndarray) -> np.ndarray:
        return _flat(ids, mask.shape).take(index)

    batch = PackedBatch(
        cu_seqlens=index.searchsorted(np.arange(0, mask.size + 1, num_columns)),
        position_ids=index % num_columns if position_ids is None else gather(position_ids),
        token_type_ids=np.zeros(len(index), np.int64) if token_type_ids is None else gather(token_type_ids),
        input_ids=None if input_ids is None else gather(input_ids),
    )
    return batch, index


def pack_rectangle(
    shape: tuple[int, int],
    input_ids: np.ndarray | None = None,
    position_ids: np.ndarray | None = None,
    token_type_ids: np.ndarray | None = None,
) -> PackedBatch:
    """Pack a (B, S) = `shape` batch without padding; arguments as for `pack_padded`. Nothing to gather: no copies where
    the inputs are contiguous int64."""
    num_rows, num_columns = shape
    num_tokens = num_rows * num_columns
    return PackedBatch(
        cu_seqlens=np.arange(0, num_tokens + 1, num_columns),
        position_ids=_flat(np.arange(num_columns)[None] if position_ids is None else position_ids, shape),
        token_type_ids=np.zeros(num_tokens, np.int64) if token_type_ids is None else _flat(token_type_ids, shape),
        input_ids=None if input_ids is None else _flat(input_ids, shape),
    )


def pack_token_lists(
    token_lists: Sequence[Sequence[int] | np.ndarray],
    token_type_lists: Sequence[Sequence[int] | np.ndarray] | None = None,
) -> PackedBatch:
    """Pack B sentences given as token ids (lists or 1-D arrays of integers); positions count from 0, types are 0 unless
    given in the same way.

    Raises:
        TypeError: a sentence is not a sequence of integers (None among the sentences, text, floats).
        ValueError: `token_type_lists` differs in number or lengths from `token_lists`.
    """
    ids, lengths = _concatenate(token_lists, "token_lists")
    if token_type_lists is None:
        return pack_lengths(lengths, ids, np.zeros_like(ids))
    types, type_lengths = _concatenate(token_type_lists, "token_type_lists")
    if not np.array_equal(lengths, type_lengths):
        raise ValueError("token_type_lists must have the same number of sentences and lengths as token_lists")
    return pack_lengths(lengths, ids, types)


def pack_lengths(lengths: np.ndarray, input_ids: np.ndarray, token_type_ids: np.ndarray) -> PackedBatch:
    """The batch of sentences of (B,) `lengths`, whose (T,) int64 ids and types lie one after the other."""
    cu_seqlens = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=cu_seqlens[1:])
    positions = np.arange(len(input_ids))
    positions -= np.repeat(cu_seqlens[:-1], lengths)
    return PackedBatch(cu_seqlens, positions, token_type_ids, input_ids)


def _flat(ids: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """`ids`, (B, S) = `shape` or (1, S) integers, as (B * S,) contiguous int64; no copy where they are."""
    ids = ids if ids.shape == shape else np.broadcast_to(ids, shape)
    return np.ascontiguousarray(ids, np.int64).reshape(-1)


def _concatenate(lists: Sequence[Sequence[int] | np.ndarray], name: str) -> tuple[np.ndarray, np.ndarray]:
    """(T,) int64 ids and (B,) int64 lengths."""
    if isinstance(lists, (str, bytes)) or not hasattr(lists, "__len__"):
        raise TypeError(f"{name} must be a sequence of token id sequences, got {type(lists).__name__}")
    if (joined := _joined(lists)) is not None:
        return joined, np.fromiter(map(len, lists), np.int64, len(lists))
    arrays = [_as_ids(ids, f"{name}[{index}]") for index, ids in enumerate(lists)]
    lengths = np.fromiter(map(len, arrays), np.int64, len(arrays))
    return (np.concatenate(arrays) if arrays else np.zeros(0, np.int64)), lengths


def _joined(lists: Sequence[Sequence[int] | np.ndarray]) -> np.ndarray | None:
    """The ids of 1-D int64 arrays, or of lists of ints, without a step in Python per sentence; None for all others."""
    kinds = set(map(type, lists))
    if kinds == {np.ndarray}:
        forms = {(a.ndim, a.dtype) for a in lists}  # type: ignore[union-attr]
        return np.concatenate(lists) if forms == {(1, np.dtype(np.int64))} else None
    if kinds == {list}:
        ids = list(chain.from_iterable(lists))
        if set(map(type, ids)) == {int}:
            with suppress(OverflowError):  # the slow way names the sentence
                return np.frombuffer(array("q", ids), np.int64)
    return None


def _as_ids(ids: Sequence[int] | np.ndarray, name: str) -> np.ndarray:
    found = None
    if ids is not None and not isinstance(ids, (str, bytes)):
        with suppress(ValueError, OverflowError):
            found = np.asarray(ids)
    if found is None or found.ndim != 1 or (found.size and found.dtype.kind not in "iu"):
        got = type(ids).__name__ if found is None else f"{type(ids).__name__} of {found.dtype}, shape {found.shape}"
        raise TypeError(f"{name} must be a 1-D sequence of integer token ids, got {got}")
    return found.astype(np.int64, copy=False)
