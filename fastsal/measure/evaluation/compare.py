"""Several encoders on the same tasks: the reference's scores and speed beside fastsal's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from fastsal.measure.evaluation.embedding import Encoder, TimedEncoder
from fastsal.measure.evaluation.nli import TRAIN_LIMIT, NliScores, score_nli
from fastsal.measure.evaluation.nli_head import NliHead
from fastsal.measure.evaluation.pairs import NliData, StsData
from fastsal.measure.evaluation.sts import StsScores, score_sts


@dataclass(frozen=True)
class Run:
    """One encoder on one task.

    Attributes:
        name: of the encoder.
        scores: what it reached.
        sentences_per_second: of its `encode`, from text to array, each different sentence counted once.
    """

    name: str
    scores: StsScores | NliScores
    sentences_per_second: float


@dataclass(frozen=True)
class TaskComparison:
    """All encoders on one task.

    Attributes:
        task: its name.
        runs: in the order in which the encoders were given; the first is the reference.
    """

    task: str
    runs: tuple[Run, ...]

    def headline(self) -> dict[str, list[float]]:
        """The scores to look at first, each with one number per run."""
        columns = [_headline(run.scores) for run in self.runs]
        return {name: [column[name] for column in columns] for name in columns[0]}

    def as_json(self) -> dict[str, Any]:
        """Everything, in types that json can write."""
        return {"task": self.task, "headline": self.headline(), "runs": [asdict(run) for run in self.runs]}


def compare(
    encoders: Mapping[str, Encoder],
    data: StsData | NliData,
    *,
    head: NliHead | None = None,
    precision: str = "float32",
    seed: int = 0,
    train_limit: int = TRAIN_LIMIT,
) -> TaskComparison:
    """Evaluate encoders on a task, one after the other; arguments and errors as in `score_sts` and `score_nli`."""
    runs = []
    for name, encoder in encoders.items():
        timed = TimedEncoder(encoder)
        scores: StsScores | NliScores
        if isinstance(data, StsData):
            scores = score_sts(timed, data, precision)
        else:
            scores = score_nli(timed, data, head, seed, train_limit)
        runs.append(Run(name, scores, timed.sentences / timed.seconds))
    return TaskComparison(data.task, tuple(runs))


def _headline(scores: StsScores | NliScores) -> dict[str, float]:
    if isinstance(scores, NliScores):
        frozen = {f"accuracy, frozen embeddings, {name}": value for name, value in scores.frozen.items()}
        return frozen | {f"accuracy, own head, {name}": value for name, value in scores.head.items()}
    several = len(scores.subsets) > 1
    headline = {}
    for measure in ("Spearman", "Pearson"):
        key = f"{measure.lower()}_cosine"
        headline[f"{measure}, all" if several else measure] = scores.all[key]
        if several:
            headline[f"{measure}, mean over subsets"] = scores.mean[key]
    return headline
