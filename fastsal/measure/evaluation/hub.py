"""The tasks' data by name, from the Hugging Face Hub or its cache, through `datasets.load_dataset`."""

from __future__ import annotations

from typing import Any

from fastsal.measure.evaluation.pairs import DataError, LabelledPairs, NliData, StsData
from fastsal.measure.evaluation.tables import labelled_pairs, scored_pairs

#: Repositories with columns sentence1, sentence2, score (0 to 5) and a split "test". A year's sets come as one there.
_STS = {
    "stsb": "mteb/stsbenchmark-sts",
    "sick-r": "mteb/sickr-sts",
    **{f"sts{year}": f"mteb/sts{year}-sts" for year in range(12, 17)},
}

#: Per task: arguments of load_dataset, splits that are scored by the names they get here, columns of the sentences.
#: SICK's repository holds a script, which datasets >= 4 does not run: the Hub's own conversion of it is read.
_NLI: dict[str, tuple[dict[str, str], dict[str, str], tuple[str, str]]] = {
    "snli": ({"path": "stanfordnlp/snli"}, {"test": "test"}, ("premise", "hypothesis")),
    "multinli": (
        {"path": "nyu-mll/multi_nli"},
        {"validation_matched": "matched", "validation_mismatched": "mismatched"},
        ("premise", "hypothesis"),
    ),
    "sick-e": (
        {"path": "RobZamp/sick", "revision": "refs/convert/parquet"},
        {"test": "test"},
        ("sentence_A", "sentence_B"),
    ),
}


def load_sts(task: str) -> StsData:
    """One of stsb, sick-r, sts12 ... sts16.

    Raises:
        DataError: the package datasets is missing, the data cannot be had, or it is not what it should be.
    """
    path = _STS[task]
    rows = _columns(_load(split="test", path=path), path, "score", "sentence1", "sentence2")
    return StsData(task, path, (scored_pairs("test", rows),))


def load_nli(task: str) -> NliData:
    """One of snli, multinli, sick-e; errors as `load_sts`."""
    arguments, tests, sentences = _NLI[task]

    def pairs(split: str, name: str) -> LabelledPairs:
        dataset = _load(split=split, **arguments)
        place = f"{arguments['path']} {split}"
        names = getattr(dataset.features.get("label"), "names", None)
        rows = _columns(dataset, place, "label", *sentences)
        return labelled_pairs(name, [(place, _label(label, names, place), *pair) for place, label, *pair in rows])

    train = pairs("train", f"{task} train")
    return NliData(task, arguments["path"], train, tuple(pairs(split, name) for split, name in tests.items()))


def _load(**arguments: str) -> Any:
    try:
        from datasets import load_dataset
    except ImportError:
        raise DataError("data by name needs the package datasets: pip install 'fastsal[bench]'") from None
    try:
        return load_dataset(**arguments)
    # datasets, the hub's client and fsspec each have exceptions of their own for "not there" and "no network".
    except Exception as error:
        problem = str(error) or type(error).__name__
        raise DataError(
            f"cannot load the data set {arguments['path']!r}: {problem} (a local folder can be given with --data)"
        ) from error


def _columns(dataset: Any, place: str, *names: str) -> list[tuple]:
    if missing := [name for name in names if name not in dataset.column_names]:
        raise DataError(f"{place}: no column {missing[0]!r}, only {', '.join(dataset.column_names)}")
    columns = [dataset[name] for name in names]
    return [(f"{place}, row {number}", *row) for number, row in enumerate(zip(*columns, strict=True))]


def _label(label: object, names: list[str] | None, place: str) -> object:
    """The label's name: numbers mean different labels in different data sets, so they are never mapped by value."""
    if not isinstance(label, int) or label == -1:
        return label
    if names is None or not 0 <= label < len(names):
        raise DataError(f"{place}: the label is the number {label}, which the data set gives no name")
    return names[label]
