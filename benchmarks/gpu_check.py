"""Measures the Triton backend on a GPU; ``benchmarks/gpu_check.sh FOLDER`` runs it. With ``--rehearse``: see there.

PYTHONPATH must name tests/ and tests/triton_kernels/. Every measured result is checked first: what is off fails the run
instead of giving a figure.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any
from unittest import mock

import interpreter_shim
import torch
from gpu_encoder import LOADS, from_text, from_tokens
from gpu_kernels import REHEARSAL, Sizes, comparisons, measured_choices, stage_times
from gpu_timing import Clock, matrix_peak

from fastsal.backends.triton import TritonBackend
from fastsal.kernels.triton.tuning import CONFIG_DIR, tuning_for

#: Tokens at which the ways to compute a stage are compared: the graphs' sizes up to a full chunk.
STAGE_ROWS = (16, 256, 1024, 4096, 32768)


def measure(clock: Clock, report: dict[str, Any], save: Any) -> None:
    """Fill `report`, saving it after each part."""
    rehearses = clock.rehearses
    tuning = tuning_for(clock.device)
    sizes = REHEARSAL if rehearses else Sizes()
    # the interpreter's products of bfloat16 are wrong
    dtypes = [torch.float16] if rehearses else [torch.bfloat16, torch.float16]
    peaks = {dtype: matrix_peak(clock, dtype) for dtype in dtypes}
    report["peak_operations_per_second"] = {str(dtype).removeprefix("torch."): peak for dtype, peak in peaks.items()}
    for dtype in dtypes:
        report["encoder"] += from_tokens(clock, dtype, peaks[dtype])
        save()
        rows = comparisons(sizes, dtype, clock, tuning)
        report["kernels"] += [{**row, "dtype": str(dtype).removeprefix("torch.")} for row in rows]
        save()
    report["encoder"] += from_text(clock, dtypes[0])
    save()
    stages = {rows: stage_times(sizes, dtypes[0], clock, tuning, rows) for rows in ((16,) if rehearses else STAGE_ROWS)}
    report["stages"] = {str(rows): times for rows, times in stages.items()}
    if not rehearses:
        content = json.loads((CONFIG_DIR / f"{tuning.name}.json").read_text(encoding="utf-8"))
        content["measured"] = f"{report['date']} on {report['gpu']}, torch {report['torch']}, Triton {report['triton']}"
        content["choices"] = measured_choices(stages, content["choices"])
        report["configuration"] = content
    save()
    if not rehearses:  # last, as it may take longer than the time there is
        load = max(LOADS, key=lambda load: load.count)
        report["encoder"] += from_tokens(clock, dtypes[0], peaks[dtypes[0]], (load,), compiled=True)
        save()


def markdown(report: dict[str, Any]) -> str:
    """The report as tables."""
    if report["rehearsal"]:
        return "A rehearsal without a GPU: every part ran in Triton's interpreter on toy sizes; nothing was measured.\n"
    lines = [
        f"# {report['gpu']}, torch {report['torch']}, Triton {report['triton']}, {report['date']}",
        "",
        "Matrix peak (cuBLAS, 8192 cubed): "
        + ", ".join(f"{name} {peak / 1e12:.0f} TFLOP/s" for name, peak in report["peak_operations_per_second"].items()),
        "",
        "| ALBERT-base | dtype | fastsal ms | rivals ms | times faster | of the peak |",
        "|---|---|---|---|---|---|",
    ]
    for row in report["encoder"]:
        lines.append(_line(row["load"], row, {"fastsal"}, row.get("fraction_of_peak")))
    lines += ["", "| kernel | dtype | ours ms | torch ms | times faster | |", "|---|---|---|---|---|---|"]
    for row in report["kernels"]:
        names = list(row["seconds"])
        rivals = {name for name in names if "linear" in name or "SDPA" in name or "Conv1d" in name}
        rivals |= {name for name in names if name in ("varlen_attn", "mean, normalize")}
        lines.append(_line(row["kernel"], row, set(names) - rivals, None))
    lines += ["", "| stage | tokens | ways, us |", "|---|---|---|"]
    for rows, stages in report["stages"].items():
        for stage, times in stages.items():
            ways = ", ".join(f"{way} {seconds * 1e6:.1f}" for way, seconds in times.items())
            lines.append(f"| {stage} | {rows} | {ways} |")
    return "\n".join(lines) + "\n"


def _line(name: str, row: dict[str, Any], ours: set[str], fraction: float | None) -> str:
    seconds = row["seconds"]
    best = min(seconds[label] for label in ours)
    rivals = {label: value for label, value in seconds.items() if label not in ours}
    cells = (
        name,
        row["dtype"],
        ", ".join(f"{label} {seconds[label] * 1e3:.3f}" for label in seconds if label in ours),
        ", ".join(f"{label} {value * 1e3:.3f}" for label, value in rivals.items()),
        ", ".join(f"{value / best:.2f}" for value in rivals.values()),
        "" if fraction is None else f"{fraction:.0%}",
    )
    return "| " + " | ".join(cells) + " |"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where gpu_check.json and gpu_check.md are written")
    parser.add_argument("--rehearse", action="store_true", help="run every part once in the interpreter, without a GPU")
    chosen = parser.parse_args()
    if chosen.rehearse == torch.cuda.is_available():
        parser.error("there is a GPU: leave --rehearse out" if chosen.rehearse else "torch finds no GPU: --rehearse")
    device = torch.device("cpu" if chosen.rehearse else "cuda")
    report: dict[str, Any] = {
        "rehearsal": chosen.rehearse,
        "gpu": None if chosen.rehearse else torch.cuda.get_device_name(),
        "date": time.strftime("%Y-%m-%d"),
        "python": platform.python_version(),
        **{package: version(package) for package in ("torch", "triton", "transformers", "sentence-transformers")},
        "encoder": [],
        "kernels": [],
        "stages": {},
    }

    def save() -> None:
        (chosen.folder / "gpu_check.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
        (chosen.folder / "gpu_check.md").write_text(markdown(report), encoding="utf-8")
        if "configuration" in report:
            file = chosen.folder / f"{tuning_for(device).name}.json"
            file.write_text(json.dumps(report["configuration"], indent=1) + "\n", encoding="utf-8")

    if chosen.rehearse:
        interpreter_shim.install()
        with (
            mock.patch.object(TritonBackend, "unavailable", return_value=None),
            mock.patch.object(TritonBackend, "unsupported", return_value=None),
        ):
            measure(Clock(device), report, save)
    else:
        measure(Clock(device), report, save)
    return 0


if __name__ == "__main__":
    sys.exit(main())
