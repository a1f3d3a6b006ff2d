"""Training sets as `datasets.Dataset`s whose columns are what sentence-transformers' losses expect, label last.

Data comes by name from the Hub, or from a folder in the layouts of docs/evaluation.md and docs/recipes.md. What is
read here is for training and for choosing; `fastsal.measure.evaluation` reads what is scored.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any, TypeVar

from datasets import Dataset
from experiment import Objective

from fastsal.measure.evaluation import DataError, LabelledPairs, ScoredPairs
from fastsal.measure.evaluation.tables import labelled_pairs, read_labelled_pairs, read_scored_pairs, scored_pairs

T = TypeVar("T")

#: The numbers of the labels, and the rows of the classifier.
NLI_CLASSES = ("contradiction", "entailment", "neutral")

#: Names on the Hub; both have columns premise, hypothesis, label.
_NLI_HUB = {"snli": "stanfordnlp/snli", "multinli": "nyu-mll/multi_nli"}
_STSB_HUB = "mteb/stsbenchmark-sts"
_STSB_FILES = {"train": "sts-train.csv", "validation": "sts-dev.csv"}


def load_nli(name: str, folder: Path | None) -> LabelledPairs:
    """The training pairs of snli or multinli: `folder`/NAME/train.tsv or train_sample.tsv, perhaps gzipped."""
    if folder is None:
        rows = _hub(_NLI_HUB[name], "train")
        names = rows.features["label"].names
        triples = [
            (
                f"{name}, row {number}",
                names[row["label"]] if row["label"] >= 0 else "-",
                row["premise"],
                row["hypothesis"],
            )
            for number, row in enumerate(rows)
        ]
        return labelled_pairs(f"{name} train", triples)
    candidates = [folder / name / f"{stem}.tsv{end}" for stem in ("train", "train_sample") for end in ("", ".gz")]
    return read_labelled_pairs(f"{name} train", _first(candidates))


def load_stsb(split: str, folder: Path | None) -> ScoredPairs:
    """STS benchmark pairs of "train" or "validation": `folder`/stsb/sts-train.csv and sts-dev.csv."""
    if folder is None:
        rows = _hub(_STSB_HUB, split)
        scored = [(f"stsb, row {n}", row["score"], row["sentence1"], row["sentence2"]) for n, row in enumerate(rows)]
        return scored_pairs(split, scored)
    path = folder / "stsb" / _STSB_FILES[split]
    return read_scored_pairs(_first([path, path.with_name(f"{path.name}.gz")]), 7, (4, 5, 6))


def make_dataset(objective: Objective, folder: Path | None, seed: int) -> Dataset:
    """The rows of an objective other than distillation.

    Args:
        folder: with the data, or None for the Hub.
        seed: of the sample where `objective.limit` asks for one.

    Raises:
        DataError: data is missing or malformed, or there are no rows.
    """
    if objective.kind == "sts":
        pairs = load_stsb("train", folder)
        columns: dict[str, list] = {"sentence1": pairs.first, "sentence2": pairs.second, "score": list(pairs.gold / 5)}
    else:
        sets = [load_nli(name, folder) for name in objective.data]
        rows = [row for nli in sets for row in zip(nli.first, nli.second, nli.labels, strict=True)]
        columns = _triplets(rows) if objective.kind == "triplet" else _nli(rows)
    dataset = Dataset.from_dict({name: sample(column, objective.limit, seed) for name, column in columns.items()})
    if not len(dataset):
        raise DataError(f"{objective.kind}: no training rows in {', '.join(objective.data)}")
    return dataset


def sample(rows: list[T], limit: int | None, seed: int) -> list[T]:
    """At most `limit` of the rows, in their order; the same ones of lists of equal length."""
    if limit is None or limit >= len(rows):
        return rows
    return [rows[index] for index in sorted(random.Random(seed).sample(range(len(rows)), limit))]


def _nli(rows: list[tuple[str, str, str]]) -> dict[str, list]:
    premises, hypotheses, labels = (list(column) for column in zip(*rows, strict=True))
    return {"sentence1": premises, "sentence2": hypotheses, "label": [NLI_CLASSES.index(label) for label in labels]}


def _triplets(rows: list[tuple[str, str, str]]) -> dict[str, list]:
    """Premises that have both an entailment and a contradiction: all combinations of these."""
    by_premise: dict[str, dict[str, list[str]]] = {}
    for premise, hypothesis, label in rows:
        by_premise.setdefault(premise, {}).setdefault(label, []).append(hypothesis)
    triplets = [
        (premise, positive, negative)
        for premise, hypotheses in by_premise.items()
        for positive in hypotheses.get("entailment", [])
        for negative in hypotheses.get("contradiction", [])
    ]
    names = ("anchor", "positive", "negative")
    return {name: [triplet[index] for triplet in triplets] for index, name in enumerate(names)}


def _first(paths: list[Path]) -> Path:
    for path in paths:
        if path.is_file():
            return path
    raise DataError(f"no file {' or '.join(map(str, paths))}")


def _hub(path: str, split: str) -> Any:
    from datasets import load_dataset

    try:
        return load_dataset(path, split=split)
    # datasets, the hub's client and fsspec each have exceptions of their own for "not there" and "no network"
    except Exception as error:
        raise DataError(
            f"cannot load the data set {path!r}: {error} (a local folder can be given with --data)"
        ) from error
