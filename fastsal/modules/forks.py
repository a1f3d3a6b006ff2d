"""The reference in a forked process: on one thread, since the others it would wait for do not exist."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from fastsal.engine.forks import is_forked

_TOKENIZERS = "TOKENIZERS_PARALLELISM"


@contextmanager
def one_thread_if_forked() -> Iterator[None]:
    """In a forked process let torch and the tokenizers library start no threads meanwhile: they would wait for those
    that the parent had. Both settings are the process's."""
    if not is_forked():
        yield
        return
    threads, parallelism = torch.get_num_threads(), os.environ.get(_TOKENIZERS)
    torch.set_num_threads(1)
    os.environ[_TOKENIZERS] = "false"
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        if parallelism is None:
            del os.environ[_TOKENIZERS]
        else:
            os.environ[_TOKENIZERS] = parallelism
