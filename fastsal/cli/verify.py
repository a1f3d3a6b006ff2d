"""`fastsal verify`."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Annotated

import typer

from fastsal.cli.common import Backend, Column, Dtype, Model, check_architecture, errors_reported, load
from fastsal.data import sample_sentences
from fastsal.io import FileFormatError, SentenceReader


def verify(
    model: Model = None,
    source: Annotated[
        Path | None,
        typer.Argument(metavar="[IN]", help="Sentences, as for encode. A sample of fastsal's own by default."),
    ] = None,
    column: Column = "text",
    dtype: Dtype = None,
    backend: Backend = "auto",
    limit: Annotated[int, typer.Option(min=1, help="Use so many sentences: the check is slow.")] = 64,
) -> None:
    """Compare the numbers with those of sentence-transformers in double precision; exit with 1 if they differ."""
    with errors_reported():
        sentences = sample_sentences()[::4] if source is None else list(islice(SentenceReader(source, column), limit))
        if not sentences:
            raise FileFormatError(f"{source}: there are no sentences in it")
        encoder = load(model, dtype, backend)
        check_architecture(model, encoder)
        from fastsal.measure.verify import verify as run_verification

        report = run_verification(encoder, sentences[:limit])
    typer.echo(str(report))
    if not report.passed:
        raise typer.Exit(1)
