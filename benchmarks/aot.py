"""Ahead-of-time compilation of the Triton kernels exactly as their launchers would launch them, without a GPU."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction

TARGETS = {
    "sm_80": GPUTarget("cuda", 80, 32),
    "sm_90": GPUTarget("cuda", 90, 32),
}

#: Per multiprocessor, from the vendor's programming guide: registers of 4 bytes, shared memory in bytes in all and for
#: one program, threads.
LIMITS = {
    "sm_80": {"registers": 65536, "shared": 164 << 10, "program_shared": 163 << 10, "threads": 2048},
    "sm_90": {"registers": 65536, "shared": 228 << 10, "program_shared": 227 << 10, "threads": 2048},
}

_TYPES = {
    torch.float16: "fp16",
    torch.bfloat16: "bf16",
    torch.float32: "fp32",
    torch.int32: "i32",
    torch.int64: "i64",
}
_DIVISIBLE = [["tt.divisibility", 16]]


@dataclass(frozen=True)
class Launch:
    """One kernel launch as recorded.

    Attributes:
        kernel: the function.
        signature, constants, attributes: what `triton.compiler.ASTSource` takes.
        options: num_warps, num_stages, maxnreg.
        grid: number of programs.
        values: all arguments, by name.
    """

    kernel: JITFunction
    signature: dict[str, str]
    constants: dict[str, object]
    attributes: dict[tuple[int], list]
    options: dict[str, int]
    grid: int
    values: dict[str, Any]


@dataclass(frozen=True)
class Compiled:
    """What the compiler made of a launch for one target.

    Attributes:
        registers: per thread; spilled: bytes of stack per thread; shared: bytes per program.
        programs: that fit on one multiprocessor at a time, by registers, shared memory and threads.
        matrix_instructions: names found in the assembly, with their counts.
    """

    registers: int
    spilled: int
    shared: int
    programs: int
    matrix_instructions: dict[str, int] = field(hash=False)


def record(launch: Callable[[], None]) -> list[Launch]:
    """The kernel launches that `launch` would make; its tensors are on the meta device."""
    launches: list[Launch] = []
    with recorded(launches):
        launch()
    return launches


@contextmanager
def recorded(launches: list[Launch]):
    def run(self: JITFunction, *args: object, grid: tuple[int, ...], warmup: bool, **kwargs: object) -> None:
        options = {name: kwargs.pop(name) for name in ("num_warps", "num_stages", "maxnreg") if name in kwargs}
        values = {**dict(zip(self.arg_names, args, strict=False)), **kwargs}
        signature, constants, attributes = {}, {}, {}
        for position, name in enumerate(self.arg_names):
            value, parameter = values[name], self.params[position]
            special = not parameter.do_not_specialize
            if parameter.is_constexpr or value is None or (type(value) is int and value == 1 and special):
                signature[name], constants[name] = "constexpr", value
            elif isinstance(value, Tensor):
                signature[name] = f"*{_TYPES[value.dtype]}"
                # torch's allocations start at multiples of 512 bytes; a view may not
                if value.storage_offset() * value.element_size() % 16 == 0:
                    attributes[(position,)] = _DIVISIBLE
            elif isinstance(value, int):
                signature[name] = "i32" if -(2**31) <= value < 2**31 else "i64"
                if value % 16 == 0 and special:
                    attributes[(position,)] = _DIVISIBLE
            else:
                signature[name] = "fp32"
        launches.append(Launch(self, signature, constants, attributes, options, grid[0], values))

    with mock.patch.object(JITFunction, "run", run):
        yield


def compile_launch(launch: Launch, target_name: str) -> Compiled:
    """Compile for one of TARGETS; results are cached by Triton itself."""
    binary = _binary(launch, target_name)
    num_warps, shared = binary.metadata.num_warps, binary.metadata.shared
    registers, spilled = _resources(_cuobjdump("-res-usage", binary.asm["cubin"]))
    found = re.findall(r"\b(wgmma\.mma_async|mma\.sync)\b", binary.asm["ptx"])
    instructions = {name: found.count(name) for name in sorted(set(found))}
    return Compiled(registers, spilled, shared, _programs(target_name, registers, shared, num_warps), instructions)


def machine_code(launch: Launch, target_name: str) -> str:
    """The listing of a launch's instructions (SASS)."""
    return _cuobjdump("-sass", _binary(launch, target_name).asm["cubin"])


def _binary(launch: Launch, target_name: str) -> Any:
    source = ASTSource(launch.kernel, launch.signature, launch.constants, launch.attributes)
    return triton.compile(source, target=TARGETS[target_name], options=dict(launch.options))


def _cuobjdump(option: str, cubin: bytes) -> str:
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        return subprocess.run([tool, option, file.name], capture_output=True, text=True, check=True).stdout


def _resources(listing: str) -> tuple[int, int]:
    """Registers and bytes of stack per thread, as ptxas allotted them."""
    registers, stack = re.search(r"REG:(\d+)", listing), re.search(r"STACK:(\d+)", listing)
    if registers is None or stack is None:
        raise RuntimeError(f"cuobjdump reported no resources: {listing!r}")
    return int(registers[1]), int(stack[1])


def _programs(target_name: str, registers: int, shared: int, num_warps: int) -> int:
    """Programs at a time; registers are allotted to a warp in units of 8 per thread."""
    limits, threads = LIMITS[target_name], num_warps * TARGETS[target_name].warp_size
    per_thread = -(-max(registers, 1) // 8) * 8
    return min(
        limits["registers"] // (per_thread * threads),
        limits["threads"] // threads,
        # one kilobyte of each program's shared memory belongs to the system
        limits["shared"] // (shared + 1024) if shared else limits["threads"] // threads,
    )
