"""Notices that a module changed since it was read: its weights, its parts, or the settings that were read from it.

A reading of a module (see `fastsal.modules.architectures`) rests on many small facts. The watch remembers them and
re-checks them before every call, so every check is a pass over a flat list: about 50 us for a hundred parameters.
"""

from __future__ import annotations

import operator
import weakref
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_module_registration_hook
from torch.optim.optimizer import register_optimizer_step_post_hook

from fastsal.backends.content import ContentSample
from fastsal.backends.fingerprint import stepped_tensors


class ModuleWatch:
    """What a reading rested on.

    Watched are, for every module added: its class and what that and its bases have as ``forward``, its children,
    parameters and buffers (by identity), its forward hooks and whether it overrides ``forward``; for every tensor
    added: version counter, memory, shape, strides and dtype, and on the CPU a sample of its content (see
    `fastsal.backends.content`); and the attributes added. Not noticed is a write that counts no version (through
    ``parameter.data``, a NumPy view, shared memory, a collective) and leaves most of a tensor as it was, unless an
    optimizer's step made it, or a module that was put into another's place meanwhile (PEFT merges adapters so).
    """

    def __init__(self, root: nn.Module) -> None:
        """`root` is watched too, and must be alive at every check. It owns the watch, so that there is no other
        reference to it here: what is in a cycle stays in memory until the garbage collector comes."""
        self._root = weakref.ref(root)
        self._root_attributes: list[str] = []
        self._modules: list[nn.Module] = []
        self._module_ids: set[int] = {id(root)}
        self._tensors: list[Tensor] = []
        self._attributes: list[tuple[dict[str, Any], str]] = []
        self._active_in_training: list[dict[str, Any]] = []
        self._inputs_require_grad = False
        self._stale = False  # tensors may have changed without a trace

    def add_module(self, module: nn.Module) -> None:
        self._modules.append(module)
        self._module_ids.add(id(module))

    def add_tensor(self, tensor: Tensor) -> None:
        """`tensor` must have a version counter, that is, not be an inference tensor."""
        self._tensors.append(tensor)

    def add_attribute(self, owner: Any, name: str) -> None:
        if owner is self._root():
            self._root_attributes.append(name)
        else:
            self._attributes.append((vars(owner), name))

    def add_gradient_hook(self) -> None:
        """A part makes its output require a gradient, whether its parameters do or not."""
        self._inputs_require_grad = True

    def add_active_in_training(self, module: nn.Module) -> None:
        """`module`, added before, computes something else in training mode (dropout)."""
        self._active_in_training.append(vars(module))

    def start(self) -> None:
        """Take the snapshot that later checks compare with."""
        _watches.add(self)
        tensors, root = self._tensors, self._root_alive()
        modules = [root, *self._modules]
        self._types = [type(module) for module in modules]
        self._namespaces_of_classes = [base.__dict__ for base in {b: None for t in self._types for b in t.__mro__}]
        self._forwards = [namespace.get("forward") for namespace in self._namespaces_of_classes]
        self._namespaces = [module.__dict__ for module in self._modules]
        # Empty ones stay irrelevant: nothing was read from them, and an unchanged class has no use for additions.
        self._slots: list[dict[str, Any]] = [d for m in modules for d in (m._modules, m._parameters, m._buffers) if d]
        self._contents = _all_values(self._slots)
        self._hooks = [d for m in modules for d in (m._forward_hooks, m._forward_pre_hooks)]
        self._hook_counts = list(map(len, self._hooks))
        self._own_forwards = self._forwards_of_modules()
        self._has_own_forward = "forward" in root.__dict__
        self._values = self._values_of_attributes()
        # The aliases keep the memory alive: as long as they exist no other tensor can have its address.
        self._aliases = [tensor.detach() for tensor in tensors]
        self._versions = [tensor._version for tensor in tensors]
        self._pointers = list(map(Tensor.data_ptr, tensors))
        self._dtypes = [tensor.dtype for tensor in tensors]
        self._content = ContentSample(tensors)
        self._sample = self._content.take()

    def unchanged(self) -> bool:
        """Whether everything is as it was at `start`."""
        return self.modules_unchanged() and self.tensors_unchanged()

    def modules_unchanged(self) -> bool:
        contents = _all_values(self._slots)
        return (
            len(contents) == len(self._contents)
            # `is`, as == between tensors compares their elements
            and all(map(operator.is_, contents, self._contents))
            and list(map(type, [self._root(), *self._modules])) == self._types
            and list(map(len, self._hooks)) == self._hook_counts
            and self._forwards_of_modules() == self._own_forwards
            and ("forward" in self._root_alive().__dict__) == self._has_own_forward
            and [namespace.get("forward") for namespace in self._namespaces_of_classes] == self._forwards
            and self._values_of_attributes() == self._values
        )

    def tensors_unchanged(self) -> bool:
        tensors = self._tensors
        try:
            return (
                not self._stale
                and [tensor._version for tensor in tensors] == self._versions
                and list(map(Tensor.data_ptr, tensors)) == self._pointers
                and [tensor.dtype for tensor in tensors] == self._dtypes
                # same storage, offset, shape and strides
                and all(map(Tensor.is_set_to, tensors, self._aliases))
                and self._content.take() == self._sample  # last: it reads their memory, which is there
            )
        except RuntimeError:  # `.data` was given a tensor of another kind: meta, sparse, another device
            return False

    def same_tensors(self, other: ModuleWatch) -> bool:
        """Whether both watch the same tensor objects in the same order."""
        return len(self._tensors) == len(other._tensors) and all(map(operator.is_, self._tensors, other._tensors))

    def any_training(self) -> bool:
        """Whether a part that matters is in training mode (Monte Carlo dropout in an otherwise evaluating model)."""
        return True in [namespace["training"] for namespace in self._active_in_training]

    def note_step(self, stepped: set[int]) -> None:
        """The tensors of which `stepped` holds the ids may have changed without a trace."""
        self._stale = self._stale or not stepped.isdisjoint(map(id, self._tensors))

    def note_new_child(self, parent: nn.Module) -> None:
        """`parent` was given another module, and what is in it may have been written to before it is taken back."""
        self._stale = self._stale or id(parent) in self._module_ids

    def any_requires_grad(self) -> bool:
        return self._inputs_require_grad or True in [tensor.requires_grad for tensor in self._tensors]

    def _root_alive(self) -> nn.Module:
        root = self._root()
        if root is None:
            raise RuntimeError("the module that is watched does not exist any more")
        return root

    def _forwards_of_modules(self) -> list[Any]:
        """What the modules below the root have as `forward` in place of their class's: None for most."""
        return [namespace.get("forward") for namespace in self._namespaces]

    def _values_of_attributes(self) -> list[Any]:
        own = self._root_alive().__dict__
        return [own.get(name) for name in self._root_attributes] + [d.get(name) for d, name in self._attributes]

    @property
    def float_dtypes(self) -> set[torch.dtype]:
        return {tensor.dtype for tensor in self._tensors if tensor.dtype.is_floating_point}

    @property
    def devices(self) -> set[torch.device]:
        return {tensor.device for tensor in self._tensors}


#: All watches alive.
_watches: weakref.WeakSet[ModuleWatch] = weakref.WeakSet()


def _note_optimizer_step(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
    stepped = stepped_tensors(optimizer)
    for watch in list(_watches):
        watch.note_step(stepped)


def _note_registration(parent: nn.Module, name: str, child: nn.Module | None) -> None:
    for watch in list(_watches):
        watch.note_new_child(parent)


register_optimizer_step_post_hook(_note_optimizer_step)
register_module_module_registration_hook(_note_registration)


def _all_values(dicts: list[dict[str, Any]]) -> list[Any]:
    return list(chain.from_iterable(map(dict.values, dicts)))
