"""Capturing with stand-ins for CUDA: one at a time, on the device's own stream, undone where it fails."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager

import pytest
import torch

from fastsal.backends.cuda_graph import captured

DEVICE = torch.device("cuda", 1)


class FakeCuda:
    """The parts of torch.cuda that a capture uses; `fails` makes the end of one raise, as CUDA does."""

    def __init__(self) -> None:
        self.current = "the caller's stream"
        self.underway, self.most_underway = 0, 0
        self.streams: list[torch.device] = []
        self.modes: list[str] = []
        self.fails = False

    def install(self, monkeypatch) -> None:
        monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: type("Graph", (), {"replay": lambda self: None})())
        monkeypatch.setattr(torch.cuda, "Stream", self._stream)
        monkeypatch.setattr(torch.cuda, "current_stream", lambda device: self.current)
        monkeypatch.setattr(torch.cuda, "stream", self._on_stream)
        monkeypatch.setattr(torch.cuda, "graph", self._graph)

    def _stream(self, device):
        self.streams.append(device)
        return f"stream {len(self.streams)}"

    @contextmanager
    def _on_stream(self, stream):
        before, self.current = self.current, stream
        try:
            yield
        finally:
            self.current = before

    @contextmanager
    def _graph(self, graph, stream, capture_error_mode):
        self.modes.append(capture_error_mode)
        self.current = stream
        self.underway += 1
        self.most_underway = max(self.most_underway, self.underway)
        time.sleep(0.01)
        yield
        self.underway -= 1
        if self.fails:  # as torch.cuda.graph: the stream is not put back
            raise RuntimeError("operation failed due to a previous error during capture")
        self.current = "the caller's stream"


@pytest.fixture
def cuda(monkeypatch) -> FakeCuda:
    fake = FakeCuda()
    fake.install(monkeypatch)
    return fake


def test_a_stream_of_the_models_device(cuda):
    captured(lambda: None, DEVICE)
    assert cuda.streams == [DEVICE]
    assert cuda.modes == ["thread_local"]


def test_captures_of_two_encoders_do_not_overlap(cuda):
    threads = [threading.Thread(target=captured, args=(lambda: None, DEVICE)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(cuda.streams) == 4
    assert cuda.most_underway == 1


def test_a_failed_capture_leaves_the_callers_stream_and_the_lock(cuda):
    cuda.fails = True
    for _ in range(2):
        with pytest.raises(RuntimeError, match="during capture"):
            captured(lambda: None, DEVICE)
        assert cuda.current == "the caller's stream"
