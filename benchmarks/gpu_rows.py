"""What gpu_check measures, row by row, in a process of its own: whatever happens costs the row at hand only.

``python gpu_rows.py FOLDER --parts smoke sweep`` runs the rows of these parts that FOLDER/rows.jsonl has no end of. A
line is written when a row starts and when it ends, with its result or its traceback. Exits with LOST where the GPU is
unusable after a row: a new process is needed for the others. ``--rehearse`` launches nothing; ``--compile I/N``
compiles what every Nth row from the Ith on launches, without a GPU.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from gpu_timing import Clock, copy_bandwidth, matrix_peak

#: Exit status where a row has left the GPU unusable.
LOST = 3

#: In their order.
PARTS = ("smoke", "sweep", "encoder", "verify", "profile", "compile")

#: Seconds that a row may take.
LIMITS = {"compile": 100}
DEFAULT_LIMIT = 45


@dataclass(frozen=True)
class Row:
    """One measurement. `measure` gives what json can write; an exception is its failure."""

    part: str
    name: str
    measure: Callable[[Clock], dict[str, Any]]


class RowFile:
    """FOLDER/rows.jsonl."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "rows.jsonl"

    def append(self, **line: Any) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def lines(self) -> list[dict[str, Any]]:
        if not self.path.exists():
            return []
        return [json.loads(line) for line in self.path.read_text(encoding="utf-8").splitlines()]

    def ended(self) -> dict[str, dict[str, Any]]:
        """Rows by name that have a result or an error."""
        return {line["row"]: line for line in self.lines() if line["state"] != "started"}

    def underway(self) -> dict[str, Any] | None:
        """The last row that started and has not ended."""
        lines = self.lines()
        return lines[-1] if lines and lines[-1]["state"] == "started" else None


def rows_of(parts: list[str], file: RowFile, configuration: Path | None) -> Iterator[Row]:
    """The rows of `parts`, in their order; later ones may use the results of earlier ones."""
    import gpu_encoder
    import gpu_kernels
    import gpu_sweep

    for part in PARTS:
        if part not in parts:
            continue
        if part == "smoke":
            yield from gpu_kernels.smoke_rows(configuration)
        elif part == "sweep":
            for dtype in (torch.bfloat16, torch.float16, torch.float32):
                name = str(dtype).removeprefix("torch.")
                yield Row(part, f"peak {name}", lambda clock, d=dtype: {"operations_per_second": matrix_peak(clock, d)})
            yield Row(part, "copy", lambda clock: {"bytes_per_second": copy_bandwidth(clock)})
            yield from gpu_sweep.rows()
        else:
            yield from gpu_encoder.rows(part, file.path.parent, configuration)


def run(rows: Iterator[Row], file: RowFile, clock: Clock) -> int:
    """Run rows and write their ends; the exit status."""
    ended = file.ended()
    for row in rows:
        if row.name in ended:
            continue
        file.append(row=row.name, part=row.part, state="started", limit=LIMITS.get(row.part, DEFAULT_LIMIT))
        start = time.perf_counter()
        try:
            result = row.measure(clock)
        except Exception:
            file.append(row=row.name, part=row.part, state="failed", error=traceback.format_exc())
        else:
            took = round(time.perf_counter() - start, 2)
            file.append(row=row.name, part=row.part, state="done", took=took, result=result)
        if not clock.rehearses:
            try:
                torch.cuda.synchronize()
            except RuntimeError:
                return LOST
    return 0


def without_gpu(stack: ExitStack, compiles: bool) -> None:
    """The GPU's absence hidden until `stack` ends; launches compile if `compiles`, and do nothing."""
    import aot
    import triton_stub

    from fastsal.backends.triton import TritonBackend

    if compiles:
        triton_stub.install()
    else:
        stack.enter_context(aot.recorded([]))
    for name in ("unavailable", "unsupported"):
        stack.enter_context(mock.patch.object(TritonBackend, name, return_value=None))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="of rows.jsonl")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--configuration", type=Path, help="JSON file in place of the one that ships for this GPU")
    parser.add_argument("--rehearse", action="store_true", help="launch nothing")
    parser.add_argument(
        "--compile", metavar="I/N", help="compile for sm_90 what every Nth row from the Ith on launches"
    )
    chosen = parser.parse_args()

    file = RowFile(chosen.folder)
    clock = Clock(rehearses=chosen.rehearse or chosen.compile is not None)
    with ExitStack() as stack:
        if clock.rehearses:
            without_gpu(stack, compiles=chosen.compile is not None)
        rows = rows_of(chosen.parts, file, chosen.configuration)
        if chosen.compile is None:
            return run(rows, file, clock)
        first, step = map(int, chosen.compile.split("/"))
        status = 0
        for row in list(rows)[first::step]:
            try:
                row.measure(clock)
            except Exception:
                traceback.print_exc()
                status = 1
        return status


if __name__ == "__main__":
    sys.exit(main())
