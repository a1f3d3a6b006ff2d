"""The backends: who can compute an encoder here, and if not, why. May import torch and the engine.

One protocol: ``backend.prepare(spec, weights, dtype)`` gives a `PreparedEncoder`. Nothing above this package knows how
the numbers are made; a backend knows nothing of Hugging Face. The package can be called: `fastsal.backends()`.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from types import ModuleType
from typing import Protocol

import torch
from torch import Tensor

from fastsal.engine.packing import PackedBatch
from fastsal.engine.pooling import PoolingSpec
from fastsal.engine.spec import EncoderSpec, EncoderWeights

#: Names accepted for `backend`, in the order in which "auto" tries them.
BACKENDS = ("triton", "cpu", "reference")

#: Names accepted for `dtype`.
DTYPES = ("float32", "bfloat16", "float16", "int8")


class BackendError(RuntimeError):
    """An explicitly chosen backend or dtype cannot run here; the message says why."""


class PreparedEncoder(Protocol):
    """An encoder's weights in a backend's own layout. Safe to call from several threads at once."""

    def hidden_states(self, batch: PackedBatch, all_layers: bool = False) -> Tensor:
        """Run the encoder.

        Returns:
            (T, hidden_size), the last layer; with `all_layers` (num_layers + 1, T, hidden_size): the embeddings (after
            ALBERT's mapping) first, the last layer last. On the weights' device, float32 or the dtype computed in.

        Raises:
            IndexError: an id, type or position outside its table, found before any table is read.
        """
        ...

    def sentence_embeddings(self, batch: PackedBatch, pooling: PoolingSpec) -> Tensor:
        """Run the encoder and pool: (B, pooling.output_size(hidden_size)) float32 on the weights' device.

        Raises:
            IndexError: as `hidden_states`.
            ValueError: a sentence is shorter than a convolution needs, or the convolutions' lengths differ.
        """
        ...

    def warm_up(self, pooling: PoolingSpec) -> None:
        """Do now what the first calls of `sentence_embeddings` would have to: compile, capture."""
        ...


class Backend(Protocol):
    """A way to compute encoders."""

    name: str

    def unavailable(self) -> str | None:
        """Why this backend cannot run on this machine, or None if it can."""
        ...

    def unsupported(self, spec: EncoderSpec, dtype: str, device: torch.device) -> str | None:
        """Why this backend cannot compute `spec` in `dtype` for tensors on `device`, or None if it can."""
        ...

    def prepare(self, spec: EncoderSpec, weights: EncoderWeights, dtype: str) -> PreparedEncoder:
        """Lay the weights out for the kernels."""
        ...


@dataclass(frozen=True)
class BackendStatus:
    """Whether a backend can run on this machine."""

    name: str
    available: bool
    detail: str  # what it runs on where available, else the reason and what to do


def dtype_name(dtype: str | torch.dtype) -> str:
    """One of `DTYPES` for a name or a torch.dtype.

    Raises:
        ValueError: anything else.
    """
    name = str(dtype).removeprefix("torch.")
    if name not in DTYPES:
        raise ValueError(f"dtype must be one of {DTYPES} or the torch.dtype of that name, got {dtype!r}")
    return name


def backends() -> dict[str, BackendStatus]:
    """What can run on this machine, and for what cannot, why."""
    from fastsal.backends.cpu import CpuBackend
    from fastsal.backends.triton import TritonBackend

    statuses = {}
    for backend in (TritonBackend(), CpuBackend()):
        reason = backend.unavailable()
        statuses[backend.name] = BackendStatus(backend.name, reason is None, reason or backend.describe())
    statuses["reference"] = BackendStatus("reference", True, "the Hugging Face modules, unchanged")
    return statuses


def choose_backend(backend: str, spec: EncoderSpec, dtype: str, device: torch.device) -> tuple[Backend | None, str]:
    """Pick who computes.

    Returns:
        The backend, or None for the reference modules, and the reason for the choice in a few words.

    Raises:
        ValueError: `backend` is not a known name.
        BackendError: `backend` names one that cannot run this.
    """
    if backend not in ("auto", *BACKENDS):
        raise ValueError(f"backend must be 'auto' or one of {BACKENDS}, got {backend!r}")
    if backend == "reference":
        return None, "backend='reference' was asked for"

    from fastsal.backends.cpu import CpuBackend
    from fastsal.backends.triton import TritonBackend

    name = backend if backend != "auto" else "cpu" if device.type == "cpu" else "triton"
    chosen: Backend = TritonBackend() if name == "triton" else CpuBackend()
    reason = chosen.unavailable() or chosen.unsupported(spec, dtype, device)
    if reason is None:
        return chosen, f"the {'Triton' if name == 'triton' else 'CPU'} kernels cover this model"
    if backend != "auto" or dtype == "int8":
        raise BackendError(f"backend={backend!r} with dtype={dtype!r} cannot run: {reason}")
    return None, reason


class _CallablePackage(ModuleType):
    def __call__(self) -> dict[str, BackendStatus]:
        """As `backends`, which this package shares its name with in `fastsal`."""
        return backends()


sys.modules[__name__].__class__ = _CallablePackage
