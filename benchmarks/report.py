"""Saved benchmarks as Markdown tables and plots.

usage: python benchmarks/report.py RESULTS.json [-o FOLDER]

RESULTS.json is what `pytest benchmarks/ --benchmark-only --benchmark-json RESULTS.json` wrote. Markdown goes to stdout;
with -o, plots go to FOLDER: throughput against accuracy, throughput against length, and cost against the number of
sentences.
"""

from __future__ import annotations

import argparse
import json
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
        parts.append(
            f"**{model}, {mix}** ({group[0]['sentences']} texts, {group[0]['tokens']} tokens)\n\n" + _table(group)
        )
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
        "waiting for tokens",
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
                    place.plot([max(1 - row["min_cosine"], 1e-14)], [row["sentences_per_s"]], "o")
                    place.annotate(
                        row["engine"], (max(1 - row["min_cosine"], 1e-14), row["sentences_per_s"]), fontsize=7
                    )
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("results", type=Path)
    parser.add_argument("-o", "--output", type=Path, help="folder for the plots")
    arguments = parser.parse_args()
    rows, machine = read_results(arguments.results)
    print("Measured on " + ", ".join(f"{name} {value}" for name, value in machine.items()) + "\n")
    print(markdown_tables(rows))
    if arguments.output:
        for path in save_plots(rows, arguments.output):
            print(f"\n![{path.stem.replace('_', ' against ')}]({path.name})")


if __name__ == "__main__":
    main()
