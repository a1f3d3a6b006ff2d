"""`fastsal encode`."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from fastsal.cli.common import Backend, Column, Dtype, Model, errors_reported, fail, fail_to_load, load
from fastsal.engine.texts import check_surrogates
from fastsal.io import FileFormatError, SentenceReader, open_writer

if TYPE_CHECKING:
    from fastsal.engine.text_encoder import TextEncoder
    from fastsal.sentence_transformers.sentence_encoder import SentenceEncoder

#: Sentences and characters held at a time: the memory of a run does not depend on the size of the file.
CHUNK_SENTENCES = 4096
CHUNK_CHARACTERS = 1 << 24


def encode(
    source: Annotated[
        Path,
        typer.Argument(
            metavar="IN", help=".txt (a sentence per line), .jsonl, .csv, .tsv, .parquet; - for lines on stdin."
        ),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="OUT", help=".npy, or .parquet with the texts.")],
    model: Model = None,
    column: Column = "text",
    dtype: Dtype = None,
    backend: Backend = "auto",
    normalize: Annotated[bool, typer.Option(help="Scale the embeddings to length 1.")] = False,
    prompt: Annotated[str | None, typer.Option(help="Text put before each sentence.")] = None,
    prompt_name: Annotated[str | None, typer.Option(help="Name of one of the model's own prompts.")] = None,
    truncate_dim: Annotated[int | None, typer.Option(min=1, help="Keep the first numbers of each embedding.")] = None,
) -> None:
    """Embed every sentence of a file: row i of OUT belongs to row i of IN.

    OUT appears when all is done; after an error an older OUT is as it was.
    """
    with errors_reported():
        try:
            check_surrogates("--prompt", prompt)
        except TypeError as error:
            typer.echo(f"error: {error}", err=True)
            raise typer.Exit(2) from None
        reader = SentenceReader(source, column)
        if source.exists() and output.exists() and source.samefile(output):
            raise FileFormatError(f"{output}: the output must not be the input")
        with open_writer(output, column) as writer:
            chunks = _chunks(reader)
            first_chunk = next(chunks, [])  # a bad first row shows before a model is loaded
            encoder = load_encoder(model, dtype, backend)
            started, rows = time.perf_counter(), 0
            with _progress_bar() as progress:
                task = progress.add_task("encoding", total=None, rows=0)
                for chunk in chain([first_chunk], chunks):
                    with _rows_named(rows + 1, rows + len(chunk)):
                        embeddings = encoder.encode(
                            chunk or [""],  # no sentences: the width and dtype are wanted all the same
                            prompt=prompt,
                            prompt_name=prompt_name,
                            normalize_embeddings=normalize,
                            truncate_dim=truncate_dim,
                        )[: len(chunk)]
                    writer.write(chunk, embeddings)
                    rows += len(chunk)
                    progress.update(task, total=reader.total, completed=reader.done, rows=rows)
            seconds = time.perf_counter() - started
        shape = f"{rows} x {embeddings.shape[1]} {embeddings.dtype}"
        typer.echo(f"{output}: {shape}, {rows / seconds:.0f} sentences/s", err=True)


def load_encoder(model: str | None, dtype: str | None, backend: str) -> TextEncoder | SentenceEncoder:
    """The engine, which starts without torch; SentenceEncoder where the engine cannot do it or a GPU can do it faster,
    with a line that says why."""
    from fastsal.engine.errors import UnsupportedModelError
    from fastsal.engine.native import PRECISIONS, why_unavailable

    if backend not in ("auto", "cpu") or (dtype is not None and dtype not in PRECISIONS):
        return load(model, dtype, backend)  # what was asked for needs no explanation
    reason = why_unavailable() or ("there is a GPU" if backend == "auto" and _has_gpu() else None)
    if reason is None:
        from fastsal.engine.text_encoder import TextEncoder

        try:
            return TextEncoder(model, dtype)
        except UnsupportedModelError as error:
            reason = error.reason
        except (OSError, ValueError) as error:
            fail_to_load(model, error)
    if find_spec("torch") is None or find_spec("sentence_transformers") is None:
        fail(f"this needs torch and sentence-transformers ({reason}): pip install them")
    typer.echo(f"with torch, which takes some seconds to start: {reason}", err=True)
    return load(model, dtype, backend)


def _has_gpu() -> bool:
    """Whether a CUDA device is there for a torch that is installed; nothing heavy is imported to find out."""
    return any(Path("/dev").glob("nvidia[0-9]*")) and find_spec("torch") is not None


def _chunks(sentences: Iterable[str]) -> Iterator[list[str]]:
    """Consecutive sentences in lists of bounded numbers and characters."""
    chunk: list[str] = []
    characters = 0
    for sentence in sentences:
        chunk.append(sentence)
        characters += len(sentence)
        if len(chunk) == CHUNK_SENTENCES or characters >= CHUNK_CHARACTERS:
            yield chunk
            chunk, characters = [], 0
    if chunk:
        yield chunk


def _progress_bar() -> Progress:
    console = Console(stderr=True)
    return Progress(
        TextColumn("{task.fields[rows]} sentences"),
        BarColumn(),
        TaskProgressColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )


@contextmanager
def _rows_named(first: int, last: int) -> Iterator[None]:
    """Report an error of encode with the rows of the file that it was about."""
    try:
        yield
    except (TypeError, ValueError, IndexError, RuntimeError) as error:
        fail(f"rows {first} to {last}: {error}")
