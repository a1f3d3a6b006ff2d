"""Latency of short queries while another thread of the process embeds 8 KB documents with the same model."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer

import fastsal
from fastsal.measure.length_mixes import make_texts

NUM_QUERIES, NUM_DOCUMENTS = 150, 64


def make_documents() -> list[str]:
    passages = make_texts("passages", 14 * NUM_DOCUMENTS)
    return [" ".join(passages[i::NUM_DOCUMENTS])[:8192] for i in range(NUM_DOCUMENTS)]


ENGINES: dict[str, Callable[[str], Any]] = {
    "sentence-transformers": lambda folder: SentenceTransformer(folder, device="cpu"),
    "fastsal.SentenceEncoder": lambda folder: fastsal.SentenceEncoder(folder, device="cpu"),
    "fastsal.TextEncoder": fastsal.TextEncoder,
}


def query_latencies(model: Any, number: int) -> tuple[list[float], int]:
    """Seconds of each query, and how many rounds of documents were embedded meanwhile."""
    documents, queries = make_documents(), make_texts("queries", number)
    for query in queries[:3]:
        model.encode(query)
    stop, rounds = threading.Event(), 0

    def bulk() -> None:
        nonlocal rounds
        while not stop.is_set():
            model.encode(documents)
            rounds += 1

    thread = threading.Thread(target=bulk)
    thread.start()
    try:
        time.sleep(0.3)
        latencies = []
        for query in queries:
            start = time.perf_counter()
            model.encode(query)
            latencies.append(time.perf_counter() - start)
            time.sleep(0.01)
    finally:
        stop.set()
        thread.join()
    return latencies, rounds


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("subject", ["minilm"], indirect=True)
def test_queries_beside_bulk(benchmark, subject, engine, table):
    model = ENGINES[engine](str(subject.folder))
    latencies, rounds = benchmark.pedantic(query_latencies, args=(model, NUM_QUERIES))
    p50, p99 = (float(value) for value in np.percentile(np.array(latencies) * 1e3, [50, 99]))
    benchmark.extra_info.update({"engine": engine, "p50_ms": p50, "p99_ms": p99, "bulk_rounds": rounds})
    table.append(f"queries beside bulk, {engine:26} p50 {p50:7.1f} ms  p99 {p99:7.1f} ms  ({rounds} rounds of bulk)")
