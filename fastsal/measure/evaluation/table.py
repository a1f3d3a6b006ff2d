"""The table that `fastsal eval` prints."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from fastsal.measure.evaluation.compare import TaskComparison
from fastsal.measure.evaluation.nli import NliScores


def make_evaluation_table(title: str, comparisons: Sequence[TaskComparison]) -> Table:
    """One section per task, one row per score and encoder: score, difference to the reference, sentences/s."""
    table = Table(title=title, caption_justify="left")
    for heading in ("task", "score x 100", "run by"):
        table.add_column(heading)
    for heading in ("score", "difference", "sentences/s"):
        table.add_column(heading, justify="right")
    for comparison in comparisons:
        for index, (name, scores) in enumerate(comparison.headline().items()):
            table.add_row(
                comparison.task if index == 0 else "",
                name,
                "\n".join(run.name for run in comparison.runs),
                "\n".join(f"{score:.2f}" for score in scores),
                "\n".join(["", *(f"{score - scores[0]:+.3f}" for score in scores[1:])]),
                "\n".join(f"{run.sentences_per_second:.0f}" for run in comparison.runs) if index == 0 else "",
                end_section=index == len(comparison.headline()) - 1,
            )
    table.caption = "\n".join(_description(comparison) for comparison in comparisons)
    return table


def _description(comparison: TaskComparison) -> str:
    scores = comparison.runs[0].scores
    rows, pairs = sum(scores.num_rows.values()), sum(scores.num_pairs.values())
    counts = f"{rows} rows read, {pairs} pairs"
    if isinstance(scores, NliScores):
        counts += f", {rows - pairs} without a label left out; classifier trained on {scores.trained_on}"
    else:
        counts += f", {rows - pairs} without a score left out"
    return f"{comparison.task}: {scores.source}: {counts}"
