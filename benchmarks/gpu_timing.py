"""Clocks for the GPU benchmarks, and the rehearsal of them, which has none."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Clock:
    """Seconds that calls take; None in a rehearsal, which calls once."""

    device: torch.device

    @property
    def rehearses(self) -> bool:
        return self.device.type != "cuda"

    def kernel(self, call: Callable[[], Any]) -> float | None:
        """Median time on the GPU, with a cold L2, of a call that only launches."""
        if self.rehearses:
            call()
            return None
        from triton.testing import do_bench

        return do_bench(call, warmup=10, rep=40, return_mode="median") / 1e3

    def wall(self, call: Callable[[], Any], budget: float = 1.5) -> float | None:
        """Median time from a call to its result on the GPU, work on the host included."""
        if self.rehearses:
            call()
            return None
        for _ in range(2):  # the first call compiles, the second captures a graph
            call()
        torch.cuda.synchronize(self.device)
        times: list[float] = []
        end = time.perf_counter() + budget
        while len(times) < 2 or (time.perf_counter() < end and len(times) < 200):
            start = time.perf_counter()
            call()
            torch.cuda.synchronize(self.device)
            times.append(time.perf_counter() - start)
        return statistics.median(times)


def matrix_peak(clock: Clock, dtype: torch.dtype) -> float | None:
    """Operations/s of a large cuBLAS product of random numbers."""
    size = 64 if clock.rehearses else 8192
    a, b = (torch.randn(size, size, device=clock.device).to(dtype) for _ in range(2))
    seconds = clock.kernel(lambda: torch.mm(a, b))
    return None if seconds is None else 2 * size**3 / seconds


def ratio(rival: float | None, ours: float | None) -> float | None:
    """How many times faster ours is."""
    return None if rival is None or ours is None else rival / ours
