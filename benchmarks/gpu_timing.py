"""Clocks for the GPU benchmarks, and the rehearsal's, which calls once and measures nothing."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

#: What a rehearsal gives for every time.
REHEARSED_SECONDS = 1e-6


@dataclass(frozen=True)
class Clock:
    """Seconds that calls take."""

    rehearses: bool

    @property
    def device(self) -> torch.device:
        """Of models."""
        return torch.device("cpu" if self.rehearses else "cuda")

    @property
    def kernel_device(self) -> torch.device:
        """Of what kernels get, at their real sizes: a rehearsal's launches compute nothing."""
        return torch.device("meta" if self.rehearses else "cuda")

    def kernel(self, call: Callable[[], Any], warm: bool = False) -> float:
        """Median time on the GPU of a call that only launches; `warm`: with what fits in L2 in it, and no gaps."""
        if self.rehearses:
            call()
            return REHEARSED_SECONDS
        from triton.testing import do_bench, do_bench_cudagraph

        if warm:
            return do_bench_cudagraph(call, rep=10, return_mode="median") / 1e3
        return do_bench(call, warmup=5, rep=20, return_mode="median") / 1e3

    def wall(self, call: Callable[[], Any], budget: float = 0.5) -> dict[str, float]:
        """Median seconds from a call to its result on the GPU, and of the host's part: until the call returns."""
        if self.rehearses:
            call()
            return {"seconds": REHEARSED_SECONDS, "host_seconds": REHEARSED_SECONDS}
        for _ in range(2):  # the first call compiles, the second captures a graph
            call()
        torch.cuda.synchronize()
        totals: list[float] = []
        hosts: list[float] = []
        end = time.perf_counter() + budget
        while len(totals) < 2 or (time.perf_counter() < end and len(totals) < 200):
            start = time.perf_counter()
            call()
            hosts.append(time.perf_counter() - start)
            torch.cuda.synchronize()
            totals.append(time.perf_counter() - start)
        return {"seconds": statistics.median(totals), "host_seconds": statistics.median(hosts)}


def matrix_peak(clock: Clock, dtype: torch.dtype) -> float:
    """Operations/s of a large cuBLAS product of random numbers."""
    size = 8192
    a, b = (torch.randn(size, size, device=clock.kernel_device).to(dtype) for _ in range(2))
    return 2 * size**3 / clock.kernel(lambda: torch.mm(a, b))


def copy_bandwidth(clock: Clock) -> float:
    """Bytes/s, read and written, of a copy of 1 GiB."""
    source = torch.empty(1 << 30, dtype=torch.uint8, device=clock.kernel_device)
    target = torch.empty_like(source)
    return 2 * source.numel() / clock.kernel(lambda: target.copy_(source))
