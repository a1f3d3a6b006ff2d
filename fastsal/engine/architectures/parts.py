"""Parts: the numbers of a config.json and the tensors of its checkpoint, checked against each other."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fastsal.engine.checkpoint import Checkpoint
from fastsal.engine.errors import UnsupportedModelError
from fastsal.engine.spec import LayerNorm, Linear

#: transformers' `ACT2FN` -> `fastsal.engine.spec.ACTIVATIONS`. gelu_fast and gelu_accurate round a constant of the tanh
#: form in other ways, far below float32's resolution.
_ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_10": "gelu_10",
    "gelu_accurate": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_new": "gelu_tanh",
    "gelu_python": "gelu",
    "gelu_python_tanh": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "laplace": "laplace",
    "leaky_relu": "leaky_relu",
    "linear": "linear",
    "mish": "mish",
    "quick_gelu": "quick_gelu",
    "relu": "relu",
    "relu2": "relu2",
    "relu6": "relu6",
    "sigmoid": "sigmoid",
    "silu": "silu",
    "swish": "silu",
    "tanh": "tanh",
}


class Parts:
    """Reads an encoder's parts by their names in the checkpoint.

    Args:
        path: of config.json, for messages.
        config: its content.
        checkpoint: the weights.
        prefix: what stands before every name where the checkpoint is of a model with a head around the encoder.
    """

    def __init__(self, path: Path, config: Mapping[str, Any], checkpoint: Checkpoint, prefix: str) -> None:
        self.path, self._config, self._checkpoint = path, config, checkpoint
        self._prefix = prefix if any(name.startswith(prefix) for name in checkpoint.names) else ""

    def count(self, key: str, default: int) -> int:
        """A positive number of the configuration; `default` is the architecture's."""
        value = self._config.get(key, default)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ValueError(f"{self.path}: {key} must be a positive number, it is {value!r}")
        return value

    def head_size(self, hidden_size: int, num_heads: int) -> int:
        if hidden_size % num_heads:
            raise ValueError(
                f"{self.path}: hidden_size {hidden_size} must be a multiple of num_attention_heads {num_heads}"
            )
        return hidden_size // num_heads

    def epsilon(self) -> float:
        value = self._config.get("layer_norm_eps", 1e-12)
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 <= value < 1:
            raise ValueError(f"{self.path}: layer_norm_eps must be a small positive number, it is {value!r}")
        return float(value)

    def activation(self, default: str) -> str:
        name = self._config.get("hidden_act", default)
        if not isinstance(name, str) or name not in _ACTIVATIONS:
            raise UnsupportedModelError(f"{self.path}: the activation {name!r} is not one that the kernels compute")
        return _ACTIVATIONS[name]

    def table(self, name: str, rows: int, columns: int) -> Any:
        """(rows, columns)."""
        return self._checkpoint.array(f"{self._prefix}{name}.weight", (rows, columns))

    def linear(self, name: str, in_features: int, out_features: int) -> Linear:
        return Linear(
            self._checkpoint.array(f"{self._prefix}{name}.weight", (out_features, in_features)),
            self._checkpoint.array(f"{self._prefix}{name}.bias", (out_features,)),
        )

    def layer_norm(self, name: str, size: int) -> LayerNorm:
        """Weight and bias, which checkpoints converted from TensorFlow call gamma and beta."""
        name = f"{self._prefix}{name}"
        weight, bias = ("gamma", "beta") if f"{name}.gamma" in self._checkpoint else ("weight", "bias")
        return LayerNorm(
            self._checkpoint.array(f"{name}.{weight}", (size,)), self._checkpoint.array(f"{name}.{bias}", (size,))
        )
