"""What is evaluated: pairs of sentences with what people said of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from fastsal.io import FileFormatError

#: The relations of natural language inference, by the names that every data set's own labels are mapped to.
NLI_LABELS = ("entailment", "neutral", "contradiction")

#: What data sets write where the annotators did not agree on a label.
_UNLABELLED = ("", "-", "-1", "none")


class DataError(FileFormatError):
    """Data is missing or not what it should be; the message names the file and line, or the row of the data set."""


@dataclass(frozen=True)
class ScoredPairs:
    """Sentence pairs with the similarity that people saw in them.

    Attributes:
        name: of the set, such as "headlines".
        first, second: the sentences of each pair.
        gold: (pairs,) float64 scores, 0 to 5.
        num_rows: rows read; those without a score are not among the pairs.

    The columns may be given as lists, tuples, arrays or pandas Series, whatever their index.

    Raises:
        ValueError: the columns differ in length.
    """

    name: str
    first: list[str]
    second: list[str]
    gold: np.ndarray
    num_rows: int

    def __post_init__(self) -> None:
        _settle(self, first=list(self.first), second=list(self.second), gold=np.asarray(self.gold, np.float64))

    def __len__(self) -> int:
        return len(self.first)


@dataclass(frozen=True)
class LabelledPairs:
    """Sentence pairs, premise and hypothesis, with the relation between them.

    Attributes:
        name: of the set, such as "test".
        first, second: the sentences of each pair.
        labels: of `NLI_LABELS`, one per pair.
        num_rows: rows read; those without a label are not among the pairs.

    The columns may be given as lists, tuples, arrays or pandas Series, whatever their index.

    Raises:
        ValueError: the columns differ in length.
    """

    name: str
    first: list[str]
    second: list[str]
    labels: list[str]
    num_rows: int

    def __post_init__(self) -> None:
        _settle(self, first=list(self.first), second=list(self.second), labels=list(self.labels))

    def __len__(self) -> int:
        return len(self.first)


@dataclass(frozen=True)
class StsData:
    """A task of semantic textual similarity.

    Attributes:
        task: of `STS_TASKS`.
        source: folder, file or repository that it was read from.
        subsets: one set of pairs, or several that were scored apart.
    """

    task: str
    source: str
    subsets: tuple[ScoredPairs, ...]


@dataclass(frozen=True)
class NliData:
    """A task of natural language inference.

    Attributes:
        task: of `NLI_TASKS`.
        source: folder or repository that it was read from.
        train: pairs that a classifier over frozen embeddings may learn from, named after what they are.
        tests: the sets that are scored, each for itself.
    """

    task: str
    source: str
    train: LabelledPairs
    tests: tuple[LabelledPairs, ...]


def parse_score(text: object) -> float | None:
    """A gold score; None for an empty text, which stands for a pair that was not scored.

    Raises:
        ValueError: no number from 0 to 5.
    """
    if text is None or (isinstance(text, str) and not text.strip()):
        return None
    try:
        score = float(text)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        score = float("nan")
    if not 0 <= score <= 5:
        raise ValueError(f"the score must be a number from 0 to 5, got {text!r}")
    return score


def parse_label(text: object) -> str | None:
    """One of `NLI_LABELS`; None for the marks of a pair without a label (``-``, ``-1``, nothing).

    Raises:
        ValueError: any other name or number. Numbers mean different labels in different data sets.
    """
    name = str(text).strip().lower()
    if name in _UNLABELLED:
        return None
    if name not in NLI_LABELS:
        raise ValueError(f"the label must be one of {', '.join(NLI_LABELS)}, or '-' for none, got {text!r}")
    return name


def _settle(pairs: Any, **columns: Any) -> None:
    """Set the columns of frozen `pairs`, which must be of one length."""
    lengths = {name: len(column) for name, column in columns.items()}
    if len(set(lengths.values())) > 1:
        described = ", ".join(f"{name} {length}" for name, length in lengths.items())
        raise ValueError(f"{pairs.name}: the columns must have the same length, they have: {described}")
    for name, column in columns.items():
        object.__setattr__(pairs, name, column)
