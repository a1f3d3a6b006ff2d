"""The modules of a SentenceTransformer that run behind what the kernels compute in one pass.

On the CPU they become the engine's steps, which run on the kernels: no OpenMP thread of torch's is waked, so that they
work after a fork and leave no thread spinning. What a step cannot say runs as the module itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from sentence_transformers.base.modules import Dense, Normalize
from sentence_transformers.sentence_transformer.modules import Dropout, LayerNorm
from torch import Tensor, nn

from fastsal.backends.cpu import as_floats
from fastsal.engine.pipeline import DenseStep, LayerNormStep, NormalizeStep, Step
from fastsal.engine.spec import LayerNorm as NormWeights
from fastsal.modules.architectures.activations import activation_name
from fastsal.modules.forks import one_thread_if_forked
from fastsal.modules.linear import is_hooked


@dataclass(frozen=True)
class ModuleStep:
    """A module as it is, in the dtype of its parameters."""

    module: nn.Module

    def __call__(self, rows: np.ndarray, threads: int) -> np.ndarray:
        dtype = next((parameter.dtype for parameter in self.module.parameters()), torch.float32)
        with one_thread_if_forked():
            return as_floats(run_module(self.module, torch.from_numpy(rows).to(dtype)))


class _NothingStep:
    def __call__(self, rows: np.ndarray, threads: int) -> np.ndarray:
        return rows


def make_step(module: nn.Module) -> Step:
    """What computes `module`, one that `fastsal.sentence_transformers.pipeline` lets through, on the CPU."""
    if is_hooked(module) or not _writes_embedding(module) or not all(map(_is_plain, module.parameters())):
        return ModuleStep(module)
    if type(module) is Dense and _is_plain_linear(module.linear):
        activation = _plain_activation(module)
        residual: Any = _residual(module)
        if activation is not None and residual is not False:
            bias = module.linear.bias
            return DenseStep(
                as_floats(module.linear.weight), None if bias is None else as_floats(bias), activation, residual
            )
    if type(module) is LayerNorm and type(module.norm) is nn.LayerNorm and not is_hooked(module.norm):
        norm = module.norm
        if norm.weight is not None and norm.bias is not None and norm.weight.dim() == 1:
            return LayerNormStep(NormWeights(as_floats(norm.weight), as_floats(norm.bias)), norm.eps)
    if type(module) is Normalize:
        return NormalizeStep()
    if type(module) is Dropout and type(module.dropout_layer) is nn.Dropout and not is_hooked(module.dropout_layer):
        return _NothingStep()
    return ModuleStep(module)


def run_module(module: nn.Module, embeddings: Tensor) -> Tensor:
    """Sentence embeddings (B, D) through `module`: (B, D')."""
    return module({"sentence_embedding": embeddings, "modality": "text"})["sentence_embedding"]


def _writes_embedding(module: Any) -> bool:
    return getattr(module, "module_output_name", "sentence_embedding") == "sentence_embedding"


def _is_plain(parameter: Tensor) -> bool:
    """Whether `parameter` holds numbers that can be read as they are: plain, on the CPU, not freed."""
    plain = type(parameter) in (Tensor, nn.Parameter) and parameter.is_cpu and parameter.layout is torch.strided
    return plain and parameter.dtype.is_floating_point and parameter.data_ptr() != 0


def _is_plain_linear(layer: nn.Module) -> bool:
    return type(layer) is nn.Linear and not is_hooked(layer) and layer.weight.dim() == 2


def _plain_activation(module: Any) -> str | None:
    activation = module.activation_function
    return activation_name(activation) if isinstance(activation, nn.Module) and not is_hooked(activation) else None


def _residual(module: Any) -> np.ndarray | bool | None:
    """As of a DenseStep; False where the module's is something else."""
    if not module.use_residual:
        return None
    if module.in_features == module.out_features:
        return True
    plain = _is_plain_linear(module.residual) and module.residual.bias is None
    return as_floats(module.residual.weight) if plain else False
