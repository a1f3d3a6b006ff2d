"""The loop of `encode`: texts are tokenised in a background thread while earlier ones are computed.

Texts are taken in windows; inside a window they are sorted by their number of tokens and computed in batches of a
token budget. Windows and batches depend on the texts alone, so equal calls compute equal batches.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from functools import partial

import numpy as np

from fastsal.engine.ahead import computed_ahead
from fastsal.engine.packing import PackedBatch, pack_lengths
from fastsal.engine.tokenization import Tokens

#: Tokens per native call. Large enough that a call's fixed costs vanish and all threads have work to the end, small
#: enough that a call's memory stays a few MB and Ctrl-C is noticed soon.
TOKEN_BUDGET = 16_384

#: Texts of the first window (few, so that computing starts at once), and what the following ones grow to.
FIRST_WINDOW, LAST_WINDOW = 256, 8192

#: Characters of a window, which bounds the memory that its tokens take.
WINDOW_CHARACTERS = 1 << 20


def embed(
    texts: Sequence[str],
    tokenize: Callable[[Sequence[str]], Tokens],
    compute: Callable[[PackedBatch], np.ndarray],
    max_tokens: int,
    report: Callable[[int], object] = lambda _: None,
) -> np.ndarray:
    """Embeddings of one or more texts.

    Args:
        compute: gives the (b, D) embeddings of a packed batch of b texts.
        tokenize, max_tokens: see `packed_batches`.
        report: called with the number of texts just computed.

    Returns:
        (len(texts), D) in the order of `texts`, with the dtype that `compute` gives.

    Raises:
        IndexError: a text has more than `max_tokens` tokens.
    """
    result: np.ndarray | None = None
    with closing(packed_batches(texts, tokenize, max_tokens)) as batches:
        for positions, batch in batches:
            embeddings = compute(batch)
            if len(positions) == len(texts) == 1:
                result = embeddings
            else:
                if result is None:
                    result = np.empty((len(texts), embeddings.shape[1]), embeddings.dtype)
                result[positions] = embeddings
            report(len(positions))
    if result is None:
        raise ValueError("texts must not be empty")
    return result


def packed_batches(
    texts: Sequence[str], tokenize: Callable[[Sequence[str]], Tokens], max_tokens: int
) -> Generator[tuple[np.ndarray, PackedBatch], None, None]:
    """Yield the positions in `texts` of each batch's b texts, and the batch. A generator: close it.

    Args:
        tokenize: called with consecutive pieces of `texts`, in a background thread if there is more than one piece.
        max_tokens: positions that the model has.

    Raises:
        IndexError: a text has more than `max_tokens` tokens.
    """
    bounds = list(windows(texts))
    steps = [partial(_tokenize_window, tokenize, texts, *window) for window in bounds]
    with closing(computed_ahead(steps)) as tokenized:
        for (start, _), tokens in zip(bounds, tokenized, strict=True):
            check_lengths(tokens.lengths, start, max_tokens)
            for rows in batches(tokens.lengths):
                yield rows + start, pack(tokens, rows)


def _tokenize_window(
    tokenize: Callable[[Sequence[str]], Tokens], texts: Sequence[str], start: int, stop: int
) -> Tokens:
    return tokenize(texts[start:stop])


def windows(texts: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Yield the bounds of consecutive windows, growing from FIRST_WINDOW to LAST_WINDOW texts."""
    start, size = 0, FIRST_WINDOW
    while start < len(texts):
        stop, characters = start, 0
        last = min(start + size, len(texts))
        while stop < last and characters < WINDOW_CHARACTERS:
            characters += len(texts[stop])
            stop += 1
        yield start, stop
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
    if len(tokens.lengths) == 1:  # a query's latency: half of what the general way costs
        length = len(tokens.ids)
        types = np.zeros(length, np.int64) if tokens.type_ids is None else tokens.type_ids
        return PackedBatch(np.array([0, length]), np.arange(length), types, tokens.ids)
    lengths = tokens.lengths[rows]
    ends = np.cumsum(lengths)
    starts = (np.cumsum(tokens.lengths) - tokens.lengths)[rows]
    index = np.arange(ends[-1]) + np.repeat(starts - (ends - lengths), lengths)
    types = np.zeros(len(index), np.int64) if tokens.type_ids is None else tokens.type_ids[index]
    return pack_lengths(lengths, tokens.ids[index], types)


def check_lengths(lengths: np.ndarray, start: int, max_tokens: int) -> None:
    """Raise an IndexError that names the first text longer than the model's position table."""
    if (longest := int(lengths.max())) > max_tokens:
        first = int(np.argmax(lengths > max_tokens))
        raise IndexError(
            f"inputs[{start + first}] has {lengths[first]} tokens, but the model has positions for {max_tokens} only "
            f"(the longest of these texts has {longest}): set max_seq_length to at most {max_tokens}"
        )
