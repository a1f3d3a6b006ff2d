"""Writes embeddings, chunk by chunk, to .npy and .parquet files that appear whole or not at all."""

from __future__ import annotations

import errno
import os
import secrets
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import numpy as np
from numpy.lib import format as npy_format

from fastsal.io.errors import FileFormatError, import_parquet, naming

OUTPUT_FORMATS = (".npy", ".parquet")

#: Name of the embeddings' column in a Parquet file.
EMBEDDING_COLUMN = "embedding"


NOTHING_WRITTEN = "write() must be called at least once before the end, with no rows if there are none"


class EmbeddingWriter(Protocol):
    """Takes the embeddings of a file chunk by chunk."""

    def write(self, texts: Sequence[str], embeddings: np.ndarray) -> None:
        """Append rows: `embeddings` is (len(texts), D), with the same D and dtype in every call.

        Raises:
            OSError: the disk is full.
        """
        ...


@contextmanager
def open_writer(path: Path, column: str = "text") -> Iterator[EmbeddingWriter]:
    """A writer for a file that takes the name `path` when the block ends, and leaves no trace when the block raises.

    Args:
        path: .npy for an array (N, D), or .parquet for a table of the texts and their embeddings.
        column: name of the texts' column in a Parquet file.

    Raises:
        FileFormatError: an unknown suffix, pyarrow is missing, a `column` that clashes with the embeddings' column.
        OSError: the folder cannot be written, `path` is something other than a file, the disk is full.
    """
    suffix = path.suffix.lower()
    if suffix not in OUTPUT_FORMATS:
        raise FileFormatError(f"{path}: the output must end in one of {', '.join(OUTPUT_FORMATS)}")
    if suffix == ".parquet":
        import_parquet()
        if column == EMBEDDING_COLUMN:
            raise FileFormatError(f"{path}: the texts' column must not be named {column!r} like the embeddings' column")
    with atomic_file(path) as file:
        writer = _NpyWriter(file) if suffix == ".npy" else _ParquetWriter(file, column)
        try:
            yield writer
            writer.finish()
        except BaseException:
            writer.abandon()
            raise


@contextmanager
def atomic_file(path: Path) -> Iterator[BinaryIO]:
    """A new file beside `path` that is renamed to it when the block ends, and removed when the block raises.

    Raises:
        OSError: the folder cannot be written, `path` is something other than a file, the disk is full.
    """
    target = path.resolve()  # a link goes on being one
    temporary = target.with_name(f".fastsal-{secrets.token_hex(8)}.tmp")
    with naming(path, instead_of=temporary):
        if target.exists() and not target.is_file():
            raise FileExistsError(errno.EEXIST, "exists and is not a regular file", str(path))
        file = temporary.open("xb")
        try:
            with file:
                yield file
                file.flush()
                os.fsync(file.fileno())  # a full disk may show as late as here
            if target.exists():
                shutil.copymode(target, temporary)
            temporary.replace(target)
        except BaseException:
            with suppress(OSError):
                temporary.unlink()
            raise


class _OnlyTriedError(Exception):
    """Ends the writing of a file that was opened to see whether it can be."""


def check_output_path(path: Path) -> None:
    """Raise now, rather than after minutes of work, what `atomic_file` would raise: an OSError."""
    with suppress(_OnlyTriedError), atomic_file(path):
        raise _OnlyTriedError


class _NpyWriter:
    """Appends rows behind a header that is written again, with the number of rows, at the end.

    No memory map: on a full disk a store into one kills the process, where a write raises an error.
    """

    def __init__(self, file: BinaryIO) -> None:
        self.file = file
        self.num_rows = 0
        self.no_rows: np.ndarray | None = None  # (0, D), for the header

    def write(self, texts: Sequence[str], embeddings: np.ndarray) -> None:
        if self.no_rows is None:
            self.no_rows = np.empty((0, embeddings.shape[1]), embeddings.dtype)
            self._write_header(self.no_rows)
        self.file.write(np.ascontiguousarray(embeddings).data)
        self.num_rows += len(embeddings)

    def finish(self) -> None:
        if self.no_rows is None:
            raise ValueError(NOTHING_WRITTEN)
        self.file.seek(0)
        self._write_header(self.no_rows)

    def abandon(self) -> None:
        pass

    def _write_header(self, no_rows: np.ndarray) -> None:
        # numpy leaves room for the first axis to grow, so the header's length does not depend on the number of rows.
        header = npy_format.header_data_from_array_1_0(no_rows)
        npy_format.write_array_header_1_0(self.file, header | {"shape": (self.num_rows, no_rows.shape[1])})


class _ParquetWriter:
    def __init__(self, file: BinaryIO, column: str) -> None:
        self.file, self.column = file, column
        self.writer: Any = None

    def write(self, texts: Sequence[str], embeddings: np.ndarray) -> None:
        import pyarrow
        import pyarrow.parquet

        values = pyarrow.array(np.ascontiguousarray(embeddings).reshape(-1))
        vectors = pyarrow.FixedSizeListArray.from_arrays(values, embeddings.shape[1])
        table = pyarrow.table({self.column: pyarrow.array(texts, pyarrow.string()), EMBEDDING_COLUMN: vectors})
        if self.writer is None:
            self.writer = pyarrow.parquet.ParquetWriter(self.file, table.schema)
        self.writer.write_table(table)

    def finish(self) -> None:
        if self.writer is None:
            raise ValueError(NOTHING_WRITTEN)
        self.writer.close()

    def abandon(self) -> None:
        if self.writer is not None:
            self.writer.is_open = False  # or its destructor goes on writing, into a file that is gone
