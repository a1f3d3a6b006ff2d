"""Sentences to embeddings, each different sentence once, with the time it took."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np


class Encoder(Protocol):
    """What is evaluated: a SentenceTransformer, a fastsal.SentenceEncoder, or whatever encodes like them."""

    def encode(self, inputs: Any, /) -> Any: ...


class TimedEncoder:
    """Encodes and counts.

    Attributes:
        sentences, seconds: encoded so far; a sentence that occurs several times in a call counts once.
    """

    def __init__(self, encoder: Encoder) -> None:
        self.encoder = encoder
        self.sentences = 0
        self.seconds = 0.0

    def encode(self, inputs: Sequence[str]) -> np.ndarray:
        """(len(inputs), D) float32 embeddings.

        Raises:
            ValueError: an embedding holds NaN or infinity.
        """
        rows = {sentence: row for row, sentence in enumerate(dict.fromkeys(inputs))}
        start = time.perf_counter()
        unique = np.asarray(self.encoder.encode(list(rows)), dtype=np.float32)
        self.seconds += time.perf_counter() - start
        self.sentences += len(rows)
        if not np.isfinite(unique).all():
            bad = [sentence for sentence, row in rows.items() if not np.isfinite(unique[row]).all()]
            raise ValueError(f"{len(bad)} of {len(rows)} embeddings hold NaN or infinity; the first is of {bad[0]!r}")
        return unique[[rows[sentence] for sentence in inputs]]
