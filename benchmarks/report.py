"""Saved measurements as Markdown tables and plots.

usage: python benchmarks/report.py [RESULTS.json] [--scores SCORES.json] [--int8 INT8.json] [-o FOLDER] [--into FILE]

RESULTS.json is what `pytest benchmarks/ --benchmark-only --benchmark-json RESULTS.json` wrote, SCORES.json what
`fastsal eval --json` wrote, INT8.json what `benchmarks/int8_accuracy.py --json` wrote. Markdown goes to stdout, and
with --into also between `<!-- measured: NAME -->` and `<!-- end -->` in FILE, NAME being throughput, accuracy or int8.
With -o, plots of the results go to FOLDER: throughput against accuracy, throughput against length, cost against the
number of sentences.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

Row = Mapping[str, Any]

REFERENCE = "hf-float32"


def read_results(path: Path) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """Rows of `extra_info`, and the machine by label."""
    content = json.loads(path.read_text(encoding="utf-8"))
    rows = [benchmark["extra_info"] for benchmark in content["benchmarks"] if benchmark["extra_info"]]
    processor = content["machine_info"].get("cpu", {})
    machine = {
        "date": content["datetime"][:10],
        "processor": processor.get("brand_raw") or content["machine_info"].get("machine", ""),
        "threads": ", ".join(sorted({str(row["threads"]) for row in rows if "threads" in row})),
        "python": content["machine_info"]["python_version"],
    }
    return rows, machine


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
    header = [
        "engine",
        "sentences",
        "total s",
        "sentences/s",
        "tokenising s",
        "computing s",
        "not computing",
        "overhead",
    ]
    cells = [header]
    for row in rows:
        cells.append(
            [
                row["engine"],
                str(row["corpus"]),
                f"{row['total_s']:.3f}",
                f"{row['corpus'] / row['total_s']:.0f}",
                f"{row['tokenise_s']:.3f}",
                f"{row['compute_s']:.3f}",
                f"{100 * row['rest_share']:.1f} %",
                f"{100 * row['overhead']:.1f} %",
            ]
        )
    return _markdown(cells, text_columns=1)


def _markdown(cells: Sequence[Sequence[str]], text_columns: int) -> str:
    rule = ["---" if column < text_columns else "---:" for column in range(len(cells[0]))]
    return "\n".join("| " + " | ".join(row) + " |" for row in [cells[0], rule, *cells[1:]])


def save_plots(rows: Sequence[Row], folder: Path) -> list[Path]:
    """PNG files; those that the rows have data for."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    folder.mkdir(parents=True, exist_ok=True)
    throughput = [row for row in rows if "mix" in row]
    models = list(dict.fromkeys(row["model"] for row in throughput))
    paths = []

    def save(figure: Any, name: str) -> None:
        path = folder / f"{name}.png"
        figure.savefig(path, dpi=150)
        plt.close(figure)
        paths.append(path)

    if models:
        figure, axes = plt.subplots(1, len(models), figsize=(5 * len(models), 4.5), layout="constrained", squeeze=False)
        for place, model in zip(axes[0], models, strict=True):
            for row in throughput:
                if (row["model"], row["mix"]) == (model, "sts"):
                    point = max(1 - row["min_cosine"], 1e-14), row["sentences_per_s"]
                    place.plot([point[0]], [point[1]], "o")
                    place.annotate(row["engine"], point, fontsize=7)
            place.set(xscale="log", yscale="log", title=model, xlabel="1 - smallest cosine to float64")
        axes[0, 0].set_ylabel("sentences/s, STS lengths")
        save(figure, "throughput_accuracy")

        figure, axes = plt.subplots(1, len(models), figsize=(5 * len(models), 4.5), layout="constrained", squeeze=False)
        for place, model in zip(axes[0], models, strict=True):
            for engine in dict.fromkeys(row["engine"] for row in throughput):
                line = [row for row in throughput if (row["model"], row["engine"]) == (model, engine)]
                line.sort(key=lambda row: row["tokens"] / row["sentences"])
                if line:
                    lengths = [row["tokens"] / row["sentences"] for row in line]
                    place.plot(lengths, [row["tokens_per_s"] for row in line], "o-", label=engine)
            place.set(xscale="log", yscale="log", title=model, xlabel="tokens per text (mean)")
        axes[0, 0].set_ylabel("tokens/s")
        axes[0, -1].legend(fontsize=7)
        save(figure, "throughput_length")

    end_to_end = sorted((row for row in rows if "corpus" in row), key=lambda row: row["corpus"])
    if end_to_end:
        figure, place = plt.subplots(figsize=(6, 4.5), layout="constrained")
        for engine in dict.fromkeys(row["engine"] for row in end_to_end):
            line = [row for row in end_to_end if row["engine"] == engine]
            costs = [1e6 * row["total_s"] / row["corpus"] for row in line]
            place.plot([row["corpus"] for row in line], costs, "o-", label=engine)
        place.set(xscale="log", yscale="log", xlabel="sentences in one call", ylabel="microseconds per sentence")
        place.legend()
        save(figure, "cost_corpus")
    return paths


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
                cells.append([row["variant"], f"{row['spearman']:.2f}", *cosines])
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
        rows, machine = read_results(arguments.results)
        measured = "Measured: " + ", ".join(f"{name} {value}" for name, value in machine.items())
        sections["throughput"] = f"{measured}\n\n{markdown_tables(rows)}"
        if arguments.output:
            save_plots(rows, arguments.output)
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
