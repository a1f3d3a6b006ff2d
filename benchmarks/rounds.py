"""How often a benchmark runs, so that the whole suite stays within its minutes."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")

#: Of the rounds together, by default and with --full.
SECONDS, FULL_SECONDS = 1.5, 10.0

MIN_ROUNDS, MAX_ROUNDS = 2, 50


def measure(benchmark: Any, run: Callable[..., T], *args: Any, full: bool = False) -> T:
    """Time `run(*args)` after one call to warm up, in as many rounds as fit; the rounds' results are equal."""
    start = time.perf_counter()
    run(*args)
    once = time.perf_counter() - start
    rounds = int((FULL_SECONDS if full else SECONDS) / once)
    return benchmark.pedantic(run, args=args, rounds=min(max(rounds, MIN_ROUNDS), MAX_ROUNDS))
