"""What the commands share: options, loading models, errors in one line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer
from rich.console import Console

from fastsal.io import FileFormatError
from fastsal.io.writers import atomic_file

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from fastsal.sentence_transformers.sentence_encoder import SentenceEncoder

Model = Annotated[
    str | None,
    typer.Option("--model", "-m", help="Folder or Hugging Face Hub id of the model. The one in fastsal by default."),
]
Column = Annotated[str, typer.Option("--column", "-c", help="Field or column that holds the sentences.")]
Dtype = Annotated[str | None, typer.Option(help="What the kernels compute in. The model's own dtype by default.")]
Backend = Annotated[str, typer.Option(help="auto, cpu, triton or reference.")]


def load(model: str | None, dtype: str | None, backend: str) -> SentenceEncoder:
    from transformers.utils import logging

    from fastsal.sentence_transformers.sentence_encoder import SentenceEncoder

    logging.disable_progress_bar()
    try:
        return SentenceEncoder(model, dtype=dtype, backend=backend)
    # Loading runs the code of several libraries, each with exceptions of its own for a missing or damaged file.
    except Exception as error:
        fail_to_load(model, error)


def load_reference(model: str) -> SentenceTransformer:
    from sentence_transformers import SentenceTransformer
    from transformers.utils import logging

    logging.disable_progress_bar()
    try:
        return SentenceTransformer(model)
    except Exception as error:  # as in load
        fail_to_load(model, error)


def fail_to_load(model: str | None, error: Exception) -> NoReturn:
    name = "inside fastsal" if model is None else repr(model)
    fail(f"cannot load the model {name}: {error or type(error).__name__}")


def check_architecture(name: str | None, model: SentenceTransformer) -> None:
    from fastsal.modules.encoders import FAST_CLASSES

    if not any(isinstance(module, tuple(FAST_CLASSES)) for module in model.modules()):
        fail(f"the model {name!r} holds neither BERT nor ALBERT: there is nothing that fastsal's kernels compute")


def write_json(path: Path, content: object) -> None:
    with atomic_file(path) as file:
        file.write((json.dumps(content, indent=2) + "\n").encode())


def table_console() -> Console:
    """For tables on stdout, which keep their width in a file."""
    console = Console()
    return console if console.is_terminal else Console(width=160)


@contextmanager
def errors_reported() -> Iterator[None]:
    """End the program with one line, not with a traceback, for what a user can mend."""
    try:
        yield
    except FileFormatError as error:
        fail(str(error))
    except OSError as error:
        fail(f"{error.filename}: {error.strerror}" if error.filename else str(error))


def fail(message: str) -> NoReturn:
    typer.echo(f"error: {message}", err=True)
    raise typer.Exit(1)
