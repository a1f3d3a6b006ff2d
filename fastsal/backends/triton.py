"""The Triton backend: whether it can run, without touching a GPU before that is asked."""

from __future__ import annotations

import importlib.util
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

import torch

from fastsal.engine.spec import EncoderSpec, EncoderWeights

if TYPE_CHECKING:
    from fastsal.backends.triton_encoder import TritonEncoder

#: What the kernels compute in; sums, statistics and softmax are float32.
_PRECISIONS = ("float32", "float16", "bfloat16")

#: Oldest Triton and GPU generation (compute capability) that the kernels are made for.
_OLDEST_TRITON = (3, 6)
_OLDEST_CAPABILITY = (8, 0)

#: Widest head and row that a program holds at once.
_MAX_HEAD_SIZE = 256
_MAX_WIDTH = 8192


class TritonBackend:
    """Triton kernels for NVIDIA GPUs."""

    name = "triton"

    def unavailable(self) -> str | None:
        if importlib.util.find_spec("triton") is None:
            return "Triton is not installed: pip install triton (it exists for Linux on x86-64)"
        installed = _installed_version()
        if tuple(int(part) for part in installed.split(".")[:2]) < _OLDEST_TRITON:
            return f"Triton {installed} is too old: pip install 'triton>=3.6', with a torch that goes with it"
        if torch.version.hip is not None:
            return "the Triton kernels are made for NVIDIA GPUs, this torch is built for AMD's (ROCm)"
        if torch.version.cuda is None:
            return f"torch {torch.__version__} is built without CUDA: install a CUDA build of torch"
        if not torch.cuda.is_available():
            return "torch finds no CUDA GPU: check nvidia-smi and CUDA_VISIBLE_DEVICES"
        if all(torch.cuda.get_device_capability(i) < _OLDEST_CAPABILITY for i in range(torch.cuda.device_count())):
            return f"the Triton kernels need compute capability 8.0 (Ampere), {torch.cuda.get_device_name(0)} is older"
        return None

    def describe(self) -> str:
        """The GPUs, and whether their configurations are measured. Only where the backend is available."""
        from fastsal.kernels.triton.tuning import tuning_for

        parts = []
        for index in range(torch.cuda.device_count()):
            tuning = tuning_for(torch.device("cuda", index))
            state = f"measured {tuning.measured}" if tuning.measured else "not measured"
            parts.append(f"{torch.cuda.get_device_name(index)} (configuration {tuning.name}, {state})")
        return f"{', '.join(parts)}; {', '.join(_PRECISIONS)}"

    def unsupported(self, spec: EncoderSpec, dtype: str, device: torch.device) -> str | None:
        if device.type != "cuda":
            return f"the Triton kernels need the model on a GPU, it is on {device}: model.to('cuda')"
        if dtype not in _PRECISIONS:
            return f"the Triton kernels compute in {', '.join(_PRECISIONS)}, not in {dtype}"
        if torch.cuda.get_device_capability(device) < _OLDEST_CAPABILITY:
            return f"the Triton kernels need compute capability 8.0 (Ampere), {device} is older"
        return unsupported_sizes(spec)

    def prepare(self, spec: EncoderSpec, weights: EncoderWeights, dtype: str) -> TritonEncoder:
        from fastsal.backends.triton_encoder import TritonEncoder

        return TritonEncoder(spec, weights, dtype)


def _installed_version() -> str:
    try:
        return version("triton")
    except PackageNotFoundError:  # torch's nightly builds bring a package of another name
        import triton

        return triton.__version__


def unsupported_sizes(spec: EncoderSpec) -> str | None:
    """Why the kernels cannot compute an encoder of these sizes, or None."""
    if spec.head_size > _MAX_HEAD_SIZE:
        return f"the Triton kernels take heads of at most {_MAX_HEAD_SIZE}, this model's have {spec.head_size}"
    for name, width in (("hidden", spec.hidden_size), ("embedding", spec.embedding_size)):
        if width > _MAX_WIDTH:
            return f"the Triton kernels take a {name} size of at most {_MAX_WIDTH}, this model has {width}"
    return None
