"""`fastsal bench`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fastsal.cli.common import check_architecture, errors_reported, fail, load_reference, table_console, write_json
from fastsal.io.writers import check_output_path


def bench(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="Folder or Hugging Face Hub id of the model.")],
    plot: Annotated[Path | None, typer.Option(metavar="F", help="Draw the results there: .png or .html.")] = None,
    json_output: Annotated[Path | None, typer.Option("--json", metavar="F", help="Write everything there.")] = None,
    seconds: Annotated[float, typer.Option(min=0.01, help="Length of a pass of the reference.")] = 2.0,
) -> None:
    """Measure every backend and dtype that can run here: sentences/s at several lengths, latency, errors.

    An engine whose embeddings are wrong ends the run with an error.
    """
    from fastsal.measure.accuracy import WrongResultError
    from fastsal.measure.benchmark import bench as measure
    from fastsal.measure.benchmark import make_bench_table
    from fastsal.measure.plots import check_plot_path, save_bench_plot

    with errors_reported():
        if plot is not None:
            check_plot_path(plot)
        for path in (plot, json_output):
            if path is not None:
                check_output_path(path)
        check_architecture(model, load_reference(model))  # errors in words
        try:
            report = measure(model, seconds=seconds, report=lambda what: typer.echo(f"{what} ...", err=True))
        except WrongResultError as error:
            fail(str(error))
        table_console().print(make_bench_table(report))
        if json_output is not None:
            write_json(json_output, report.as_json())
        if plot is not None:
            save_bench_plot(report, plot)
