"""Text in, vectors out: where the time goes, and what tokenising adds to the computing."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from subjects import Subject

import fastsal
import fastsal.sentence_encoder
from fastsal.encode_loop import embed
from fastsal.length_mixes import make_texts

CORPORA = (10, 1000, 50_000)


class _Phases:
    """Stands in for the loop of `encode` and notes who spends which time.

    Attributes:
        tokenise, compute: seconds spent there; tokenising runs in a thread of its own beside the computing.
        tokens: what tokenising gave, in order, to be used again.
    """

    def __init__(self, tokens: list[Any] | None = None) -> None:
        self.tokenise = self.compute = 0.0
        self.tokens: list[Any] = []
        self._ready = None if tokens is None else iter(tokens)

    def __call__(self, texts: list[str], *, tokenize: Callable, compute: Callable, **options: Any) -> torch.Tensor:
        def timed_tokenize(piece: list[str]) -> Any:
            start = time.perf_counter()
            result = tokenize(piece) if self._ready is None else next(self._ready)
            self.tokenise += time.perf_counter() - start
            self.tokens.append(result)
            return result

        def timed_compute(batch: Any) -> torch.Tensor:
            start = time.perf_counter()
            result = compute(batch)
            self.compute += time.perf_counter() - start
            return result

        return embed(texts, tokenize=timed_tokenize, compute=timed_compute, **options)


@pytest.mark.parametrize("subject", ["minilm"], indirect=True)
@pytest.mark.parametrize("corpus", CORPORA)
@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_end_to_end(benchmark, subject: Subject, corpus: int, dtype: str, full: bool, results: list, monkeypatch):
    if corpus > 1000 and not full:
        pytest.skip("with --full only")
    texts = make_texts("sts", corpus)
    model = fastsal.SentenceEncoder(str(subject.folder), dtype=dtype, device="cpu")
    reference = SentenceTransformer(str(subject.folder), device="cpu")
    benchmark.group = f"text to vectors, {corpus} sentences"

    def encode() -> np.ndarray:
        return model.encode(texts, show_progress_bar=False)

    embeddings = benchmark.pedantic(encode, rounds=3, warmup_rounds=1)

    some = texts[:: max(1, corpus // 16)]
    cosines = (embeddings[:: max(1, corpus // 16)] * reference.encode(some)).sum(axis=1)
    assert cosines.min() > (0.99 if dtype == "int8" else 0.99999)
    if benchmark.stats is None:  # --benchmark-disable
        return

    phases = _Phases()
    monkeypatch.setattr(fastsal.sentence_encoder, "embed", phases)
    total = _seconds(encode)
    alone = []
    for _ in range(3):
        ready = _Phases(phases.tokens)
        monkeypatch.setattr(fastsal.sentence_encoder, "embed", ready)
        alone.append(_seconds(encode))
    median = benchmark.stats.stats.median
    info = {
        "model": subject.name,
        "engine": f"fastsal-encode-{dtype}",
        "corpus": corpus,
        "total_s": median,
        "tokenise_s": phases.tokenise,
        "compute_s": phases.compute,
        "rest_share": 1 - phases.compute / total,
        "overhead": median / float(np.median(alone)) - 1,
        "threads": torch.get_num_threads(),
    }
    benchmark.extra_info.update(info)
    results.append(info)


def _seconds(encode: Callable[[], object]) -> float:
    start = time.perf_counter()
    encode()
    return time.perf_counter() - start
