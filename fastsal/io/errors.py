"""What can be wrong with a file, in words for the person who gave it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


class FileFormatError(ValueError):
    """A file or a row of it is not what it should be; the message names the file, the line and what was expected."""


@contextmanager
def naming(path: Path, instead_of: Path | None = None) -> Iterator[None]:
    """Let an OSError of the block that names no file, or names `instead_of`, name `path`."""
    try:
        yield
    except OSError as error:
        if error.filename is not None and error.filename != str(instead_of):
            raise
        raise OSError(error.errno, error.strerror or str(error), str(path)) from error


def import_parquet() -> Any:
    """The module pyarrow.parquet.

    Raises:
        FileFormatError: pyarrow is not installed.
    """
    try:
        import pyarrow.parquet
    except ImportError:
        problem = "Parquet files need the package pyarrow: pip install 'fastsal[parquet]'"
        raise FileFormatError(problem) from None
    return pyarrow.parquet
