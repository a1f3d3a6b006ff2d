"""Text in, vectors out: where the time goes, and what tokenising adds to the computing."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rounds import measure
from sentence_transformers import SentenceTransformer
from subjects import Subject

import fastsal
import fastsal.sentence_transformers.sentence_encoder
from fastsal.engine.encode_loop import embed
from fastsal.measure.length_mixes import make_texts

CORPORA = (1, 10, 100, 1000, 50_000)

#: By name: the dtype of fastsal's kernels, None for the reference.
ENGINES = {"sentence-transformers": None, "fastsal-encode-float32": "float32", "fastsal-encode-int8": "int8"}

#: Corpora beyond this size take a minute a pass: one is enough.
MANY = 1000


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    full = metafunc.config.getoption("--full")
    # Of the engines, int8 leaves the tokeniser the least time.
    runs = [(n, engine) for n in CORPORA for engine in ENGINES if full or n <= MANY or engine == "fastsal-encode-int8"]
    metafunc.parametrize(("corpus", "engine"), runs)
    metafunc.parametrize("subject", ["minilm"], indirect=True)


class _Phases:
    """Stands in for the loop of `encode` and notes who spends which time in its last call.

    Attributes:
        tokenise, compute: seconds spent there; tokenising runs in a thread of its own beside the computing.
        tokens: what tokenising gave, in order, to be used again.
    """

    def __init__(self, tokens: list[Any] | None = None) -> None:
        self.tokenise = self.compute = 0.0
        self.tokens: list[Any] = []
        self._ready = None if tokens is None else iter(tokens)

    def __call__(self, texts: list[str], *, tokenize: Callable, compute: Callable, **options: Any) -> torch.Tensor:
        self.tokenise, self.compute, self.tokens = 0.0, 0.0, []

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


@cache
def make_model(engine: str, folder: Path) -> SentenceTransformer:
    if ENGINES[engine] is None:
        return SentenceTransformer(str(folder), device="cpu")
    return fastsal.SentenceEncoder(str(folder), dtype=ENGINES[engine], device="cpu")


def test_end_to_end(benchmark, subject: Subject, corpus: int, engine: str, full: bool, results: list, monkeypatch):
    texts, model, phases = make_texts("sts", corpus), make_model(engine, subject.folder), _Phases()
    benchmark.group = f"text to vectors, {corpus} sentences"

    def encode() -> np.ndarray:
        return model.encode(texts, show_progress_bar=False)

    def seconds(loop: _Phases) -> float:
        monkeypatch.setattr(fastsal.sentence_transformers.sentence_encoder, "embed", loop)
        start = time.perf_counter()
        encode()
        return time.perf_counter() - start

    monkeypatch.setattr(fastsal.sentence_transformers.sentence_encoder, "embed", phases)
    if corpus <= MANY:
        embeddings = measure(benchmark, encode, full=full)
    else:
        model.encode(texts[:MANY], show_progress_bar=False)
        embeddings = benchmark.pedantic(encode)

    step = max(1, corpus // 16)
    cosines = (embeddings[::step] * subject.reference.encode(texts[::step])).sum(axis=1)
    assert cosines.min() > (0.99 if ENGINES[engine] == "int8" else 0.99999)
    if benchmark.stats is None:  # --benchmark-disable
        return
    total = benchmark.stats.stats.median
    info = {"model": subject.name, "engine": engine, "corpus": corpus, "total_s": total}
    info["threads"] = torch.get_num_threads()
    if ENGINES[engine] is not None:
        whole, alone = [total], [seconds(_Phases(phases.tokens))]
        # In turns, since the speed of a shared machine drifts; not where the one round was long.
        for _ in range(3 if corpus <= MANY else 0):
            phases = _Phases()
            whole.append(seconds(phases))
            alone.append(seconds(_Phases(phases.tokens)))
        info |= {"tokenise_s": phases.tokenise, "compute_s": phases.compute}
        info["rest_share"] = 1 - phases.compute / whole[-1]
        info["overhead"] = float(np.median(whole) / np.median(alone)) - 1
    benchmark.extra_info.update(info)
    results.append(info)
