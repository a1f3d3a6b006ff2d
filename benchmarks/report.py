"""Saved measurements as Markdown tables and plots.

usage: python benchmarks/report.py [RESULTS.json] [--scores SCORES.json] [--int8 INT8.json] [-o FOLDER] [--into FILE]

RESULTS.json is what `pytest benchmarks/ --benchmark-only --benchmark-json RESULTS.json` wrote, SCORES.json what
`fastsal eval --json` wrote, INT8.json what `benchmarks/int8_accuracy.py --json` wrote. Markdown goes to stdout, and
with --into also between `<!-- measured: NAME -->` and `<!-- end -->` in FILE, NAME being throughput, accuracy or int8.
Plots of RESULTS.json (throughput against accuracy, throughput against length, cost against the number of sentences) go
to FOLDER, which is `plots` beside FILE where --into is given; FILE then shows them.
"""

from __future__ import annotations

import argparse
import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

Row = Mapping[str, Any]

REFERENCE = "hf-float32"


def read_results(path: Path) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """Rows of `extra_info`; and date, command and machine by label."""
    content = json.loads(path.read_text(encoding="utf-8"))
    rows = [benchmark["extra_info"] for benchmark in content["benchmarks"] if benchmark["extra_info"]]
    return rows, {"date": content["datetime"][:10], **content["machine_info"]["fastsal"]}


def measured_line(run: Mapping[str, str]) -> str:
    """When, by which command and on what."""
    versions = ", ".join(f"{package} {run[package]}" for package in ("fastsal", "torch", "transformers"))
    kernels = run["backend cpu"].partition(": ")[2].partition(" (")[0]
    return (
        f"{run['date']}, `{run['command']}`, in one run on {run['processor']}, {run['threads']} threads, "
        f"kernels for {kernels}; {versions}."
    )


def markdown_tables(rows: Iterable[Row]) -> str:
    """A table per model and mix, then one of the runs from text to vectors."""
    rows = list(rows)
    throughput = [row for row in rows if "mix" in row]
    parts = []
    for model, mix in dict.fromkeys((row["model"], row["mix"]) for row in throughput):
        group = [row for row in throughput if (row["model"], row["mix"]) == (model, mix)]
        title = f"**{model}, {mix}** ({group[0]['sentences']} texts, {group[0]['tokens']} tokens)"
        parts.append(f"{title}\n\n{_table(group)}")
    end_to_end = [row for row in rows if "corpus" in row]
    if end_to_end:
        parts.append("**text in, vectors out**\n\n" + _end_to_end_table(end_to_end))
    return "\n\n".join(parts)


def _table(rows: Sequence[Row]) -> str:
    baseline = next((row["sentences_per_s"] for row in rows if row["engine"] == REFERENCE), None)
    with_spearman = any("sts_spearman" in row for row in rows)
    header = ["engine", "starts from", "sentences/s", "ratio", "tokens/s", "error", "min cosine"]
    cells = [header + ["STS Spearman"] * with_spearman]
    for row in rows:
        ratio = "" if baseline is None else f"{row['sentences_per_s'] / baseline:.2f}"
        spearman = f"{row['sts_spearman']:.2f}" if "sts_spearman" in row else ""
        cells.append(
            [
                row["engine"],
                row["starts from"],
                f"{row['sentences_per_s']:.0f}",
                ratio,
                f"{row['tokens_per_s']:.0f}",
                f"{row['error']:.1e}",
                f"{row['min_cosine']:.6f}",
                *[spearman] * with_spearman,
            ]
        )
    return _markdown(cells, text_columns=2)


def _end_to_end_table(rows: Sequence[Row]) -> str:
    parts = {
        "tokenise_s": "tokenising s",
        "compute_s": "computing s",
        "rest_share": "not computing",
        "overhead": "overhead",
    }
    cells = [["engine", "sentences", "total s", "sentences/s", *parts.values()]]
    for row in sorted(rows, key=lambda row: row["corpus"]):
        total, corpus = row["total_s"], row["corpus"]
        measured = [row["engine"], str(corpus), f"{total:.4f}", f"{corpus / total:.0f}"]
        for part in parts:
            if part not in row:
                measured.append("")
            elif part.endswith("_s"):
                measured.append(f"{row[part]:.4f}")
            else:
                measured.append(f"{100 * row[part]:.1f} %")
        cells.append(measured)
    return _markdown(cells, text_columns=1)


def _markdown(cells: Sequence[Sequence[str]], text_columns: int) -> str:
    rule = ["---" if column < text_columns else "---:" for column in range(len(cells[0]))]
    return "\n".join("| " + " | ".join(row) + " |" for row in [cells[0], rule, *cells[1:]])


def save_plots(rows: Sequence[Row], folder: Path) -> dict[str, Path]:
    """SVG files by title; those that the rows have data for. Equal rows make equal files."""
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "fastsal", "font.size": 9})
    import matplotlib.pyplot as plt

    folder.mkdir(parents=True, exist_ok=True)
    throughput = [row for row in rows if "mix" in row]
    end_to_end = sorted((row for row in rows if "corpus" in row), key=lambda row: row["corpus"])
    plots = {
        "throughput against accuracy": ("throughput_accuracy", _plot_accuracy, throughput),
        "throughput against length": ("throughput_length", _plot_length, throughput),
        "cost against the number of sentences": ("cost_corpus", _plot_corpus, end_to_end),
    }
    paths = {}
    for title, (name, draw, selected) in plots.items():
        if selected:
            figure = draw(plt, selected)
            paths[title] = folder / f"{name}.svg"
            figure.savefig(paths[title], metadata={"Date": None})
            plt.close(figure)
    return paths


#: How an engine is drawn: colour by who computes, marker by dtype.
_COLOURS = {
    "fastsal-encode": "C9",
    "fastsal": "C0",
    "hf": "0.55",
    "sentence-transformers": "0.2",
    "ort": "C1",
    "ov": "C2",
}
_MARKERS = {"float32": "o", "bfloat16": "s", "float16": "D", "int8": "^"}


def _style(engine: str) -> dict[str, Any]:
    colour = next((colour for start, colour in _COLOURS.items() if engine.startswith(start)), "C4")
    marker = next((marker for dtype, marker in _MARKERS.items() if dtype in engine), "o")
    hollow = {"markerfacecolor": "none"} if engine.endswith("-streams") else {}
    return {"color": colour, "marker": marker, "label": engine, **hollow}


def _panels(plt: Any, models: Sequence[str]) -> tuple[Any, Any]:
    size = max(3.2 * len(models), 7), 4.6
    figure, axes = plt.subplots(1, len(models), figsize=size, layout="constrained", squeeze=False)
    for place, model in zip(axes[0], models, strict=True):
        place.set_title(model)
        place.grid(visible=True, which="major", alpha=0.3)
    return figure, axes[0]


def _legend(figure: Any, axes: Iterable[Any]) -> None:
    """One for all panels, below them."""
    handles = {
        label: handle for place in axes for handle, label in zip(*place.get_legend_handles_labels(), strict=True)
    }
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=4, fontsize=8, frameon=False)


def _plot_accuracy(plt: Any, rows: Sequence[Row]) -> Any:
    models = list(dict.fromkeys(row["model"] for row in rows))
    figure, axes = _panels(plt, models)
    for place, model in zip(axes, models, strict=True):
        for row in rows:
            if (row["model"], row["mix"]) == (model, "sts"):
                distance = max(1 - row["min_cosine"], 1e-14)
                place.plot([distance], [row["sentences_per_s"]], linestyle="none", **_style(row["engine"]))
        place.set(xscale="log", xlabel="1 - smallest cosine to float64", ylim=(0, None))
    axes[0].set_ylabel("sentences/s, STS lengths")
    _legend(figure, axes)
    return figure


def _plot_length(plt: Any, rows: Sequence[Row]) -> Any:
    """Of the models that were measured at several lengths."""
    mixes = {model: {row["mix"] for row in rows if row["model"] == model} for model in (row["model"] for row in rows)}
    most = max(map(len, mixes.values()))
    models = [model for model, found in mixes.items() if len(found) > 1 or most == 1]
    figure, axes = _panels(plt, models)
    for place, model in zip(axes, models, strict=True):
        for engine in dict.fromkeys(row["engine"] for row in rows):
            line = [row for row in rows if (row["model"], row["engine"]) == (model, engine)]
            line.sort(key=lambda row: row["tokens"] / row["sentences"])
            lengths = [row["tokens"] / row["sentences"] for row in line]
            place.plot(lengths, [row["tokens_per_s"] for row in line], **_style(engine))
        place.set(xscale="log", xlabel="tokens per text (mean)", ylim=(0, None))
        ticks = sorted({round(row["tokens"] / row["sentences"]) for row in rows if row["model"] == model})
        place.set_xticks(ticks, [str(tick) for tick in ticks])
        place.minorticks_off()
    axes[0].set_ylabel("tokens/s")
    _legend(figure, axes)
    return figure


def _plot_corpus(plt: Any, rows: Sequence[Row]) -> Any:
    figure, axes = _panels(plt, list(dict.fromkeys(row["model"] for row in rows)))
    for place in axes:
        for engine in dict.fromkeys(row["engine"] for row in rows):
            line = [row for row in rows if (row["model"], row["engine"]) == (place.get_title(), engine)]
            costs = [1e6 * row["total_s"] / row["corpus"] for row in line]
            place.plot([row["corpus"] for row in line], costs, **_style(engine))
        place.set(xscale="log", yscale="log", xlabel="sentences in one call")
    axes[0].set_ylabel("microseconds per sentence, from text")
    _legend(figure, axes)
    return figure


def score_table(path: Path) -> str:
    """What `fastsal eval --json` wrote: a row per task and score, a column per run."""
    content = json.loads(path.read_text(encoding="utf-8"))
    tasks = content["tasks"]
    names = [run["name"] for run in tasks[0]["runs"]]
    cells = [["task", "score x 100", *names]]
    for task in tasks:
        for name, scores in task["headline"].items():
            reference = scores[0]
            differences = [f"{score:.2f} ({score - reference:+.3f})" for score in scores[1:]]
            cells.append([task["task"], name, f"{reference:.2f}", *differences])
    return _markdown(cells, text_columns=2)


def int8_table(path: Path) -> str:
    """What `int8_accuracy.py --json` wrote."""
    rows = json.loads(path.read_text(encoding="utf-8"))
    parts = []
    for table in dict.fromkeys(row["table"] for row in rows):
        cells = [["variant", "Spearman", "min cosine", "1st percentile", "mean cosine"]]
        for row in rows:
            if row["table"] == table:
                cosines = f"{row['min_cosine']:.4f}", f"{row['percentile1_cosine']:.4f}", f"{row['mean_cosine']:.5f}"
                spearman = "" if row["spearman"] is None else f"{row['spearman']:.2f}"
                cells.append([row["variant"], spearman, *cosines])
        parts.append(f"**{table}**\n\n{_markdown(cells, text_columns=1)}")
    return "\n\n".join(parts)


def fill(path: Path, name: str, content: str) -> None:
    """Put `content` between the marks of `name` in a Markdown file.

    Raises:
        ValueError: the file has no such marks.
    """
    text = path.read_text(encoding="utf-8")
    pattern = re.compile(rf"(<!-- measured: {re.escape(name)} -->\n).*?(\n<!-- end -->)", re.DOTALL)
    filled, count = pattern.subn(lambda match: match[1] + content + match[2], text)
    if count != 1:
        raise ValueError(f"{path}: expected one place marked <!-- measured: {name} -->, found {count}")
    path.write_text(filled, encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("results", type=Path, nargs="?")
    parser.add_argument("--scores", type=Path)
    parser.add_argument("--int8", type=Path)
    parser.add_argument("-o", "--output", type=Path, help="folder for the plots")
    parser.add_argument("--into", type=Path, help="Markdown file with marked places")
    arguments = parser.parse_args()
    sections = {}
    if arguments.results:
        rows, run = read_results(arguments.results)
        parts = [measured_line(run), markdown_tables(rows)]
        folder = arguments.output or (arguments.into and arguments.into.parent / "plots")
        if folder:
            plots = save_plots(rows, folder)
            if arguments.into:
                base = arguments.into.parent
                parts += [f"![{title}]({os.path.relpath(path, base)})" for title, path in plots.items()]
        sections["throughput"] = "\n\n".join(parts)
    if arguments.scores:
        sections["accuracy"] = score_table(arguments.scores)
    if arguments.int8:
        sections["int8"] = int8_table(arguments.int8)
    for name, content in sections.items():
        print(content + "\n")
        if arguments.into:
            fill(arguments.into, name, content)


if __name__ == "__main__":
    main()
