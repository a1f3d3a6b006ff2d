"""A driver for Triton without a GPU: launches compile for sm_90, as on the GPU, and then do nothing.

Kernels land in Triton's cache under the keys that the GPU's launches look up; `triton.compile` has other ones. The
stub takes the place of the driver for the whole process.
"""

from __future__ import annotations

from typing import Any

import torch
from triton.backends.compiler import GPUTarget
from triton.backends.driver import DriverBase
from triton.runtime import driver


class _Utils:
    def load_binary(self, name: str, kernel: bytes, shared: int, device: int) -> tuple[int, ...]:
        return (0, 0, 0, 0, 1024)  # module, function, registers, spills, most threads

    def get_device_properties(self, device: int) -> dict[str, int]:
        return {"max_shared_mem": 227 << 10, "multiprocessor_count": 132, "max_num_regs": 65536, "warpSize": 32}


class _Launcher:
    def __init__(self, source: Any, metadata: Any) -> None: ...

    def __call__(self, *arguments: Any) -> None: ...


class StubDriver(DriverBase):
    """An H200 that computes nothing."""

    def __init__(self) -> None:
        self.utils = _Utils()
        self.launcher_cls = _Launcher

    @classmethod
    def is_active(cls) -> bool:
        return True

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cpu")

    def map_python_to_cpp_type(self, name: str) -> str:
        return name

    def get_benchmarker(self) -> None: ...


def install() -> None:
    """Make the stub Triton's driver."""
    driver.set_active(StubDriver())
