"""`fastsal info`."""

from __future__ import annotations

from typing import Annotated

import typer

from fastsal.cli.common import Backend, Dtype, errors_reported, load


def info(
    model: Annotated[
        str | None, typer.Option("--model", "-m", help="Folder or Hugging Face Hub id of a model.")
    ] = None,
    dtype: Dtype = None,
    backend: Backend = "auto",
) -> None:
    """Show what fastsal runs on here and, with a model, what computes it and why."""
    from fastsal.measure.information import machine_information, model_information

    with errors_reported():
        sections = [machine_information()]
        if model is not None:
            sections.append(model_information(load(model, dtype, backend)))
    for section in sections:
        width = max(map(len, section))
        for name, value in section.items():
            typer.echo(f"{name:{width}}  {value}")
        typer.echo()
