"""What `fastsal info` shows: the machine, and what computes a model on it."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch
from sentence_transformers import SentenceTransformer
from torch import nn

from fastsal.backends import backends
from fastsal.modules.architectures import read_encoder
from fastsal.modules.encoders import fast_encoders

_PACKAGES = ("fastsal", "torch", "transformers", "sentence-transformers", "tokenizers", "numpy")


def machine_information() -> dict[str, str]:
    """Versions, processor, threads, and what each backend runs on or why it cannot, by label."""
    information = {package: _version(package) for package in _PACKAGES}
    information["python"] = f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    information["processor"] = _processor()
    information["threads"] = str(torch.get_num_threads())
    for name, status in backends().items():
        information[f"backend {name}"] = f"{'available' if status.available else 'not available'}: {status.detail}"
    return information


def model_information(model: nn.Module) -> dict[str, str]:
    """Architecture, sizes and the path of each accelerated encoder in `model`, by label."""
    information = {"model": type(model).__name__}
    if isinstance(model, SentenceTransformer):
        information["modules"] = " -> ".join(type(module).__name__ for module in model)
        information["max_seq_length"] = str(model.max_seq_length)
    for name, encoder in fast_encoders(model).items():
        label = f"encoder {name}" if name else "encoder"
        information[label] = f"{type(encoder).__name__}, {_sizes(encoder)}"
        status = encoder.fastsal_status()
        information[f"{label} runs in"] = f"{status.backend}, {status.dtype}: {status.detail}"
    return information


def _sizes(encoder: nn.Module) -> str:
    parameters = sum(parameter.numel() for parameter in encoder.parameters())
    reading = read_encoder(encoder)
    if reading.spec is None:
        return f"{parameters:,} parameters"
    spec = reading.spec
    return (
        f"{len(spec.layer_schedule)} layers with {len(set(spec.layer_schedule))} sets of weights, "
        f"hidden {spec.hidden_size}, {spec.num_heads} heads of {spec.head_size}, feed-forward {spec.intermediate_size} "
        f"({spec.activation}), embedding {spec.embedding_size}, vocabulary {spec.vocab_size}, "
        f"positions {spec.max_positions}, {parameters:,} parameters"
    )


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _processor() -> str:
    cpu_info = Path("/proc/cpuinfo")
    if cpu_info.exists():
        for line in cpu_info.read_text(encoding="utf-8", errors="replace").splitlines():
            label, _, value = line.partition(":")
            if label.strip() == "model name":
                return value.strip()
    return platform.processor() or "unknown"
