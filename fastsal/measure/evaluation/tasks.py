"""The tasks by name, and where their data comes from."""

from __future__ import annotations

import os
from pathlib import Path

from fastsal.measure.evaluation import folder as local
from fastsal.measure.evaluation import hub
from fastsal.measure.evaluation.pairs import DataError, NliData, StsData

STS_TASKS = ("stsb", "sick-r", "sts12", "sts13", "sts14", "sts15", "sts16")
NLI_TASKS = ("snli", "multinli", "sick-e")
TASKS = STS_TASKS + NLI_TASKS


def load_task(task: str, folder: str | os.PathLike[str] | None = None) -> StsData | NliData:
    """The data of a task.

    Args:
        task: one of `TASKS`.
        folder: holds the data in the layouts of docs/evaluation.md. None: by name through `datasets.load_dataset`.

    Raises:
        ValueError: an unknown task.
        DataError: data is missing or malformed; the message names the file and line.
        OSError: a file cannot be read.
    """
    if task not in TASKS:
        raise ValueError(f"task must be one of {', '.join(TASKS)}, got {task!r}")
    if folder is None:
        return hub.load_sts(task) if task in STS_TASKS else hub.load_nli(task)
    path = Path(folder)
    if not path.is_dir():
        raise DataError(f"{path}: no folder with evaluation data")
    return local.read_sts(task, path) if task in STS_TASKS else local.read_nli(task, path)
