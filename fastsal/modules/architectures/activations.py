"""Activation modules -> the names in `fastsal.engine.spec.ACTIVATIONS`, by the live module's class and settings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn
from torch.nn import functional
from transformers import activations

from fastsal.modules.architectures.reader import ModuleReader, UnreadableError

#: Classes whose every instance computes the same function. gelu_fast's rounded constant differs from sqrt(2 / pi) by
#: 4e-12, relative: far below float32's resolution.
_FIXED: dict[type[nn.Module], str] = {
    activations.LinearActivation: "linear",
    nn.Identity: "linear",
    nn.ReLU: "relu",
    activations.ReLUSquaredActivation: "relu2",
    nn.ReLU6: "relu6",
    nn.Sigmoid: "sigmoid",
    activations.SiLUActivation: "silu",
    nn.SiLU: "silu",
    nn.Tanh: "tanh",
    nn.Mish: "mish",
    activations.NewGELUActivation: "gelu_tanh",
    activations.FastGELUActivation: "gelu_tanh",
    activations.AccurateGELUActivation: "gelu_tanh",
    activations.GELUTanh: "gelu_tanh",
    activations.QuickGELUActivation: "quick_gelu",
    activations.LaplaceActivation: "laplace",
    nn.Hardswish: "hardswish",
}

if hasattr(activations, "SqrtSoftplusActivation"):  # newer transformers only
    _FIXED[activations.SqrtSoftplusActivation] = "sqrtsoftplus"


def read_activation(reader: ModuleReader, parent: nn.Module, name: str) -> str:
    """The name of the elementwise function that ``parent.<name>`` computes.

    Raises:
        UnreadableError: it has parameters, is a plain callable, or is unknown.
    """
    module = reader.any_child(parent, name)
    known = activation_name(module, reader.attribute)
    if known is None:
        raise UnreadableError(f"the activation {module} is not one that the kernels compute")
    return known


def activation_name(module: nn.Module, attribute: Callable[[Any, str], Any] = getattr) -> str | None:
    """The function of an activation module as named in `fastsal.engine.spec.ACTIVATIONS`, or None; `attribute` reads
    the module's settings."""
    activation_class = type(module)
    if activation_class in _FIXED:
        return _FIXED[activation_class]
    if activation_class is activations.GELUActivation:
        implementation = attribute(module, "act")
        if implementation in (functional.gelu, module._gelu_python):
            return "gelu"
    if activation_class is nn.GELU:
        return "gelu_tanh" if attribute(module, "approximate") == "tanh" else "gelu"
    if activation_class is activations.MishActivation:
        implementation = attribute(module, "act")
        if implementation in (functional.mish, module._mish_python):
            return "mish"
    if activation_class is nn.LeakyReLU and attribute(module, "negative_slope") == 0.01:
        return "leaky_relu"
    if activation_class is activations.ClippedGELUActivation:
        limits = (attribute(module, "min"), attribute(module, "max"))
        if limits == (-10, 10):
            return "gelu_10"
    return None
