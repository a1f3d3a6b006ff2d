"""Whether the Triton backend can run, and what it says where it cannot."""

from __future__ import annotations

import importlib
import importlib.util
from dataclasses import replace
from importlib.metadata import PackageNotFoundError

import pytest
import torch
from random_encoder import random_encoder

from fastsal.backends import BackendError, backends, choose_backend
from fastsal.backends.triton import TritonBackend, unsupported_sizes

# the function fastsal.backends hides the package of its name from `import ... as`
triton_backend = importlib.import_module("fastsal.backends.triton")

SPEC = random_encoder()[0]


@pytest.fixture
def gpu(monkeypatch):
    """A GPU, as far as anyone asks; nothing is computed on it."""
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (9, 0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device=None: "NVIDIA H200")


def test_reasons_tell_what_to_do(gpu, monkeypatch):
    assert TritonBackend().unavailable() is None
    for place, name, value, message in (
        (torch.cuda, "get_device_capability", lambda device=None: (7, 5), "compute capability 8.0"),
        (torch.cuda, "is_available", lambda: False, "nvidia-smi"),
        (torch.version, "cuda", None, "install a CUDA build of torch"),
        (torch.version, "hip", "6.4", "made for NVIDIA GPUs"),
        (triton_backend, "version", lambda name: "3.5.1", "Triton 3.5.1 is too old: pip install"),
        (importlib.util, "find_spec", lambda name: None, "pip install triton"),
    ):
        monkeypatch.setattr(place, name, value)
        assert message in TritonBackend().unavailable()


def test_triton_under_another_package_name(gpu, monkeypatch):
    def version(name):
        raise PackageNotFoundError(name)

    monkeypatch.setattr(triton_backend, "version", version)
    assert TritonBackend().unavailable() is None
    monkeypatch.setattr("triton.__version__", "3.5.0")
    assert "Triton 3.5.0 is too old" in TritonBackend().unavailable()


def test_status_of_a_gpu(gpu):
    status = backends()["triton"]
    assert status.available
    assert "NVIDIA H200 (configuration h200" in status.detail


def test_auto_takes_triton_for_a_model_on_a_gpu(gpu):
    for dtype in ("float32", "float16", "bfloat16"):
        for name in ("auto", "triton"):
            chosen, reason = choose_backend(name, SPEC, dtype, torch.device("cuda", 0))
            assert chosen.name == "triton"
            assert "Triton" in reason
    assert choose_backend("auto", SPEC, "float32", torch.device("cpu"))[0].name == "cpu"


def test_what_triton_cannot_compute(gpu):
    cuda = torch.device("cuda", 0)
    wide_heads = replace(SPEC, head_size=512)
    assert choose_backend("auto", wide_heads, "float16", cuda) == (None, unsupported_sizes(wide_heads))
    with pytest.raises(BackendError, match="heads of at most 256, this model's have 512"):
        choose_backend("triton", wide_heads, "float16", cuda)
    with pytest.raises(BackendError, match="on a GPU, it is on cpu"):
        choose_backend("triton", SPEC, "float16", torch.device("cpu"))
    with pytest.raises(BackendError, match="not in int8"):
        choose_backend("auto", SPEC, "int8", cuda)
    assert "embedding size of at most 8192" in unsupported_sizes(replace(SPEC, embedding_size=9000))
    assert unsupported_sizes(SPEC) is None


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_the_reason_is_given():
    status = backends()["triton"]
    assert not status.available
    assert "torch" in status.detail
    with pytest.raises(BackendError, match="backend='triton' with dtype='float32' cannot run: torch"):
        choose_backend("triton", SPEC, "float32", torch.device("cpu"))
