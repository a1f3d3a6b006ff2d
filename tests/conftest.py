"""Shared fixtures. Nothing here or in any test needs a network."""

from __future__ import annotations

import os
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"  # before transformers is imported
if "PYTEST_XDIST_WORKER" in os.environ:  # before torch is: several test processes share the processors
    os.environ["OMP_NUM_THREADS"] = "1"

import pytest
import torch

# Before triton is imported anywhere: without a GPU its kernels run in its interpreter.
os.environ.setdefault("TRITON_INTERPRET", "0" if torch.cuda.is_available() else "1")


@pytest.fixture(params=["albert", "bert"])
def architecture(request) -> str:
    return request.param


@pytest.fixture
def model(architecture):
    """A tiny random AlbertModel or BertModel in eval mode."""
    from models_zoo import TINY

    return TINY[architecture]()


@pytest.fixture
def fast(model):
    """An accelerated copy of `model`."""
    import copy

    import fastsal

    return fastsal.accelerate(copy.deepcopy(model))


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The folder of data sets that FASTSAL_DATA names."""
    folder = os.environ.get("FASTSAL_DATA", "")
    if not folder or not Path(folder).is_dir():
        pytest.skip(f"FASTSAL_DATA names no folder with data sets (it is {folder!r})")
    return Path(folder)


@pytest.fixture(scope="module", params=["bert", "albert"])
def checkpoint(request, tmp_path_factory) -> Path:
    """A tiny random checkpoint with a tokenizer."""
    import tiny

    make = {"bert": tiny.bert_checkpoint, "albert": tiny.albert_checkpoint}[request.param]
    return make(tmp_path_factory.mktemp("model") / "checkpoint")


@pytest.fixture(scope="module")
def one_thread():
    """Tiny models are not worth a second thread: on a busy machine it costs ten times their work."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def no_grad():
    with torch.no_grad():
        yield
