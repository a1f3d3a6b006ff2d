"""Evaluation on the field's public tasks: semantic textual similarity and natural language inference."""

from fastsal.measure.evaluation.compare import Run, TaskComparison, compare
from fastsal.measure.evaluation.nli import NliScores, score_nli
from fastsal.measure.evaluation.nli_head import NliHead
from fastsal.measure.evaluation.pairs import DataError, LabelledPairs, NliData, ScoredPairs, StsData
from fastsal.measure.evaluation.sts import StsScores, score_sts
from fastsal.measure.evaluation.tasks import NLI_TASKS, STS_TASKS, TASKS, load_task

__all__ = [
    "NLI_TASKS",
    "STS_TASKS",
    "TASKS",
    "DataError",
    "LabelledPairs",
    "NliData",
    "NliHead",
    "NliScores",
    "Run",
    "ScoredPairs",
    "StsData",
    "StsScores",
    "TaskComparison",
    "compare",
    "load_task",
    "score_nli",
    "score_sts",
]
