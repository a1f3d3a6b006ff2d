"""Sentences per second, by model and length mix, of everything that can run here, in one run.

`pytest benchmarks/ --benchmark-only`, and `--benchmark-json F` for `benchmarks/report.py`. An engine whose embeddings
are wrong fails, and its speed is not reported.
"""

from __future__ import annotations

import gc
import os
import time
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from engines import ENGINES, Engine, embed_features
from peers import PEERS, make_peer, missing_packages
from rounds import measure
from subjects import DEFAULT_MIXES, PEER_MIXES, SLOW_PEERS, SUBJECTS, Subject, Workload, number_of_texts

from fastsal.backends import backends
from fastsal.measure.accuracy import Accuracy, WrongResultError
from fastsal.measure.evaluation import DataError, load_task, score_sts
from fastsal.measure.length_mixes import MIXES

#: What the rivals must reach not to be broken: their int8 is known to be rough.
PEER_MIN_COSINE = {"float32": 0.9999, "bfloat16": 0.99, "int8": 0.5}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    full = metafunc.config.getoption("--full")
    runs = [
        (subject, mix, engine)
        for subject in SUBJECTS
        for mix in (MIXES if full else DEFAULT_MIXES[subject])
        for engine in (*ENGINES, *(PEERS if full or mix in PEER_MIXES else ()))
        if full or engine not in SLOW_PEERS.get(subject, ())
    ]
    metafunc.parametrize(("subject", "mix", "engine_name"), runs, indirect=["subject"])


class _Bench:
    """What is shared by the tests of one subject: engines by name, work and truth by mix."""

    def __init__(self, subject: Subject, folder: Path, full: bool) -> None:
        self.subject, self.folder, self.full = subject, folder, full
        self.engine = cache(self._engine)
        self.work = cache(self._work)
        self.accuracies = cache(self._accuracies)

    def _engine(self, name: str) -> tuple[Engine, float]:
        start = time.perf_counter()
        made = ENGINES[name][1](self.subject) if name in ENGINES else make_peer(name, self.subject, self.folder)
        return made, time.perf_counter() - start

    def _work(self, mix: str) -> tuple[Workload, np.ndarray]:
        """The work and the truth of some of its rows, which float64 computes one by one."""
        work = self.subject.workload(mix, number_of_texts(self.subject.name, mix, self.full))
        exact = self.subject.reference.double()
        truth = self._alone(exact, work)
        exact.float()
        return work, truth

    def _accuracies(self, mix: str, dtype: str) -> Accuracy:
        """Of the reference in a dtype, one by one."""
        work, truth = self.work(mix)
        model = self.subject.reference.to(getattr(torch, dtype))
        accuracy = Accuracy.of(self._alone(model, work), truth)
        model.float()
        return accuracy

    @staticmethod
    def _alone(model, work: Workload) -> np.ndarray:
        return np.concatenate([embed_features(model, work.alone(row)) for row in work.checked_rows()])


@pytest.fixture(scope="module")
def bench(subject: Subject, subject_folder: Path, full: bool):
    """Made anew for each subject, since the fixture `subject` is."""
    yield _Bench(subject, subject_folder, full)
    gc.collect()


def test_throughput(benchmark, bench: _Bench, subject: Subject, mix: str, engine_name: str, results: list):
    _skip_what_cannot_run(engine_name, subject)
    engine, prepare_seconds = bench.engine(engine_name)
    work, truth = bench.work(mix)
    benchmark.group = f"{subject.name}, {mix}"

    embeddings = measure(benchmark, engine.run, work, full=bench.full)

    found = Accuracy.of(embeddings[work.checked_rows()], truth)
    _check(engine, found, bench, mix)
    info = {
        "model": subject.name,
        "mix": mix,
        "engine": engine_name,
        "dtype": engine.dtype,
        "starts from": engine.start,
        "sentences": len(work.texts),
        "tokens": work.num_tokens,
        "error": found.error,
        "min_cosine": found.min_cosine,
        "prepare_seconds": prepare_seconds,
        "threads": torch.get_num_threads(),
    }
    # engines from text, and streams, give the numbers of another engine
    scored = subject.real_weights and mix == "sts" and engine.start == "tokens" and not engine.name.endswith("-streams")
    if scored and (spearman := _sts_spearman(engine, subject)) is not None:
        info["sts_spearman"] = spearman
    if benchmark.stats is not None:  # --benchmark-disable
        median = benchmark.stats.stats.median
        info |= {"sentences_per_s": len(work.texts) / median, "tokens_per_s": work.num_tokens / median}
        results.append(info)
    benchmark.extra_info.update(info)


def _skip_what_cannot_run(name: str, subject: Subject) -> None:
    if name in PEERS:
        if missing := missing_packages(name):
            pytest.skip(f"needs {', '.join(missing)}: pip install 'fastsal[peers]'")
        if subject.has_cnn:
            pytest.skip("the rivals get the encoder with mean pooling only")
        return
    needed = ENGINES[name][0]
    status = backends()[needed]
    if not status.available:
        pytest.skip(f"backend {needed}: {status.detail}")


def _check(engine: Engine, found: Accuracy, bench: _Bench, mix: str) -> None:
    """Fail if the embeddings are wrong."""
    if engine.ours:
        reference = bench.accuracies(mix, "float32" if engine.dtype == "int8" else engine.dtype)
        found.check(engine.name, engine.dtype, reference)
        return
    if bench.subject.has_cnn:
        return  # on padded batches the reference's convolutions see the padding: its results depend on the batch
    limit = PEER_MIN_COSINE[engine.dtype]
    if not found.min_cosine >= limit:
        raise WrongResultError(f"{engine.name}: cosine {found.min_cosine:.4f} to the truth, below {limit}")


def _sts_spearman(engine: Engine, subject: Subject) -> float | None:
    """Spearman x 100 on STS benchmark's test set, where FASTSAL_DATA has it."""
    data = _stsb()
    if data is None:
        return None

    class _Encoder:
        def encode(self, inputs: list[str], /) -> np.ndarray:
            return engine.run(subject.workload_of(inputs))

    return score_sts(_Encoder(), data).all["spearman_cosine"]


@cache
def _stsb():
    folder = os.environ.get("FASTSAL_DATA")
    try:
        return load_task("stsb", folder) if folder else None
    except DataError:
        return None
