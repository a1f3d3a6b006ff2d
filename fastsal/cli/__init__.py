"""The command line, a file per command: `fastsal encode`, `verify`, `eval`, `bench`, `info`.

May import every other layer; what needs torch is imported inside the commands, for the help must not wait for it.
"""

from __future__ import annotations

import typer

from fastsal.cli import bench, encode, evaluate, info, verify

app = typer.Typer(
    help="Fast, exact sentence embeddings for BERT- and ALBERT-family models.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_show_locals=False,
)
app.command()(encode.encode)
app.command()(verify.verify)
app.command("eval")(evaluate.evaluate)
app.command()(bench.bench)
app.command()(info.info)
