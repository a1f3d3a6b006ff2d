"""ModuleReader: takes parameters out of a module tree, and refuses whatever is not exactly as expected."""

from __future__ import annotations

from itertools import chain
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from fastsal.engine.spec import LayerNorm, Linear
from fastsal.modules.weights_watch import ModuleWatch

M = TypeVar("M", bound=nn.Module)


class UnreadableError(Exception):
    """The module computes something that the kernels do not; the message says what."""


class ModuleReader:
    """Walks a module tree and records in `watch` what it looked at, also when it then refuses."""

    def __init__(self, root: nn.Module) -> None:
        self.watch = ModuleWatch(root)
        self._names = {id(root): ""}

    def child(self, parent: nn.Module, name: str, expected: type[M]) -> M:
        """``parent.<name>``, which must be exactly an `expected`: a subclass may compute anything."""
        module = self.any_child(parent, name)
        if type(module) is not expected:
            raise UnreadableError(f"{self._name(module)} is a {_class_name(module)}, not a plain {expected.__name__}")
        return module

    def any_child(self, parent: nn.Module, name: str) -> nn.Module:
        """``parent.<name>``, a module of any class whose forward is its class's own and is not hooked."""
        module = parent._modules.get(name)
        path = f"{self._names[id(parent)]}.{name}".lstrip(".")
        if module is None:
            raise UnreadableError(f"{path} is not a module")
        self._names[id(module)] = path
        self.watch.add_module(module)
        if has_other_forward(module):
            raise UnreadableError(f"{path} has its forward method replaced")
        self.own_forward(type(module))
        for hook in chain(module._forward_hooks.values(), module._forward_pre_hooks.values()):
            if _makes_inputs_require_grad(hook):
                self.watch.add_gradient_hook()
            elif not _is_idle_recorder(hook):
                raise UnreadableError(f"{path} has forward hooks, which the kernels would not run")
        return module

    def own_forward(self, module_class: type[nn.Module]) -> None:
        """Make sure that the class computes with the method that it was defined with, not with one put in its place."""
        owner = next(base for base in module_class.__mro__ if "forward" in base.__dict__)
        if getattr(owner.__dict__["forward"], "__module__", None) != owner.__module__:
            raise UnreadableError(f"the forward method of {owner.__module__}.{owner.__qualname__} was replaced")

    def children(self, parent: nn.Module, name: str, expected: type[M]) -> list[M]:
        """The members of the ModuleList ``parent.<name>``."""
        members = self.child(parent, name, nn.ModuleList)
        return [self.child(members, key, expected) for key in members._modules]

    def attribute(self, owner: Any, name: str) -> Any:
        """``owner.<name>`` of a module or config, None if there is none."""
        self.watch.add_attribute(owner, name)
        return getattr(owner, name, None)

    def dropout(self, parent: nn.Module, name: str) -> None:
        """Make sure that ``parent.<name>`` does nothing in eval mode."""
        self.watch.add_active_in_training(self.child(parent, name, nn.Dropout))

    def linear(self, parent: nn.Module, name: str, in_features: int, out_features: int) -> Linear:
        module = self.child(parent, name, nn.Linear)
        weight = self.parameter(module, "weight", (out_features, in_features))
        return Linear(weight, self.parameter(module, "bias", (out_features,)))

    def out_features(self, parent: nn.Module, name: str) -> int:
        """Rows of ``parent.<name>``'s weight, 0 where it is no linear layer (`linear` then says so)."""
        return getattr(parent._modules.get(name), "out_features", 0)

    def layer_norm(self, parent: nn.Module, name: str, size: int) -> tuple[LayerNorm, float]:
        """Weights and eps."""
        module = self.child(parent, name, nn.LayerNorm)
        if tuple(module.normalized_shape) != (size,):
            raise UnreadableError(f"{self._name(module)} normalises {module.normalized_shape}, not ({size},)")
        weights = LayerNorm(self.parameter(module, "weight", (size,)), self.parameter(module, "bias", (size,)))
        return weights, float(self.attribute(module, "eps"))

    def embedding(self, parent: nn.Module, name: str) -> Tensor:
        """The (rows, columns) table of an nn.Embedding."""
        module = self.child(parent, name, nn.Embedding)
        if self.attribute(module, "max_norm") is not None:
            raise UnreadableError(f"{self._name(module)} renormalises its rows (max_norm)")
        return self.parameter(module, "weight", None)

    def parameter(self, module: nn.Module, name: str, shape: tuple[int, ...] | None) -> Tensor:
        """A parameter, detached: an alias of the live tensor."""
        # weights that were taken over by pruning, a parametrization or DataParallel are no longer in _parameters
        tensor = self._plain(module._parameters.get(name), f"{self._name(module)}.{name}")
        if not tensor.dtype.is_floating_point:
            raise UnreadableError(f"{self._name(module)}.{name} has dtype {tensor.dtype}, not a floating-point one")
        if (shape is None and tensor.dim() != 2) or (shape is not None and tuple(tensor.shape) != shape):
            raise UnreadableError(f"{self._name(module)}.{name} has shape {tuple(tensor.shape)}, expected {shape}")
        return tensor.detach()

    def default_ids(self, parent: nn.Module, name: str, expected: Tensor) -> None:
        """Make sure that the buffer of default ids ``parent.<name>``, if there is one, is the (1, rows) `expected`."""
        if name not in parent._buffers:
            if name in parent.__dict__:
                raise UnreadableError(f"{self._name(parent)}.{name} is not a buffer")
            return
        tensor = self._plain(parent._buffers[name], f"{self._name(parent)}.{name}")
        if tensor.is_meta or expected.is_meta:
            raise UnreadableError("the model is on the meta device, it has no weights")
        if tensor.shape != expected.shape or not torch.equal(tensor, expected):
            raise UnreadableError(f"{self._name(parent)}.{name} was changed from its default")

    def check_tensors_agree(self) -> None:
        """All parameters must have one dtype and device."""
        for what, values in (("dtypes", self.watch.float_dtypes), ("devices", self.watch.devices)):
            if len(values) > 1:
                raise UnreadableError(f"the parameters have different {what}: {sorted(map(str, values))}")

    def _plain(self, tensor: Tensor | None, path: str) -> Tensor:
        if tensor is None:
            raise UnreadableError(f"{path} is missing, or computed from other tensors")
        if type(tensor) not in (nn.Parameter, Tensor) or tensor.layout is not torch.strided:
            raise UnreadableError(f"{path} is a {type(tensor).__name__} of layout {tensor.layout}, not a plain tensor")
        if tensor.is_inference():
            raise UnreadableError(f"{path} was made in inference mode: changes of it could not be noticed")
        if tensor.is_meta:
            raise UnreadableError("the model is on the meta device, it has no weights")
        self.watch.add_tensor(tensor)
        if tensor.numel() and not tensor.data_ptr():
            raise UnreadableError(f"the memory of {path} has been freed")
        return tensor

    def _name(self, module: nn.Module) -> str:
        return self._names[id(module)]


def _is_idle_recorder(hook: Any) -> bool:
    """Whether `hook` is transformers' recorder of outputs, which acts only inside transformers' own forward."""
    module = getattr(hook, "__module__", "") or ""
    return module.startswith("transformers.utils.") and "output_capturing_hook" in getattr(hook, "__qualname__", "")


def _makes_inputs_require_grad(hook: Any) -> bool:
    """Whether `hook` is transformers' of `enable_input_require_grads`, which training with gradient checkpointing
    leaves behind: it changes no number."""
    name = getattr(hook, "__qualname__", "")
    return getattr(hook, "__module__", "") == "transformers.modeling_utils" and "enable_input_require_grads." in name


def has_other_forward(module: nn.Module) -> bool:
    """Whether the object itself has a forward that is not its class's; a bound method of that is left where another
    was taken away again (by accelerate)."""
    own = vars(module).get("forward")
    return own is not None and getattr(own, "__func__", None) is not type(module).forward


def _class_name(module: nn.Module) -> str:
    return f"{type(module).__module__}.{type(module).__qualname__}"
