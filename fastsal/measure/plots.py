"""Plots of what `fastsal bench` measured."""

from __future__ import annotations

import html
import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastsal.io import FileFormatError
from fastsal.io.writers import atomic_file

if TYPE_CHECKING:
    from fastsal.measure.benchmark import BenchReport

PLOT_FORMATS = (".png", ".html")


def check_plot_path(path: Path) -> None:
    """Raise a FileFormatError now rather than after minutes of measuring."""
    if path.suffix.lower() not in PLOT_FORMATS:
        raise FileFormatError(f"{path}: a plot must end in one of {', '.join(PLOT_FORMATS)}")
    _pyplot()


def save_bench_plot(report: BenchReport, path: Path) -> None:
    """Throughput against length, and throughput against error, side by side; .html has the numbers too."""
    plt = _pyplot()
    figure, (by_length, by_error) = plt.subplots(1, 2, figsize=(12, 4.5), layout="constrained")
    mixes = sorted(report.tokens, key=lambda mix: report.tokens[mix])
    for engine in report.engines:
        rates = engine.sentences_per_second
        by_length.plot([report.tokens[mix] for mix in mixes], [rates[mix] for mix in mixes], "o-", label=engine.name)
        by_error.plot([engine.error], [rates[mixes[0]]], "o", markersize=9, label=engine.name)
    by_length.set(xscale="log", yscale="log", xlabel="tokens per sentence (mean)", ylabel="sentences/s")
    by_error.set(xscale="log", yscale="log", xlabel="error against float64", ylabel=f"sentences/s, {mixes[0]}")
    by_length.legend()
    for axes in (by_length, by_error):
        axes.grid(visible=True, which="both", alpha=0.3)
    figure.suptitle(
        f"{report.model}\n{report.machine['processor']}, {report.machine['threads']} threads, {report.date}"
    )
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png" if path.suffix.lower() == ".png" else "svg", dpi=150)
    plt.close(figure)
    content = buffer.getvalue()
    if path.suffix.lower() == ".html":
        content = _page(report, content[content.index(b"<svg") :].decode()).encode()
    with atomic_file(path) as file:
        file.write(content)


def _page(report: BenchReport, svg: str) -> str:
    mixes = list(report.tokens)
    rows = [["engine", *(f"{mix}, sentences/s" for mix in mixes), "one sentence, ms", "error", "min cosine"]]
    rows += [
        [
            engine.name,
            *(f"{engine.sentences_per_second[mix]:.0f}" for mix in mixes),
            f"{engine.latency_ms:.2f}",
            f"{engine.error:.1e}",
            f"{engine.min_cosine:.6f}",
        ]
        for engine in report.engines
    ]
    body = "\n".join("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    machine = "".join(f"<li>{html.escape(f'{name}: {value}')}</li>" for name, value in report.machine.items())
    title = html.escape(f"fastsal bench {report.model}")
    return f"""<!DOCTYPE html>
<html lang="en"><meta charset="utf-8"><title>{title}</title>
<style>
body {{ font-family: sans-serif }}
td {{ padding: .2em 1em; text-align: right }}
td:first-child {{ text-align: left }}
</style>
<h1>{title}</h1>
<p>{html.escape(report.date)}</p>
{svg}
<table>
{body}
</table>
<ul>{machine}</ul>
</html>
"""


def _pyplot() -> Any:
    try:
        import matplotlib as mpl
    except ImportError:
        raise FileFormatError("plots need the package matplotlib: pip install 'fastsal[bench]'") from None
    mpl.use("Agg")
    import matplotlib.pyplot as plt

    return plt
