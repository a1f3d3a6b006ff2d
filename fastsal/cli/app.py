"""The command line: `fastsal encode`, `verify`, `eval`, `bench`, `info`.

torch and the models are imported inside the commands: the help must not wait for them.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from fastsal.data import sample_sentences
from fastsal.io import FileFormatError, SentenceReader, open_writer
from fastsal.io.writers import atomic_file, check_output_path

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from fastsal.sentence_transformers.sentence_encoder import SentenceEncoder

app = typer.Typer(
    help="Fast, exact sentence embeddings for BERT- and ALBERT-family models.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_show_locals=False,
)

#: Sentences and characters held at a time: the memory of a run does not depend on the size of the file.
CHUNK_SENTENCES = 4096
CHUNK_CHARACTERS = 1 << 24

Model = Annotated[
    str | None,
    typer.Option("--model", "-m", help="Folder or Hugging Face Hub id of the model. The one in fastsal by default."),
]
Column = Annotated[str, typer.Option("--column", "-c", help="Field or column that holds the sentences.")]
Dtype = Annotated[str | None, typer.Option(help="What the kernels compute in. The model's own dtype by default.")]
Backend = Annotated[str, typer.Option(help="auto, cpu, triton or reference.")]


@app.command()
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
    with _errors_reported():
        reader = SentenceReader(source, column)
        if source.exists() and output.exists() and source.samefile(output):
            raise FileFormatError(f"{output}: the output must not be the input")
        with open_writer(output, column) as writer:
            chunks = _chunks(reader)
            first_chunk = next(chunks, [])  # a bad first row shows before a model is loaded
            encoder = _load(model, dtype, backend)
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
                            show_progress_bar=False,
                        )[: len(chunk)]
                    writer.write(chunk, embeddings)
                    rows += len(chunk)
                    progress.update(task, total=reader.total, completed=reader.done, rows=rows)
            seconds = time.perf_counter() - started
        shape = f"{rows} x {embeddings.shape[1]} {embeddings.dtype}"
        typer.echo(f"{output}: {shape}, {rows / seconds:.0f} sentences/s", err=True)


@app.command()
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
    with _errors_reported():
        sentences = sample_sentences()[::4] if source is None else list(islice(SentenceReader(source, column), limit))
        if not sentences:
            raise FileFormatError(f"{source}: there are no sentences in it")
        encoder = _load(model, dtype, backend)
        _check_architecture(model, encoder)
        from fastsal.measure.verify import verify as run_verification

        report = run_verification(encoder, sentences[:limit])
    typer.echo(str(report))
    if not report.passed:
        raise typer.Exit(1)


@app.command("eval")
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
    with _errors_reported():
        from fastsal.measure.evaluation import NLI_TASKS, STS_TASKS, TASKS, NliHead, compare, load_task
        from fastsal.measure.evaluation.table import make_evaluation_table
        from fastsal.measure.information import machine_information

        if json_output is not None:
            check_output_path(json_output)
        groups = {"sts": STS_TASKS, "nli": NLI_TASKS, "all": TASKS}
        names = [name for part in task.split(",") for name in groups.get(part.strip(), (part.strip(),))]
        if unknown := [name for name in names if name not in TASKS]:
            _fail(f"unknown task {unknown[0]!r}: expected {', '.join((*TASKS, *groups))}")
        datasets = [load_task(name, data) for name in names]  # bad data shows before a model is loaded
        encoders: dict[str, SentenceTransformer] = {"sentence-transformers": _load_reference(model)}
        for name in [None] if dtype is None else dtype.split(","):
            encoders["fastsal" if name is None else f"fastsal {name.strip()}"] = _load(
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
                    _fail(f"{dataset.task}: {error}")
                comparisons.append(comparison)
        finally:  # after an error or Ctrl-C too: what is scored is not lost
            if comparisons:
                _console().print(make_evaluation_table(f"{model}: reference and fastsal", comparisons))
                if json_output is not None:
                    content = {"model": model, "machine": machine_information()}
                    tasks = [comparison.as_json() for comparison in comparisons]
                    _write_json(json_output, content | {"tasks": tasks})


@app.command()
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

    with _errors_reported():
        if plot is not None:
            check_plot_path(plot)
        for path in (plot, json_output):
            if path is not None:
                check_output_path(path)
        _check_architecture(model, _load_reference(model))  # errors in words
        try:
            report = measure(model, seconds=seconds, report=lambda what: typer.echo(f"{what} ...", err=True))
        except WrongResultError as error:
            _fail(str(error))
        _console().print(make_bench_table(report))
        if json_output is not None:
            _write_json(json_output, report.as_json())
        if plot is not None:
            save_bench_plot(report, plot)


@app.command()
def info(
    model: Annotated[
        str | None, typer.Option("--model", "-m", help="Folder or Hugging Face Hub id of a model.")
    ] = None,
    dtype: Dtype = None,
    backend: Backend = "auto",
) -> None:
    """Show what fastsal runs on here and, with a model, what computes it and why."""
    from fastsal.measure.information import machine_information, model_information

    with _errors_reported():
        sections = [machine_information()]
        if model is not None:
            sections.append(model_information(_load(model, dtype, backend)))
    for section in sections:
        width = max(map(len, section))
        for name, value in section.items():
            typer.echo(f"{name:{width}}  {value}")
        typer.echo()


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


def _load(model: str | None, dtype: str | None, backend: str) -> SentenceEncoder:
    from transformers.utils import logging

    from fastsal.sentence_transformers.sentence_encoder import SentenceEncoder

    logging.disable_progress_bar()
    try:
        return SentenceEncoder(model, dtype=dtype, backend=backend)
    # Loading runs the code of several libraries, each with exceptions of its own for a missing or damaged file.
    except Exception as error:
        name = "inside fastsal" if model is None else repr(model)
        _fail(f"cannot load the model {name}: {error or type(error).__name__}")


def _load_reference(model: str) -> SentenceTransformer:
    from sentence_transformers import SentenceTransformer
    from transformers.utils import logging

    logging.disable_progress_bar()
    try:
        return SentenceTransformer(model)
    except Exception as error:  # as in _load
        _fail(f"cannot load the model {model!r}: {error or type(error).__name__}")


def _check_architecture(name: str | None, model: SentenceTransformer) -> None:
    from fastsal.modules.encoders import FAST_CLASSES

    if not any(isinstance(module, tuple(FAST_CLASSES)) for module in model.modules()):
        _fail(f"the model {name!r} holds neither BERT nor ALBERT: there is nothing that fastsal's kernels compute")


def _write_json(path: Path, content: object) -> None:
    with atomic_file(path) as file:
        file.write((json.dumps(content, indent=2) + "\n").encode())


def _console() -> Console:
    """For tables on stdout, which keep their width in a file."""
    console = Console()
    return console if console.is_terminal else Console(width=160)


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
    except (ValueError, IndexError, RuntimeError) as error:
        _fail(f"rows {first} to {last}: {error}")


@contextmanager
def _errors_reported() -> Iterator[None]:
    """End the program with one line, not with a traceback, for what a user can mend."""
    try:
        yield
    except FileFormatError as error:
        _fail(str(error))
    except OSError as error:
        _fail(f"{error.filename}: {error.strerror}" if error.filename else str(error))


def _fail(message: str) -> NoReturn:
    typer.echo(f"error: {message}", err=True)
    raise typer.Exit(1)
