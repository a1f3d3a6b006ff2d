"""The loop of `encode`: texts are tokenised in a background thread while earlier ones are computed.

Texts are taken in windows; inside a window they are sorted by their number of tokens and computed in batches of a
token budget. Windows and batches depend on the texts alone, so equal calls compute equal batches.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import numpy as np
import torch
from torch import Tensor

from fastsal.packing import PackedBatch
from fastsal.rows import as_numpy
from fastsal.tokenization import Tokens

#: Tokens per native call. Large enough that a call's fixed costs vanish and all threads have work to the end, small
#: enough that a call's memory stays a few MB and Ctrl-C is noticed soon.
TOKEN_BUDGET = 16_384

#: Texts of the first window (few, so that computing starts at once), and what the following ones grow to.
FIRST_WINDOW, LAST_WINDOW = 256, 8192

#: Characters of a window, which bounds the memory that its tokens take.
WINDOW_CHARACTERS = 1 << 20


def embed(
    texts: list[str],
    tokenize: Callable[[list[str]], Tokens],
    compute: Callable[[PackedBatch], Tensor],
    max_tokens: int,
    report: Callable[[int], object],
) -> Tensor:
    """Embeddings of one or more texts.

    Args:
        tokenize: called with consecutive pieces of `texts`, in a background thread if there is more than one piece.
        compute: gives the (b, D) embeddings of a packed batch of b texts.
        max_tokens: positions that the model has.
        report: called with the number of texts just computed.

    Returns:
        (len(texts), D) in the order of `texts`, with the dtype and device that `compute` gives.

    Raises:
        IndexError: a text has more than `max_tokens` tokens.
    """
    result: Tensor | None = None
    with closing(tokenized_windows(texts, tokenize)) as tokenized:
        for start, tokens in tokenized:
            check_lengths(tokens.lengths, start, max_tokens)
            for rows in batches(tokens.lengths):
                embeddings = compute(pack(tokens, rows))
                if len(rows) == len(texts) == 1:
                    result = embeddings
                else:
                    if result is None:
                        result = embeddings.new_empty(len(texts), embeddings.shape[1])
                    scatter(embeddings, result, rows + start)
                report(len(rows))
    if result is None:
        raise ValueError("texts must not be empty")
    return result


def tokenized_windows(
    texts: list[str], tokenize: Callable[[list[str]], Tokens]
) -> Generator[tuple[int, Tokens], None, None]:
    """Yield the position of each window's first text and the window's tokens, tokenising one window ahead."""
    bounds = windows(texts)
    start, stop = next(bounds)
    if stop == len(texts):
        yield start, tokenize(texts)
        return
    # Leaving this block waits for the one window being tokenised, also when computing fails or is interrupted.
    with ThreadPoolExecutor(1, "fastsal-tokenize") as thread:
        tokenizing = thread.submit(tokenize, texts[start:stop])
        for next_start, next_stop in bounds:
            tokens = tokenizing.result()
            tokenizing = thread.submit(tokenize, texts[next_start:next_stop])
            yield start, tokens
            start = next_start
        yield start, tokenizing.result()


def windows(texts: list[str]) -> Iterator[tuple[int, int]]:
    """Yield the bounds of consecutive windows, growing from FIRST_WINDOW to LAST_WINDOW texts."""
    start, size = 0, FIRST_WINDOW
    while True:
        stop, characters = start, 0
        last = min(start + size, len(texts))
        while stop < last and characters < WINDOW_CHARACTERS:
            characters += len(texts[stop])
            stop += 1
        yield start, stop
        if stop == len(texts):
            return
        start, size = stop, min(4 * size, LAST_WINDOW)


def batches(lengths: np.ndarray) -> Iterator[np.ndarray]:
    """Yield the (b,) rows of consecutive batches, longest first, each within TOKEN_BUDGET or of one row."""
    if len(lengths) == 1:
        yield np.zeros(1, np.int64)
        return
    order = np.argsort(-lengths, kind="stable")
    ends = np.cumsum(lengths[order])
    start, done = 0, 0
    while start < len(order):
        stop = max(start + 1, int(np.searchsorted(ends, done + TOKEN_BUDGET, side="right")))
        yield order[start:stop]
        start, done = stop, int(ends[stop - 1])


def pack(tokens: Tokens, rows: np.ndarray) -> PackedBatch:
    """The packed batch of some rows; positions count from 0 in each."""
    if len(tokens.lengths) == 1:
        return _pack_one(tokens)
    lengths = tokens.lengths[rows]
    cu_seqlens = np.zeros(len(rows) + 1, np.int64)
    np.cumsum(lengths, out=cu_seqlens[1:])
    positions = np.arange(cu_seqlens[-1])
    positions -= np.repeat(cu_seqlens[:-1], lengths)
    starts = (np.cumsum(tokens.lengths) - tokens.lengths)[rows]
    index = positions + np.repeat(starts, lengths)
    types = np.zeros_like(positions) if tokens.type_ids is None else tokens.type_ids[index].astype(np.int64)
    return PackedBatch(
        cu_seqlens=torch.from_numpy(cu_seqlens),
        position_ids=torch.from_numpy(positions),
        token_type_ids=torch.from_numpy(types),
        input_ids=torch.from_numpy(tokens.ids[index].astype(np.int64)),
    )


def _pack_one(tokens: Tokens) -> PackedBatch:
    # A query's latency: half of what the general way costs.
    length = len(tokens.ids)
    types = np.zeros(length, np.int64) if tokens.type_ids is None else tokens.type_ids.astype(np.int64)
    return PackedBatch(
        cu_seqlens=torch.from_numpy(np.array([0, length])),
        position_ids=torch.from_numpy(np.arange(length)),
        token_type_ids=torch.from_numpy(types),
        input_ids=torch.from_numpy(tokens.ids.astype(np.int64)),
    )


def scatter(embeddings: Tensor, result: Tensor, positions: np.ndarray) -> None:
    """``result[positions] = embeddings``."""
    if result.is_cpu:
        # By numpy: torch's OpenMP threads do not survive a fork, and a child process would wait for them.
        as_numpy(result)[positions] = as_numpy(embeddings)
    else:
        result[torch.from_numpy(positions).to(result.device)] = embeddings


def check_lengths(lengths: np.ndarray, start: int, max_tokens: int) -> None:
    """Raise an IndexError that names the first text longer than the model's position table."""
    if (longest := int(lengths.max())) > max_tokens:
        first = int(np.argmax(lengths > max_tokens))
        raise IndexError(
            f"inputs[{start + first}] has {lengths[first]} tokens, but the model has positions for {max_tokens} only "
            f"(the longest of these texts has {longest}): set max_seq_length to at most {max_tokens}"
        )
