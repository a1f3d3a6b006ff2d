"""`fastsal eval`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fastsal.cli.common import Backend, errors_reported, fail, load, load_reference, table_console, write_json
from fastsal.io.writers import check_output_path

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer


def evaluate(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="Folder or Hugging Face Hub id of the model.")],
    task: Annotated[str, typer.Option(help="Tasks, separated by commas; or sts, nli, all.")] = "stsb",
    dtype: Annotated[str | None, typer.Option(help="Dtypes of the kernels, separated by commas.")] = None,
    backend: Backend = "auto",
    data: Annotated[
        Path | None,
        typer.Option(envvar="FASTSAL_DATA", help="Folder with the data. By name through `datasets` by default."),
    ] = None,
    precision: Annotated[
        str, typer.Option(help="Quantise the embeddings of STS: float32, int8, uint8, binary, ubinary.")
    ] = "float32",
    train_limit: Annotated[int, typer.Option(min=3, help="Training pairs of the NLI classifier at most.")] = 20_000,
    seed: Annotated[int, typer.Option(help="Of the NLI classifier and the sample it is trained on.")] = 0,
    json_output: Annotated[Path | None, typer.Option("--json", metavar="F", help="Write everything there.")] = None,
) -> None:
    """Score a model on public tasks (STS and NLI), with sentence-transformers and with fastsal.

    Tasks: stsb, sick-r, sts12 ... sts16 (correlation of the cosines with people's scores); snli, multinli, sick-e
    (accuracy of a classifier over frozen embeddings, and of the model's own one where it has one).
    """
    with errors_reported():
        from fastsal.measure.evaluation import NLI_TASKS, STS_TASKS, TASKS, NliHead, compare, load_task
        from fastsal.measure.evaluation.table import make_evaluation_table
        from fastsal.measure.information import machine_information

        if json_output is not None:
            check_output_path(json_output)
        groups = {"sts": STS_TASKS, "nli": NLI_TASKS, "all": TASKS}
        names = [name for part in task.split(",") for name in groups.get(part.strip(), (part.strip(),))]
        if unknown := [name for name in names if name not in TASKS]:
            fail(f"unknown task {unknown[0]!r}: expected {', '.join((*TASKS, *groups))}")
        datasets = [load_task(name, data) for name in names]  # bad data shows before a model is loaded
        encoders: dict[str, SentenceTransformer] = {"sentence-transformers": load_reference(model)}
        for name in [None] if dtype is None else dtype.split(","):
            encoders["fastsal" if name is None else f"fastsal {name.strip()}"] = load(
                model, name and name.strip(), backend
            )
        head, comparisons = NliHead.load(model), []
        try:
            for dataset in datasets:
                typer.echo(f"{dataset.task} ...", err=True)
                try:
                    comparison = compare(
                        encoders, dataset, head=head, precision=precision, seed=seed, train_limit=train_limit
                    )
                except ValueError as error:  # embeddings or options that cannot be scored
                    fail(f"{dataset.task}: {error}")
                comparisons.append(comparison)
        finally:  # after an error or Ctrl-C too: what is scored is not lost
            if comparisons:
                table_console().print(make_evaluation_table(f"{model}: reference and fastsal", comparisons))
                if json_output is not None:
                    content = {"model": model, "machine": machine_information()}
                    tasks = [comparison.as_json() for comparison in comparisons]
                    write_json(json_output, content | {"tasks": tasks})
