"""Reads sentences from .txt, .jsonl, .csv, .tsv and .parquet files and from standard input."""

from __future__ import annotations

import codecs
import csv
import json
import os
import sys
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from fastsal.io.errors import FileFormatError, import_parquet, naming

if TYPE_CHECKING:
    from _csv import Reader

INPUT_FORMATS = (".txt", ".jsonl", ".csv", ".tsv", ".parquet")

#: As a path: standard input, read like a .txt file.
STDIN = Path("-")

_PARQUET_ROWS = 8192

#: Held while the csv module's limit is not what it was.
_csv_limit = threading.Lock()


class SentenceReader:
    """Iterates over the sentences of a file, one per row, without holding more than a few of them.

    .txt: a sentence per line. Lines end at ``\\n`` alone, as ``wc -l`` counts them; a ``\\r`` before it goes, the last
    line needs none; empty lines are sentences. .jsonl: the field `column` of an object per line. .csv (quoted by the
    usual rules) and .tsv (tabs, no quoting: a ``"`` is an ordinary character): the column named `column` in the header
    line. .parquet: the column `column`, which must hold strings. Text is UTF-8, with or without a byte order mark.

    Attributes:
        done, total: progress in bytes (rows for .parquet); total is None where it is not known.

    Raises:
        FileFormatError: an unknown suffix; while iterating: a row without a sentence, invalid JSON, CSV or UTF-8.
        OSError: while iterating: the file cannot be read.
    """

    def __init__(self, path: Path, column: str = "text") -> None:
        self.path, self.column = path, column
        self.suffix = ".txt" if path == STDIN else path.suffix.lower()
        if self.suffix not in INPUT_FORMATS:
            raise FileFormatError(f"{path}: the input must end in one of {', '.join(INPUT_FORMATS)}, or be '-'")
        self.done = 0
        self.total: int | None = None

    def __iter__(self) -> Iterator[str]:
        with naming(self.path):
            if self.path == STDIN:
                yield from self._sentences(sys.stdin.buffer)
                return
            with self.path.open("rb") as file:
                self.total = os.fstat(file.fileno()).st_size or None  # a pipe has no size
                yield from self._sentences(file)

    def _sentences(self, file: BinaryIO) -> Iterator[str]:
        if self.suffix == ".txt":
            return self._text(file)
        if self.suffix == ".jsonl":
            return self._json_lines(file)
        if self.suffix == ".parquet":
            return self._parquet(file)
        return self._table(file)

    def _lines(self, file: BinaryIO) -> Iterator[str]:
        """Decoded lines with their ends; a binary file's iterator splits at ``\\n`` alone."""
        for number, line in enumerate(file, 1):
            self.done += len(line)
            if number == 1:
                line = line.removeprefix(codecs.BOM_UTF8)
                if not line:  # the mark was all there was
                    return
            try:
                yield line.decode("utf-8")
            except UnicodeDecodeError as error:
                raise self._error(number, f"not valid UTF-8 at byte {error.start + 1} of the line") from None

    def _text(self, file: BinaryIO) -> Iterator[str]:
        for line in self._lines(file):
            yield line.removesuffix("\n").removesuffix("\r")

    def _json_lines(self, file: BinaryIO) -> Iterator[str]:
        for number, line in enumerate(self._lines(file), 1):
            try:
                row = json.loads(line)
            except json.JSONDecodeError as error:
                raise self._error(number, f"not valid JSON: {error.msg} at column {error.colno}") from None
            except (ValueError, RecursionError) as error:
                raise self._error(number, f"not valid JSON: {error}") from None
            if not isinstance(row, dict):
                raise self._error(number, f"expected a JSON object, got {type(row).__name__}")
            if self.column not in row:
                raise self._error(number, f"no field {self.column!r}, only {_names(row)}")
            yield self._checked(row[self.column], number)

    def _table(self, file: BinaryIO) -> Iterator[str]:
        rows = self._tab_separated(file) if self.suffix == ".tsv" else self._comma_separated(file)
        _, header = next(rows, (1, []))
        if not header:
            raise self._error(1, "expected a header line with the names of the columns, got nothing")
        if header.count(self.column) != 1:
            found = "several columns" if self.column in header else "no column"
            raise self._error(1, f"{found} named {self.column!r} in the header, which has {_names(header)}")
        index = header.index(self.column)
        for number, row in rows:
            if not row and len(header) == 1:
                row = [""]  # an empty line is an empty sentence here too
            if len(row) <= index:
                raise self._error(number, f"no column {self.column!r}, only {len(row)} of {len(header)} columns")
            # Tab-separated files of this field have spare columns at the end; in a .csv it is a comma outside quotes.
            if self.suffix == ".csv" and len(row) > len(header):
                raise self._error(number, f"{len(row)} columns where the header has {len(header)}")
            yield row[index]

    def _tab_separated(self, file: BinaryIO) -> Iterator[tuple[int, list[str]]]:
        """Rows, each with the number of its line; an empty line has no columns."""
        for number, line in enumerate(self._text(file), 1):
            yield number, line.split("\t") if line else []

    def _comma_separated(self, file: BinaryIO) -> Iterator[tuple[int, list[str]]]:
        """Rows, each with the number of its first line."""
        # Strict: an unbalanced quote is an error, not a swallowed rest of the file.
        table = csv.reader(self._lines(file), strict=True)
        while True:
            number = table.line_num + 1
            try:
                row = _next_row(table)
            except csv.Error as error:
                raise self._error(number, f"not valid CSV from here on: {error}") from None
            if row is None:
                return
            yield number, row

    def _parquet(self, file: BinaryIO) -> Iterator[str]:
        parquet = import_parquet()
        import pyarrow

        try:
            table = parquet.ParquetFile(file)
            schema = table.schema_arrow
            if schema.names.count(self.column) != 1:
                raise FileFormatError(f"{self.path}: no column {self.column!r}, only {_names(schema.names)}")
            kind = schema.field(self.column).type
            kind = kind.value_type if pyarrow.types.is_dictionary(kind) else kind
            if str(kind) not in ("string", "large_string", "string_view"):
                raise FileFormatError(f"{self.path}: column {self.column!r} must hold strings, it holds {kind}")
            self.total = table.metadata.num_rows
            for batch in table.iter_batches(batch_size=_PARQUET_ROWS, columns=[self.column]):
                for value in batch.column(0):
                    self.done += 1
                    yield self._parquet_text(value)
        except pyarrow.ArrowException as error:
            raise FileFormatError(f"{self.path}: not a readable Parquet file: {error}") from None

    def _parquet_text(self, value: Any) -> str:
        try:
            return self._checked(value.as_py(), self.done, unit="row")
        except UnicodeDecodeError:
            raise self._error(self.done, f"{self.column!r} is not valid UTF-8", unit="row") from None

    def _checked(self, text: Any, number: int, unit: str = "line") -> str:
        if not isinstance(text, str):
            got = "null" if text is None else type(text).__name__
            raise self._error(number, f"{self.column!r} must be a string, got {got}", unit)
        try:
            text.encode("utf-8")
        except UnicodeEncodeError:
            raise self._error(number, f"{self.column!r} has half of a surrogate pair, which is no text", unit) from None
        return text

    def _error(self, number: int, problem: str, unit: str = "line") -> FileFormatError:
        name = "standard input" if self.path == STDIN else self.path
        return FileFormatError(f"{name}, {unit} {number}: {problem}")


def _next_row(table: Reader) -> list[str] | None:
    """The next row, with fields of any length: the csv module's limit of 131,072 characters is one for all readers."""
    with _csv_limit:
        limit = csv.field_size_limit(sys.maxsize)
        try:
            return next(table, None)
        finally:
            csv.field_size_limit(limit)


def _names(names: Iterable[str]) -> str:
    shown = [repr(name) for name in names]
    return ", ".join(shown[:20] + ["..."] * (len(shown) > 20)) or "none"
