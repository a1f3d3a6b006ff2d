"""What the compiler makes of every Triton kernel at real shapes, without a GPU.

``python benchmarks/triton_static.py [--json FILE] [--arch sm_90] [--model albert-base] [--dtype bfloat16]``

Compiles each launch that the backend would make for few, some and many tokens, and attention for every size of heads,
and exits with 1 if a kernel spills, exceeds its architecture's shared memory, or multiplies float16 or bfloat16 without
a matrix instruction. (At sizes that are no multiple of 16, which no model here has, spills are shown but do not count.)
The time floor is that of an H200's data sheet: the longer of moving each byte once and of computing at the matrix
units' peak. It is a bound, no measurement.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import os
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path

os.environ["TRITON_INTERPRET"] = "0"  # the compiler is what this is about

import torch
from aot import LIMITS, TARGETS, compile_launch, record
from rich.console import Console
from rich.table import Table
from triton_shapes import MODELS, STS_TOKENS, Case, Model, attention_cases, cases

from fastsal.kernels.triton.tuning import load

#: Configuration file for each architecture.
TUNINGS = {"sm_80": "default", "sm_90": "h200"}

#: NVIDIA H200 SXM data sheet: HBM3e bytes/s, and dense tensor core operations/s in float16 and bfloat16.
H200_BYTES_PER_SECOND = 4.8e12
H200_OPERATIONS_PER_SECOND = 989e12

#: One sentence, a small batch, a full chunk; two odd shapes show that nothing hangs on round sizes.
NUM_TOKENS = (16, 1024, 32768)
ODD_MODEL = Model(hidden_size=312, num_heads=12, intermediate_size=1248, embedding_size=128, activation="gelu")
TINY_MODEL = Model(hidden_size=26, num_heads=1, intermediate_size=1, embedding_size=13, activation="mish")

ODD_MODELS = {"hidden-312": ODD_MODEL, "one-head-of-26": TINY_MODEL}

#: In the place of a model: attention alone with heads of these sizes, up to the largest that the backend takes.
HEADS = "heads"
HEAD_SIZES = (8, 16, 32, 48, 64, 80, 96, 112, 128, 160, 192, 256)

#: Rows below which a tile is smaller than a wgmma's 64 rows, and mma.sync is right.
_SMALLEST_WGMMA_ROWS = 64


@dataclass(frozen=True)
class Row:
    """One compiled launch; `problems` is empty where all is well."""

    kernel: str
    model: str
    dtype: str
    tokens: int
    arch: str
    config: dict[str, int]
    registers: int
    spilled: int
    shared: int
    programs: int
    matrix_instructions: dict[str, int]
    bytes: int
    operations: int
    floor_microseconds: float
    problems: list[str] = field(default_factory=list)


def compile_case(case: Case, model: str, dtype: torch.dtype, tokens: int, arch: str) -> Row:
    """Compile one launch and judge it."""
    (launch,) = record(case.launch)
    compiled = compile_launch(launch, arch)
    problems = []
    if compiled.spilled and model not in ODD_MODELS:
        problems.append(f"{compiled.spilled} bytes of stack per thread")
    if compiled.shared > LIMITS[arch]["program_shared"]:
        problems.append(f"{compiled.shared} bytes of shared memory, {arch} has {LIMITS[arch]['program_shared']}")
    block_rows = min((launch.constants[name] for name in ("BLOCK_M", "BLOCK_T") if name in launch.constants), default=0)
    needs_wgmma = arch == "sm_90" and block_rows >= _SMALLEST_WGMMA_ROWS
    if case.multiplies and dtype != torch.float32:  # which has none that is exact enough
        if not compiled.matrix_instructions:
            problems.append("no matrix instruction")
        elif needs_wgmma and "wgmma.mma_async" not in compiled.matrix_instructions:
            problems.append("no wgmma")
    floor = max(case.bytes / H200_BYTES_PER_SECOND, case.operations / H200_OPERATIONS_PER_SECOND)
    blocks = {name: value for name, value in launch.constants.items() if name.startswith(("BLOCK", "GROUP"))}
    return Row(
        kernel=case.name,
        model=model,
        dtype=str(dtype).removeprefix("torch."),
        tokens=tokens,
        arch=arch,
        config={**blocks, **launch.options},
        registers=compiled.registers,
        spilled=compiled.spilled,
        shared=compiled.shared,
        programs=compiled.programs,
        matrix_instructions=compiled.matrix_instructions,
        bytes=case.bytes,
        operations=case.operations,
        floor_microseconds=round(floor * 1e6, 3),
        problems=problems,
    )


def compile_all(arch: str, model: str, dtype_name: str, tokens: int) -> list[Row]:
    """Compile and judge every launch of a model, or of HEADS."""
    dtype, tuning = getattr(torch, dtype_name), load(TUNINGS[arch])
    if model == HEADS:
        launches = (
            (f"{model}-{size}", case) for size in HEAD_SIZES for case in attention_cases(size, 4, tokens, dtype, tuning)
        )
    else:
        launches = ((model, case) for case in cases({**MODELS, **ODD_MODELS}[model], tokens, dtype, tuning))
    return [compile_case(case, name, dtype, tokens, arch) for name, case in launches]


def table(rows: list[Row]) -> Table:
    """The report for people."""
    result = Table(title=f"Ahead of time, sentences of {STS_TOKENS} tokens; floor: H200 data sheet, not measured")
    for column in ("kernel", "model", "dtype", "tokens", "arch", "registers", "spilled", "shared", "programs"):
        result.add_column(column, justify="left" if column in ("kernel", "model", "dtype", "arch") else "right")
    for column in ("matrix instructions", "MB", "GFLOP", "floor us", "problems"):
        result.add_column(column, justify="left" if column in ("matrix instructions", "problems") else "right")
    for row in rows:
        result.add_row(
            row.kernel, row.model, row.dtype, str(row.tokens), row.arch,
            str(row.registers), str(row.spilled), str(row.shared), str(row.programs),
            ", ".join(f"{name} {count}" for name, count in row.matrix_instructions.items()) or "-",
            f"{row.bytes / 1e6:.2f}", f"{row.operations / 1e9:.2f}", f"{row.floor_microseconds:.2f}",
            "; ".join(row.problems),
            style="red" if row.problems else None,
        )  # fmt: skip
    return result


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="also write the rows to this file")
    parser.add_argument("--arch", nargs="+", choices=TARGETS, default=list(TARGETS))
    models = [*MODELS, *ODD_MODELS, HEADS]
    parser.add_argument("--model", nargs="+", choices=models, default=models)
    dtypes = ["float32", "float16", "bfloat16"]
    parser.add_argument("--dtype", nargs="+", choices=dtypes, default=dtypes)
    parser.add_argument("--tokens", nargs="+", type=int, default=list(NUM_TOKENS))
    chosen = parser.parse_args(arguments)

    jobs = list(itertools.product(chosen.arch, chosen.model, chosen.dtype, chosen.tokens))
    with ProcessPoolExecutor(os.cpu_count(), mp_context=multiprocessing.get_context("spawn")) as processes:
        rows = list(itertools.chain.from_iterable(processes.map(compile_all, *zip(*jobs, strict=True))))
    console = Console(width=None if sys.stdout.isatty() else 200)
    console.print(table(rows))
    problems = sum(bool(row.problems) for row in rows)
    console.print(f"{len(rows)} launches, {problems} with problems")
    if chosen.json is not None:
        chosen.json.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n", encoding="utf-8")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
