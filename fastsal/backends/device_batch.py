"""A packed batch on its way to a GPU: checked on the host, cut into chunks, sent in one copy.

Everything a kernel reads about a chunk except its weights lies in one int32 buffer, section after section:

    ids | positions | types | segments | cu_seqlens | tiles | convolution blocks

Sections have fixed capacities, so that a CUDA graph that reads the buffer serves every chunk that fits.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fastsal.engine.packing import PackedBatch, token_blocks
from fastsal.engine.spec import EncoderSpec
from fastsal.kernels.triton.attention import AttentionPlan

#: Sections start at multiples of this many int32: 16 bytes, what a vector load wants.
_ALIGNMENT = 4


@dataclass(frozen=True)
class HostBatch:
    """The numbers of a PackedBatch, on the host and within their tables.

    Attributes:
        tokens: ids (zeros where vectors are given), positions, types, each (T,) int64.
        cu_seqlens: (B + 1,) int64.
    """

    tokens: tuple[np.ndarray, ...]
    cu_seqlens: np.ndarray

    def chunks(self, max_tokens: int) -> Iterator[tuple[int, int]]:
        """Yield (first sentence, last + 1) of consecutive chunks within `max_tokens`, or of one longer sentence.

        They are about equal: a few tokens left over would be a whole pass.
        """
        bounds = self.cu_seqlens.tolist()
        first = 0
        while first < len(bounds) - 1:
            left = bounds[-1] - bounds[first]
            share = left / max(-(-left // max_tokens), 1)
            fitting = bisect_right(bounds, bounds[first] + max_tokens) - 1
            enough = bisect_left(bounds, bounds[first] + share, first + 1)
            end = max(min(enough, fitting), first + 1)
            end = bisect_right(bounds, bounds[end]) - 1  # sentences without tokens come along
            yield first, end
            first = end

    def longest(self, first: int, end: int) -> int:
        """Tokens of the longest of the sentences from `first` to `end`."""
        return int(np.diff(self.cu_seqlens[first : end + 1]).max(initial=0))


def to_host(batch: PackedBatch, spec: EncoderSpec) -> HostBatch:
    """Bring a batch's numbers to the host and check them.

    Raises:
        IndexError: an id, type or position outside its table.
    """
    ids = np.zeros_like(batch.position_ids) if batch.input_ids is None else batch.input_ids
    tokens = (ids, batch.position_ids, batch.token_type_ids)
    names = ("input_ids", "position_ids", "token_type_ids")
    for name, numbers, rows in zip(
        names, tokens, (spec.vocab_size, spec.max_positions, spec.type_vocab_size), strict=True
    ):
        if name == "input_ids" and batch.input_ids is None:
            continue
        low, high = int(numbers.min(initial=0)), int(numbers.max(initial=0))
        if low < 0 or high >= rows:
            raise IndexError(f"{name} must be in [0, {rows}), got {low if low < 0 else high}")
    return HostBatch(tokens, batch.cu_seqlens)


@dataclass(frozen=True)
class Capacity:
    """Numbers of tokens, sentences, tiles and convolution blocks."""

    tokens: int
    sentences: int
    tiles: int
    blocks: int

    def holds(self, other: Capacity) -> bool:
        return (
            other.tokens <= self.tokens
            and other.sentences <= self.sentences
            and other.tiles <= self.tiles
            and other.blocks <= self.blocks
        )


@dataclass(frozen=True)
class DeviceBatch:
    """What the kernels read of a chunk: int32 views of one buffer. Beyond the chunk's own numbers there are tokens of
    id 0 in no tile, sentences without tokens, and tiles and blocks without either.

    Attributes:
        ids, positions, types, segments: (tokens,).
        cu_seqlens: (sentences + 1,).
        tiles: (tiles, 4) for attention; blocks: (blocks, 4) for convolutions.
        attention: how the tiles are computed.
        vectors: (T, embedding_size) in place of the word embeddings of `ids`, or None.
    """

    ids: Tensor
    positions: Tensor
    types: Tensor
    segments: Tensor
    cu_seqlens: Tensor
    tiles: Tensor
    blocks: Tensor
    attention: AttentionPlan
    vectors: Tensor | None = None


@dataclass(frozen=True)
class Chunk:
    """Consecutive sentences of a HostBatch, with their tiles.

    Attributes:
        tokens: as in HostBatch; cu_seqlens: (B + 1,) from 0; segments, tiles, blocks, attention: as in DeviceBatch.
    """

    tokens: tuple[np.ndarray, ...]
    cu_seqlens: np.ndarray
    segments: np.ndarray
    tiles: np.ndarray
    blocks: np.ndarray
    attention: AttentionPlan

    @property
    def capacity(self) -> Capacity:
        """Just what it needs."""
        return Capacity(len(self.segments), len(self.cu_seqlens) - 1, len(self.tiles), len(self.blocks))


def make_chunk(
    host: HostBatch, first: int, end: int, attention: AttentionPlan, block_tokens: int | None = None
) -> Chunk:
    """Sentences `first` to `end`; blocks for convolutions of `block_tokens` where given."""
    start, stop = int(host.cu_seqlens[first]), int(host.cu_seqlens[end])
    cu_seqlens = host.cu_seqlens[first : end + 1] - start
    tiled = token_blocks(cu_seqlens, attention.tile_tokens)
    blocks = np.zeros((0, 4), np.int32) if block_tokens is None else token_blocks(cu_seqlens, block_tokens).blocks
    tokens = tuple(numbers[start:stop] for numbers in host.tokens)
    return Chunk(tokens, cu_seqlens, tiled.segments, tiled.tiles(), blocks, attention)


def write(chunk: Chunk, capacity: Capacity, pin: bool) -> Tensor:
    """The int32 buffer for a chunk, on the host; `capacity` must hold it."""
    offsets = _offsets(capacity)
    buffer = torch.zeros(offsets[-1], dtype=torch.int32, pin_memory=pin)
    array = buffer.numpy()
    for offset, numbers in zip(
        offsets[:6], (*chunk.tokens, chunk.segments, chunk.cu_seqlens, chunk.tiles), strict=True
    ):
        array[offset : offset + numbers.size] = numbers.reshape(-1)
    array[offsets[6] : offsets[6] + chunk.blocks.size] = chunk.blocks.reshape(-1)
    num_bounds = len(chunk.cu_seqlens)
    array[offsets[4] + num_bounds : offsets[4] + capacity.sentences + 1] = chunk.cu_seqlens[-1]
    return buffer


def view(buffer: Tensor, capacity: Capacity, attention: AttentionPlan, vectors: Tensor | None = None) -> DeviceBatch:
    """The sections of a buffer that `write` filled."""
    ids, positions, types, segments, cu_seqlens, tiles, blocks = (
        buffer[offset : offset + size] for offset, size in zip(_offsets(capacity), _sizes(capacity), strict=False)
    )
    return DeviceBatch(
        ids, positions, types, segments, cu_seqlens, tiles.view(-1, 4), blocks.view(-1, 4), attention, vectors
    )


def _sizes(capacity: Capacity) -> list[int]:
    return [capacity.tokens] * 4 + [capacity.sentences + 1, capacity.tiles * 4, capacity.blocks * 4]


def _offsets(capacity: Capacity) -> list[int]:
    """Where the sections start, and the size of all."""
    padded = [-(-size // _ALIGNMENT) * _ALIGNMENT for size in _sizes(capacity)]
    return list(itertools.accumulate(padded, initial=0))
