"""Lets callers on any streams and threads use the same GPU memory one after the other."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch


class StreamOrder:
    """Turns with the memory of one owner on `device`. On a CPU (Triton's interpreter) only threads are ordered.

    Memory that is freed belongs to the stream that allocated it again, whoever computes in it on another stream: an
    owner calls `finish` before it frees some in a turn, and `wait` before it goes.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._lock = threading.Lock()
        self._last = torch.cuda.Event() if device.type == "cuda" else None

    @contextmanager
    def turn(self) -> Iterator[None]:
        """The memory for this thread and its current stream alone, with the device as the current one."""
        with self._lock:
            if self._last is None:
                yield
                return
            with torch.cuda.device(self._device):
                stream = torch.cuda.current_stream(self._device)
                stream.wait_event(self._last)
                try:
                    yield
                finally:
                    self._last.record(stream)

    def finish(self) -> None:
        """Inside a turn: wait on the host for this turn's work and so for all before it."""
        if self._last is not None:
            torch.cuda.current_stream(self._device).synchronize()

    def wait(self) -> None:
        """Outside of turns: wait on the host for the last one's work."""
        if self._last is not None:
            self._last.synchronize()
