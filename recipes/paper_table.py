"""`python recipes/paper_table.py RUN` trains and scores the eight models of arXiv 2101.10642 in four ways.

{BERT, ALBERT} x {[CLS], mean, siamese mean, siamese CNN} x {no training, NLI, STS benchmark, NLI then STS benchmark}:
Pearson's and Spearman's correlation (x 100) on the STS benchmark's test set, and the accuracy of NLI, once with
sentence-transformers and once with fastsal in float32, with the sentences per second of both.

What the rows are: "[CLS]", "siamese mean" and "siamese CNN" are trained, siamese, through that pooling. "mean" is the
mean of the tokens of the encoder that was trained through [CLS], as plain fine-tuning does it. Without training,
"mean" and "siamese mean" are the same model, and the CNN's weights are random.

Started again, a run goes on with what is missing. RUN keeps every model, RUN/cells the scores.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from experiment import Encoder, Experiment, Stage
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import CNN, Pooling
from settings import read_settings
from train import DATA_HELP, data_folder, train

import fastsal
from fastsal.io.writers import atomic_file
from fastsal.measure.evaluation import LabelledPairs, NliData, NliHead, StsData, load_task, score_nli, score_sts

CONFIGURATION = Path(__file__).parent / "configs" / "paper-table.yaml"

#: For the speeds.
_RATE_SENTENCES, _RATE_PASSES = 1000, 3

ROWS = {"[CLS]": "cls", "mean": "cls", "siamese mean": "mean", "siamese CNN": "cnn"}

#: The model of each column: experiment, and folder in its run.
COLUMNS = {
    "none": ("both", "0-begin"),
    "NLI": ("both", "1-nli"),
    "STSb": ("stsb", "1-stsb"),
    "NLI, STSb": ("both", "2-stsb"),
}


@dataclass(frozen=True)
class Scale:
    """One form of the table.

    Attributes:
        families: checkpoint of the encoder by the name of its family.
        nli, stsb: how to train; the stages' names must be "nli" and "stsb".
        cnn: options of the CNN, see `fastsal.SBERT`.
        max_seq_length: in tokens.
        nli_train_limit, nli_test_limit: pairs of which the classifier over frozen embeddings learns, and that are
            scored, at most.
        seed: of everything.
    """

    families: dict[str, str]
    nli: Stage
    stsb: Stage
    cnn: dict[str, Any]
    max_seq_length: int = 128
    nli_train_limit: int = 20_000
    nli_test_limit: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if (self.nli.name, self.stsb.name) != ("nli", "stsb"):
            raise ValueError("the stages' names must be nli and stsb")


@dataclass(frozen=True)
class Scales:
    """What the YAML file holds: `small` for a machine without GPU and network, `full` for one with both."""

    small: Scale
    full: Scale


@dataclass(frozen=True)
class Cell:
    """Scores (x 100), each of sentence-transformers and of fastsal.

    Attributes:
        nli: accuracy of a logistic regression over the frozen embeddings.
        nli_head: accuracy of the model's own classifier; None where it was not trained.
    """

    family: str
    row: str
    column: str
    pearson: tuple[float, float]
    spearman: tuple[float, float]
    nli: tuple[float, float]
    nli_head: tuple[float, float] | None


class Unpadded:
    """A SentenceTransformer that encodes sentences of one number of tokens at a time.

    The reference's CNN lets the padding of a batch leak into its windows. Without padding it is what fastsal computes.
    """

    def __init__(self, model: SentenceTransformer) -> None:
        self.model = model

    def encode(self, inputs: Sequence[str]) -> np.ndarray:
        lengths = np.array([len(ids) for ids in self.model.tokenizer(list(inputs), truncation=True)["input_ids"]])
        result: np.ndarray | None = None
        for length in np.unique(lengths):
            rows = np.flatnonzero(lengths == length)
            embeddings = self.model.encode([inputs[row] for row in rows], show_progress_bar=False)
            result = np.empty((len(inputs), embeddings.shape[1]), np.float32) if result is None else result
            result[rows] = embeddings
        return np.empty((0, 0), np.float32) if result is None else result


def make_cells(scale: Scale, run: Path, data: Path | None, device: str | None) -> Iterator[Cell]:
    """Train and score what is missing; the cells row by row."""
    sts, nli = load_task("stsb", data), load_task("snli", data)
    if not isinstance(sts, StsData) or not isinstance(nli, NliData):
        raise RuntimeError("stsb must be a task of similarity, snli one of inference")
    nli = replace(nli, tests=tuple(_first(test, scale.nli_test_limit) for test in nli.tests))
    for family, checkpoint in scale.families.items():
        for row, pooling in ROWS.items():
            encoder = Encoder(
                checkpoint=checkpoint,
                pooling=pooling,
                cnn=scale.cnn if pooling == "cnn" else None,
                max_seq_length=scale.max_seq_length,
            )
            experiments = {
                "both": Experiment(encoder, (scale.nli, scale.stsb), scale.seed),
                "stsb": Experiment(encoder, (scale.stsb,), scale.seed),
            }
            for column, (name, stage) in COLUMNS.items():
                file = run / "cells" / f"{family} {row} {column}.json"
                if not file.is_file():
                    folder = run / f"{family}-{pooling}-{name}"
                    train(experiments[name], folder, data, device)
                    print(f"scoring {family}, {row}, {column} ...", file=sys.stderr)
                    model = _load(folder / stage / "model", row, device)
                    head = None if row == "mean" else NliHead.load(folder / stage / "model")
                    cell = Cell(family, row, column, *_score(model, head, sts, nli, scale))
                    file.parent.mkdir(parents=True, exist_ok=True)
                    with atomic_file(file) as unfinished:
                        unfinished.write((json.dumps(asdict(cell)) + "\n").encode())
                yield Cell(**json.loads(file.read_text(encoding="utf-8")))


def measure_rates(
    scale: Scale, run: Path, data: Path | None, device: str | None
) -> dict[tuple[str, str], tuple[float, float]]:
    """Sentences per second of the reference and of fastsal by family and row: training does not change them.

    From text to array, sentences of the STS benchmark's test set; the medians of passes taken in turns.
    """
    sts = load_task("stsb", data)
    if not isinstance(sts, StsData):
        raise RuntimeError("stsb must be a task of similarity")
    sentences = sts.subsets[0].first[:_RATE_SENTENCES]
    rates = {}
    for family in scale.families:
        for row, pooling in ROWS.items():
            plain = _load(run / f"{family}-{pooling}-both" / "0-begin" / "model", row, device)
            models = (plain, fastsal.accelerate(copy.deepcopy(plain), dtype="float32"))
            seconds: tuple[list[float], list[float]] = ([], [])
            for _ in range(_RATE_PASSES + 1):  # the first calls prepare weights and threads
                for model, times in zip(models, seconds, strict=True):
                    start = time.perf_counter()
                    model.encode(sentences, show_progress_bar=False)
                    times.append(time.perf_counter() - start)
            reference, fast = (len(sentences) / statistics.median(times[1:]) for times in seconds)
            rates[family, row] = (reference, fast)
    return rates


def _load(folder: Path, row: str, device: str | None) -> SentenceTransformer:
    model = SentenceTransformer(str(folder), device=device)
    if row != "mean":
        return model
    return SentenceTransformer(modules=[model[0], Pooling(model.get_embedding_dimension(), "mean")], device=device)


def _score(
    model: SentenceTransformer, head: NliHead | None, sts: StsData, nli: NliData, scale: Scale
) -> list[tuple[float, float] | None]:
    """Pearson, Spearman, and the two accuracies of NLI, each of the reference and of fastsal."""
    reference = Unpadded(model) if isinstance(model[1], CNN) else model
    sides = []
    for encoder in (reference, fastsal.accelerate(copy.deepcopy(model), dtype="float32")):
        similarity = score_sts(encoder, sts).all
        accuracy = score_nli(encoder, nli, head, scale.seed, scale.nli_train_limit)
        own = accuracy.head.get("test")
        sides.append((similarity["pearson_cosine"], similarity["spearman_cosine"], accuracy.frozen["test"], own))
    return [None if pair[0] is None else pair for pair in zip(*sides, strict=True)]


def _first(pairs: LabelledPairs, limit: int | None) -> LabelledPairs:
    return replace(pairs, first=pairs.first[:limit], second=pairs.second[:limit], labels=pairs.labels[:limit])


def as_markdown(cells: Sequence[Cell], rates: Mapping[tuple[str, str], tuple[float, float]]) -> str:
    """The table; scores that agree in the second decimal are shown once, others as reference / fastsal."""
    lines = [
        "| encoder | model | training | Pearson | Spearman | NLI | own head | reference, sentences/s | fastsal |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for cell in cells:
        reference, fast = rates[cell.family, cell.row]
        scores = (_both(pair) for pair in (cell.pearson, cell.spearman, cell.nli, cell.nli_head))
        values = (cell.family, cell.row, cell.column, *scores, f"{reference:.0f}", f"{fast:.0f}")
        lines.append(f"| {' | '.join(values)} |")
    return "\n".join(lines)


def _both(pair: tuple[float, float] | None) -> str:
    if pair is None:
        return ""
    reference, fast = (f"{value:.2f}" for value in pair)
    return reference if reference == fast else f"{reference} / {fast}"


def summary(cells: Sequence[Cell]) -> str:
    """The largest difference between the two sides, and what the CNN changes in each family."""
    worst = max(
        abs(pair[0] - pair[1])
        for cell in cells
        for pair in (cell.pearson, cell.spearman, cell.nli, cell.nli_head)
        if pair
    )
    lines = [f"Largest difference between the reference's and fastsal's scores: {worst:.4f}"]
    spearman = {(cell.family, cell.row, cell.column): cell.spearman[0] for cell in cells}
    for column in list(COLUMNS)[1:]:
        gains = {
            family: spearman[family, "siamese CNN", column] - spearman[family, "siamese mean", column]
            for family in dict.fromkeys(cell.family for cell in cells)
        }
        listed = ", ".join(f"{family} {gain:+.2f}" for family, gain in gains.items())
        lines.append(f"Spearman, siamese CNN minus siamese mean, trained on {column}: {listed}")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="folder for everything the run writes")
    parser.add_argument("--scale", choices=("small", "full"), default="small", help="form in the configuration")
    parser.add_argument("--configuration", type=Path, default=CONFIGURATION, help="YAML file with both forms")
    parser.add_argument("--data", type=Path, help=DATA_HELP)
    parser.add_argument("--device", help="cpu, cuda, ... (default: the best one)")
    options = parser.parse_args(arguments)
    scale: Scale = getattr(read_settings(options.configuration, Scales), options.scale)
    cells = list(make_cells(scale, options.run, data_folder(options.data), options.device))
    print(as_markdown(cells, measure_rates(scale, options.run, data_folder(options.data), options.device)))
    print(f"\n{summary(cells)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
