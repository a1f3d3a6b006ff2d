"""What each kernel of a layer should take on an H200, from what the compiler made of it: no GPU, no measurement.

``python benchmarks/triton_roofline.py [--model albert-base minilm] [--tokens 65536] [--json FILE]``

For every launch of a layer: the floor, which is the longer of moving each byte once and of multiplying at the matrix
units' peak, and an estimate, which adds what the compiled code says: instructions to issue, bytes that programs read
from L2, the last wave of programs that does not fill the chip. Matrix units and the rest overlap only where two
programs share a multiprocessor. The estimate shows what bounds a kernel and whether a change would cost; it is no
figure of speed. What it assumes of the chip is marked so below.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
from dataclasses import asdict, dataclass
from pathlib import Path

os.environ["TRITON_INTERPRET"] = "0"  # the compiler is what this is about

import torch
from aot import Compiled, Launch, compile_launch, machine_code, record
from rich.console import Console
from rich.table import Table
from triton_shapes import MODELS, Case, Model, cases

from fastsal.kernels.triton.attention import plan_attention
from fastsal.kernels.triton.tuning import Tuning, load

#: H200: multiprocessors, clock under load (assumed), instructions per clock and multiprocessor, bytes per clock that
#: the L2 gives a multiprocessor (assumed), operations/s and bytes/s that large products and copies reach (assumed).
NUM_SM, CLOCK, ISSUED, L2_BYTES = 132, 1.7e9, 4, 39
OPERATIONS, BANDWIDTH = 790e12, 4.3e12

#: cuBLAS's share of the peak for products of this size (assumed).
CUBLAS_EFFICIENCY = 0.83

#: Lengths in the STS benchmark: the longest of a sorted chunk is about this.
LONGEST = 32

#: Launches of a layer, and how often; the attention kernel is named by its tile.
_LAYER = {"linear_qkv": 1, "linear_residual": 1, "residual_norm": 2, "linear_up": 1, "linear_down": 1}
_STAGES = {"linear_qkv": "qkv", "linear_residual": "attention_output", "linear_up": "up", "linear_down": "down"}


@dataclass(frozen=True)
class Estimate:
    """Microseconds of all launches of one kernel in a layer."""

    kernel: str
    way: str
    floor: float
    estimate: float
    bound: str
    registers: int
    programs: int


def estimate(case: Case, launch: Launch, compiled: Compiled, instructions: int) -> tuple[float, str]:
    """Seconds of a launch and what bounds it; `instructions` of one warp, loops counted as often as they run."""
    programs = max(compiled.programs, 1)
    waves = launch.grid / (NUM_SM * programs)
    fill = math.ceil(waves) / waves if waves < 20 else 1.0
    warps = launch.options["num_warps"]
    issue = launch.grid * warps * instructions / (NUM_SM * ISSUED * CLOCK)
    matrix = case.operations / OPERATIONS
    parts = {
        "memory": case.bytes / BANDWIDTH,
        "L2": launch.grid * _l2_bytes(launch) / (NUM_SM * L2_BYTES * CLOCK),
        "matrix units": matrix,
        "issue": issue,
    }
    if programs < 2 and matrix:
        parts = {**parts, "issue after matrix units": matrix + issue}
    bound = max(parts, key=parts.__getitem__)
    return parts[bound] * fill, bound


def _l2_bytes(launch: Launch) -> int:
    """That a program of a product reads of both operands; 0 for other kernels, which read everything once."""
    blocks = launch.constants
    if "BLOCK_K" not in blocks or "num_inputs" not in launch.kernel.arg_names:
        return 0
    size = 2 if "16" in launch.signature["x_ptr"] else 4
    return (blocks["BLOCK_M"] + blocks["BLOCK_N"]) * launch.values["num_inputs"] * size


def executed(listing: str, trips: int) -> int:
    """Instructions that a warp executes: those of the innermost backward branch's body `trips` times."""
    lines = re.findall(r"^\s*/\*([0-9a-f]{4,})\*/\s+(\S.*)$", listing, re.MULTILINE)
    addresses = [int(address, 16) for address, _ in lines]
    body = 0
    for address, (_, text) in zip(addresses, lines, strict=True):
        jump = re.search(r"\bBRA(?:\.\w+)*\s+(?:\S+,\s*)?0x([0-9a-f]+)", text)
        if jump and int(jump[1], 16) < address:
            body = max(body, sum(int(jump[1], 16) <= other <= address for other in addresses))
    return len(lines) + body * (trips - 1)


def layer(name: str, model: Model, tokens: int, dtype: torch.dtype, tuning: Tuning) -> list[Estimate]:
    """The launches of a layer as the backend chooses them for a large batch."""
    head_size = model.hidden_size // model.num_heads
    plan = plan_attention(tokens, LONGEST, head_size, dtype, tuning)
    wanted = {**_LAYER, f"attention_{plan.tile_tokens}": 1}
    result = []
    for case in cases(model, tokens, dtype, tuning):
        if case.name not in wanted:
            continue
        count = wanted[case.name]
        floor = max(case.bytes / BANDWIDTH, case.operations / OPERATIONS)
        stage = _STAGES.get(case.name)
        width = {"linear_qkv": 3 * model.hidden_size, "linear_up": model.intermediate_size}.get(
            case.name, model.hidden_size
        )
        if stage is not None and tuning.choice(stage, dtype, tokens, width) == "cublas":
            seconds = max(case.operations / OPERATIONS / CUBLAS_EFFICIENCY, case.bytes / BANDWIDTH)
            result.append(Estimate(case.name, "cuBLAS", floor * 1e6, seconds * 1e6, "assumed efficiency", 0, 0))
            continue
        (launch,) = record(case.launch)
        compiled = compile_launch(launch, "sm_90")
        trips = -(-launch.values.get("num_inputs", 0) // launch.constants.get("BLOCK_K", 1)) or 1
        seconds, bound = estimate(case, launch, compiled, executed(machine_code(launch, "sm_90"), trips))
        result.append(
            Estimate(
                case.name, "Triton", floor * count * 1e6, seconds * count * 1e6, bound, compiled.registers,
                compiled.programs,
            )
        )  # fmt: skip
    return result


def table(name: str, tokens: int, estimates: list[Estimate]) -> Table:
    result = Table(title=f"{name}, a layer for {tokens} tokens; microseconds, estimated, not measured")
    for column in ("kernel", "way", "floor", "estimate", "bound by", "registers", "programs per SM"):
        result.add_column(column)
    total = Estimate(
        "sum", "", sum(e.floor for e in estimates), sum(e.estimate for e in estimates), "", 0, 0
    )  # fmt: skip
    for line in (*estimates, total):
        numbers = (f"{line.floor:.0f}", f"{line.estimate:.0f}")
        result.add_row(line.kernel, line.way, *numbers, line.bound, str(line.registers or ""), str(line.programs or ""))
    return result


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", nargs="+", choices=MODELS, default=["albert-base", "minilm"])
    parser.add_argument("--tokens", type=int, default=65536)
    parser.add_argument("--json", type=Path, help="also write the rows to this file")
    chosen = parser.parse_args(arguments)
    rows = {}
    for name in chosen.model:
        estimates = layer(name, MODELS[name], chosen.tokens, torch.bfloat16, load("h200"))
        Console(width=120).print(table(name, chosen.tokens, estimates))
        rows[name] = [asdict(line) for line in estimates]
    if chosen.json is not None:
        chosen.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
