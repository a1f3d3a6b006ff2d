"""What a model reaches on this machine: every backend and dtype that can run here, beside sentence-transformers."""

from __future__ import annotations

import datetime
import itertools
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from rich.table import Table
from sentence_transformers import SentenceTransformer

from fastsal.backends import DTYPES, BackendError, backends
from fastsal.measure.accuracy import Accuracy
from fastsal.measure.information import machine_information
from fastsal.measure.length_mixes import MIXES, make_texts
from fastsal.sentence_transformers.sentence_encoder import SentenceEncoder

#: Passes per engine and mix, taken in turns, since the speed of a shared machine drifts. The median counts.
NUM_PASSES = 3

NUM_CHECKED, NUM_LATENCIES = 24, 20

REFERENCE = "sentence-transformers"

#: Of the latency; some 12 tokens.
QUERY = "Which old towns near the coast can be reached by train?"


@dataclass(frozen=True)
class EngineResult:
    """One engine.

    Attributes:
        name: of the engine, with backend and dtype.
        baseline: the engine that its speed is compared with: sentence-transformers on the same device, on a GPU in the
            same dtype.
        sentences_per_second: per length mix, from text to array.
        latency_ms: median time of one sentence of some 12 tokens.
        error, min_cosine: against the model in float64, one sentence at a time.
        reference_error: of sentence-transformers in the same dtype; None for int8, which it does not have.
    """

    name: str
    baseline: str
    sentences_per_second: dict[str, float]
    latency_ms: float
    error: float
    min_cosine: float
    reference_error: float | None


@dataclass(frozen=True)
class BenchReport:
    """All engines on one model; the first is sentence-transformers on the CPU in float32.

    Attributes:
        model: name or folder.
        date: of the measurement, UTC.
        machine: versions, processor and threads, by label.
        engines: what was measured.
        skipped: what cannot run here, with the reason.
        tokens: mean tokens per sentence of each length mix.
    """

    model: str
    date: str
    machine: dict[str, str]
    engines: tuple[EngineResult, ...]
    skipped: dict[str, str]
    tokens: dict[str, float]

    def as_json(self) -> dict[str, Any]:
        """Everything, in types that json can write."""
        return asdict(self)


def bench(
    model: str, mixes: Sequence[str] = tuple(MIXES), seconds: float = 2.0, report: Callable[[str], object] = print
) -> BenchReport:
    """Measure a model.

    Args:
        model: folder or Hugging Face Hub id.
        mixes: of `fastsal.measure.length_mixes.MIXES`.
        seconds: a pass of sentence-transformers takes about so long; all engines of a device get the same sentences.
        report: called with the name of what is measured next.

    Raises:
        WrongResultError: an engine's embeddings are wrong; nothing is reported then.
        OSError: the model cannot be loaded.
    """
    report("float64, as the truth")
    engines, skipped = _engines(model)
    texts = make_texts("mixed", NUM_CHECKED)
    truth = _one_by_one(SentenceTransformer(model, device="cpu").double(), texts)
    references = {id(engine.reference): engine.reference for engine in engines.values()}
    expected = {key: Accuracy.of(_one_by_one(reference, texts), truth) for key, reference in references.items()}
    accuracies = {}
    for name, engine in engines.items():
        accuracies[name] = Accuracy.of(np.asarray(engine.encoder.encode(texts), np.float64), truth)
        if isinstance(engine.encoder, SentenceEncoder):
            accuracies[name].check(name, engine.dtype, expected[id(engine.reference)])

    rates: dict[str, dict[str, float]] = {name: {} for name in engines}
    tokens = {}
    for mix in mixes:
        report(mix)
        sentences = {}  # of each device
        for engine in engines.values():
            if engine.device not in sentences:
                sentences[engine.device] = make_texts(mix, _number(engine.encoder, mix, seconds))
        tokens[mix] = _mean_tokens(engines[REFERENCE].encoder, sentences["cpu"])
        times: dict[str, list[float]] = {name: [] for name in engines}
        for _, (name, engine) in itertools.product(range(NUM_PASSES), engines.items()):
            times[name].append(_seconds(engine.encoder, sentences[engine.device]))
        for name, engine in engines.items():
            rates[name][mix] = len(sentences[engine.device]) / statistics.median(times[name])
    report("latency")
    latencies = {
        name: 1e3 * statistics.median(_seconds(engine.encoder, QUERY) for _ in range(NUM_LATENCIES))
        for name, engine in engines.items()
    }
    return BenchReport(
        model=model,
        date=datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="minutes"),
        machine=machine_information(),
        engines=tuple(
            EngineResult(
                name=name,
                baseline=engine.baseline,
                sentences_per_second=rates[name],
                latency_ms=latencies[name],
                error=accuracies[name].error,
                min_cosine=accuracies[name].min_cosine,
                reference_error=None if engine.dtype == "int8" else expected[id(engine.reference)].error,
            )
            for name, engine in engines.items()
        ),
        skipped=skipped,
        tokens=tokens,
    )


def make_bench_table(report: BenchReport) -> Table:
    """One row per engine."""
    table = Table(title=f"{report.model}: from text to embeddings", caption_justify="left")
    table.add_column("engine")
    for mix, tokens in report.tokens.items():
        table.add_column(f"{mix}, {tokens:.0f} tokens\nsentences/s", justify="right")
    for heading in ("one sentence\nms", "error", "reference's\nerror", "min cosine"):
        table.add_column(heading, justify="right")
    rates = {engine.name: engine.sentences_per_second for engine in report.engines}
    for engine in report.engines:
        baseline = rates[engine.baseline]
        table.add_row(
            engine.name,
            *(f"{rate:.0f} ({rate / baseline[mix]:.1f}x)" for mix, rate in engine.sentences_per_second.items()),
            f"{engine.latency_ms:.2f}",
            f"{engine.error:.1e}",
            "" if engine.reference_error is None else f"{engine.reference_error:.1e}",
            f"{engine.min_cosine:.6f}",
        )
    lines = ["x: times as fast as sentence-transformers on the same device, on a GPU in the same dtype"]
    lines += [f"{name}: {reason}" for name, reason in report.skipped.items()]
    lines += [f"{report.date}, {report.machine['processor']}, {report.machine['threads']} threads"]
    table.caption = "\n".join(lines)
    return table


@dataclass(frozen=True)
class _Engine:
    """What is measured, and the model that it replaces on the same `device`: as an engine, and for its numbers."""

    encoder: SentenceTransformer
    dtype: str
    device: str
    baseline: str
    reference: SentenceTransformer


def _engines(model: str) -> tuple[dict[str, _Engine], dict[str, str]]:
    """What can run, the first of each device being sentence-transformers; and what cannot, with the reason."""
    plain = {
        dtype: SentenceTransformer(model, device="cpu").to(getattr(torch, dtype)) for dtype in ("float32", "bfloat16")
    }
    engines = {REFERENCE: _Engine(plain["float32"], "float32", "cpu", REFERENCE, plain["float32"])}
    skipped = {}
    for backend, status in backends().items():
        if backend == "reference":
            continue
        if not status.available:
            skipped[f"fastsal {backend}"] = status.detail
            continue
        device = "cuda" if backend == "triton" else "cpu"
        for dtype in DTYPES:
            name, baseline = f"fastsal {backend} {dtype}", REFERENCE
            try:
                encoder = SentenceEncoder(model, dtype=dtype, backend=backend, device=device)
            except BackendError as error:
                skipped[name] = str(error)
                continue
            reference = plain.get(dtype, plain["float32"])
            if device == "cuda":
                baseline = f"{REFERENCE} cuda {dtype}"
                reference = SentenceTransformer(model, device=device).to(getattr(torch, dtype))
                engines[baseline] = _Engine(reference, dtype, device, baseline, reference)
            engines[name] = _Engine(encoder, dtype, device, baseline, reference)
    return engines, skipped


def _one_by_one(model: SentenceTransformer, texts: list[str]) -> np.ndarray:
    embeddings: list[torch.Tensor] = [model.encode(text, convert_to_tensor=True) for text in texts]
    return torch.stack(embeddings).double().cpu().numpy()


def _number(reference: SentenceTransformer, mix: str, seconds: float) -> int:
    """Of sentences that the reference encodes in so many seconds, about."""
    probe = make_texts(mix, 32)
    _seconds(reference, probe)
    return int(np.clip(seconds * len(probe) / _seconds(reference, probe), 16, 32_768))


def _seconds(encoder: SentenceTransformer, texts: str | list[str]) -> float:
    start = time.perf_counter()
    encoder.encode(texts, show_progress_bar=False)
    return time.perf_counter() - start


def _mean_tokens(model: SentenceTransformer, texts: list[str]) -> float:
    mask = model.preprocess(texts)["attention_mask"]
    return float(mask.sum() / len(texts))
