"""Launches recorded once and replayed with one call."""

from __future__ import annotations

import threading
from collections.abc import Callable

import torch

#: CUDA allows one capture at a time in a process, whichever encoder makes it.
_CAPTURING = threading.Lock()


def captured(compute: Callable[[], None], device: torch.device) -> Callable[[], None]:
    """`compute` as a CUDA graph's replay; itself on a CPU (Triton's interpreter).

    `compute` has been called before: a capture can neither compile nor load kernels. It must not call cuBLAS, whose
    workspace torch frees with any graph of the stream.

    Raises:
        RuntimeError: the capture failed, as it does when another thread synchronises the device meanwhile. The current
            stream is as before.
    """
    if device.type != "cuda":
        return compute
    graph = torch.cuda.CUDAGraph()
    # A stream of this device: torch's own capture stream is on the device of the process's first capture. The stream
    # around it comes back even where torch.cuda.graph fails in leaving.
    with _CAPTURING, torch.cuda.stream(torch.cuda.current_stream(device)):
        stream = torch.cuda.Stream(device)
        # other threads may go on using CUDA
        with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
            compute()
    return graph.replay
