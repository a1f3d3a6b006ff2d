"""Strict reading of the field's tab-separated files: no quoting, nothing skipped, errors with file and line."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, cast

import numpy as np

from fastsal.measure.evaluation.pairs import DataError, LabelledPairs, ScoredPairs, parse_label, parse_score


def read_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the number and text of each line of a UTF-8 file, which may be gzipped (.gz).

    Lines end at ``\\n`` alone, so there are as many as ``wc -l`` counts (one more if the last has no end); a ``\\r``
    before it goes.

    Raises:
        DataError: not valid UTF-8, or a damaged gzip file.
        OSError: the file cannot be read.
    """
    number = 0
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            for number, line in enumerate(cast(IO[bytes], file), 1):
                yield number, line.decode("utf-8").removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError as error:
        raise DataError(f"{path}, line {number}: not valid UTF-8 at byte {error.start + 1}") from None
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DataError(f"{path}: not a whole gzip file after line {number}: {error}") from None


def read_rows(path: Path, num_columns: int, spare: bool = False) -> Iterator[tuple[int, list[str]]]:
    """Yield the number and the tab-separated fields of each line. A ``"`` is an ordinary character.

    Args:
        num_columns: what every line must have.
        spare: whether a line may have more, which are left out.

    Raises:
        DataError: a line with another number of fields; and as `read_lines`.
    """
    for number, line in read_lines(path):
        fields = line.split("\t")
        if len(fields) < num_columns or (len(fields) > num_columns and not spare):
            expected = f"{num_columns} or more" if spare else str(num_columns)
            raise DataError(f"{path}, line {number}: expected {expected} tab-separated columns, got {len(fields)}")
        yield number, fields[:num_columns]


def read_scored_pairs(path: Path, num_columns: int, columns: Sequence[int]) -> ScoredPairs:
    """Pairs of a table with score, sentence 1 and sentence 2 in `columns`; further columns may follow."""
    rows = [(number, [row[i] for i in columns]) for number, row in read_rows(path, num_columns, spare=True)]
    return scored_pairs("test", [(f"{path}, line {number}", *row) for number, row in rows])


def read_paired_files(name: str, sentences: Path, scores: Path) -> ScoredPairs:
    """Pairs of the SemEval layout: two sentences a line, and beside it a file of scores, empty where there is none."""
    pairs = [row for _, row in read_rows(sentences, 2, spare=True)]
    lines = list(read_lines(scores))
    if len(pairs) != len(lines):
        raise DataError(f"{scores}: has {len(lines)} lines, but {sentences.name} has {len(pairs)}")
    return scored_pairs(
        name, [(f"{scores}, line {number}", score, *pair) for (number, score), pair in zip(lines, pairs, strict=True)]
    )


def read_labelled_pairs(name: str, path: Path) -> LabelledPairs:
    """Pairs of a table of label, premise, hypothesis without a header."""
    return labelled_pairs(name, [(f"{path}, line {number}", *row) for number, row in read_rows(path, 3)])


def read_named_columns(path: Path, columns: Sequence[str]) -> list[tuple[str, ...]]:
    """Place and values of each row of a table with a header line, in the order of `columns`."""
    header = next((line.split("\t") for _, line in read_lines(path)), [])
    if missing := [column for column in columns if column not in header]:
        raise DataError(f"{path}, line 1: the header has no column {missing[0]!r}, only {', '.join(header)}")
    indices = [header.index(column) for column in columns]
    rows = list(read_rows(path, len(header)))[1:]
    return [(f"{path}, line {number}", *(row[i] for i in indices)) for number, row in rows]


def scored_pairs(name: str, rows: Sequence[tuple]) -> ScoredPairs:
    """Of rows (place, score, sentence 1, sentence 2), those with a score.

    Raises:
        DataError: a score that is none, named by its place; or fewer than two pairs, which have no correlation.
    """
    first, second, gold = [], [], []
    for place, text, one, other in rows:
        try:
            score = parse_score(text)
        except ValueError as error:
            raise DataError(f"{place}: {error}") from None
        if score is not None:
            first.append(_sentence(one, place))
            second.append(_sentence(other, place))
            gold.append(score)
    if len(gold) < 2:
        raise DataError(f"{name}: expected two scored pairs or more, got {len(gold)} in {len(rows)} rows")
    return ScoredPairs(name, first, second, np.array(gold), len(rows))


def labelled_pairs(name: str, rows: Sequence[tuple]) -> LabelledPairs:
    """Of rows (place, label, premise, hypothesis), those with a label.

    Raises:
        DataError: an unknown label, named by its place; or no pairs at all.
    """
    first, second, labels = [], [], []
    for place, text, one, other in rows:
        try:
            label = parse_label(text)
        except ValueError as error:
            raise DataError(f"{place}: {error}") from None
        if label is not None:
            first.append(_sentence(one, place))
            second.append(_sentence(other, place))
            labels.append(label)
    if not labels:
        raise DataError(f"{name}: expected labelled pairs, got none in {len(rows)} rows")
    return LabelledPairs(name, first, second, labels, len(rows))


def _sentence(text: object, place: str) -> str:
    if not isinstance(text, str):
        raise DataError(f"{place}: a sentence must be a text, got {text!r}")
    return text
