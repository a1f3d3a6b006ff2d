"""The tasks' data in a local folder: the layouts that docs/evaluation.md describes."""

from __future__ import annotations

from pathlib import Path

from fastsal.measure.evaluation.pairs import DataError, LabelledPairs, NliData, StsData
from fastsal.measure.evaluation.tables import (
    labelled_pairs,
    read_labelled_pairs,
    read_named_columns,
    read_paired_files,
    read_scored_pairs,
    scored_pairs,
)

_SICK_TEST, _SICK_TRAIN = "SICK_test_annotated.txt", "SICK_train.txt"


def read_sts(task: str, folder: Path) -> StsData:
    """One of stsb, sick-r, sts12 ... sts16.

    Raises:
        DataError: a file is missing or malformed.
        OSError: a file cannot be read.
    """
    if task == "stsb":
        path = _file(folder / "stsb", "sts-test.csv")
        return StsData(task, str(path), (read_scored_pairs(path, 7, (4, 5, 6)),))
    if task == "sick-r":
        path = _file(folder / "sick", _SICK_TEST)
        rows = read_named_columns(path, ("relatedness_score", "sentence_A", "sentence_B"))
        return StsData(task, str(path), (scored_pairs("test", rows),))
    year = folder / "sts12-16" / f"{task.upper()}-en-test"
    names = sorted(path.name.removeprefix("STS.gs.").removesuffix(".txt") for path in year.glob("STS.gs.*.txt"))
    if not names:
        raise DataError(f"{year}: no files STS.gs.<name>.txt with STS.input.<name>.txt beside them")
    subsets = [
        read_paired_files(name, _file(year, f"STS.input.{name}.txt"), year / f"STS.gs.{name}.txt") for name in names
    ]
    return StsData(task, str(year), tuple(subsets))


def read_nli(task: str, folder: Path) -> NliData:
    """One of snli, multinli, sick-e. Without training pairs of its own, multinli learns from those of snli.

    Raises:
        DataError: a file is missing or malformed.
        OSError: a file cannot be read.
    """
    if task == "sick-e":
        sets = []
        for name, file in (("sick-e train", _SICK_TRAIN), ("test", _SICK_TEST)):
            columns = ("entailment_judgment", "sentence_A", "sentence_B")
            sets.append(labelled_pairs(name, read_named_columns(_file(folder / "sick", file), columns)))
        return NliData(task, str(folder / "sick"), sets[0], (sets[1],))
    if task == "snli":
        test = read_labelled_pairs("test", _file(folder / "snli", "test.tsv"))
        return NliData(task, str(folder / "snli"), _train(folder, "snli"), (test,))
    tests = tuple(
        read_labelled_pairs(name, _file(folder / "multinli", f"dev_{name}.tsv", f"dev_{name}_sample.tsv"))
        for name in ("matched", "mismatched")
    )
    own = any(_candidates(folder / "multinli", "train.tsv", "train_sample.tsv"))
    return NliData(task, str(folder / "multinli"), _train(folder, "multinli" if own else "snli"), tests)


def _train(folder: Path, task: str) -> LabelledPairs:
    return read_labelled_pairs(f"{task} train", _file(folder / task, "train.tsv", "train_sample.tsv"))


def _file(folder: Path, *names: str) -> Path:
    """The first of the files that exists, plain or gzipped."""
    found = _candidates(folder, *names)
    if not found:
        raise DataError(f"{folder}: no file {' or '.join(names)} (or the same with .gz)")
    return found[0]


def _candidates(folder: Path, *names: str) -> list[Path]:
    return [path for name in names for path in (folder / name, folder / f"{name}.gz") if path.is_file()]
