"""Turns with the same GPU memory, with stand-ins for CUDA's streams and events."""

from __future__ import annotations

import threading
from contextlib import nullcontext

import pytest
import torch

from fastsal.backends.stream_order import StreamOrder


@pytest.fixture
def log(monkeypatch) -> list[str]:
    """What the stand-ins were asked; `streams` of a thread are its name."""
    log: list[str] = []

    class Event:
        def record(self, stream):
            log.append(f"record on {stream.name}")

        def synchronize(self):
            log.append("host waits for the last turn")

    class Stream:
        def __init__(self, name):
            self.name = name

        def wait_event(self, event):
            log.append(f"{self.name} waits")

        def synchronize(self):
            log.append(f"host waits for {self.name}")

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext(log.append(f"on {device}")))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: Stream(threading.current_thread().name))
    return log


def test_each_turn_waits_for_the_one_before_on_the_device(log):
    order = StreamOrder(torch.device("cuda", 1))

    def use():
        with order.turn():
            log.append("computes")

    for name in ("a", "b"):
        thread = threading.Thread(target=use, name=name)
        thread.start()
        thread.join()
    turns = [["on cuda:1", f"{name} waits", "computes", f"record on {name}"] for name in ("a", "b")]
    assert log == turns[0] + turns[1]


def test_a_turn_that_fails_counts(log):
    order = StreamOrder(torch.device("cuda", 1))
    with pytest.raises(ValueError, match="odd"), order.turn():
        raise ValueError("odd")
    assert log[-1] == "record on MainThread"


def test_memory_is_freed_when_nobody_computes_in_it(log):
    order = StreamOrder(torch.device("cuda", 1))
    with order.turn():
        order.finish()
        assert log[-1] == "host waits for MainThread"
    order.wait()
    assert log[-1] == "host waits for the last turn"


def test_on_a_cpu_only_threads_are_ordered(log):
    order = StreamOrder(torch.device("cpu"))
    with order.turn():
        order.finish()
    order.wait()
    assert log == []
