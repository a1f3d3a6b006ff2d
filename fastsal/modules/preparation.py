"""Preparation: which backend computes an encoder, and its packed weights, kept up to date with the module's."""

from __future__ import annotations

import itertools
import os
import threading
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from fastsal.backends import DTYPES, Backend, BackendError, PreparedEncoder, choose_backend, dtype_name
from fastsal.modules.architectures import EncoderReading, read_encoder

_handles = itertools.count()

# One lock for all models: preparing is rare, and objects without a lock can be copied and pickled.
_prepare_lock = threading.Lock()


def _renew_lock() -> None:
    global _prepare_lock
    _prepare_lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    # A thread of the parent that held the lock does not exist in the child.
    os.register_at_fork(after_in_child=_renew_lock)


#: How often weights are packed that change while they are: who writes on and on gets what the last attempt found.
_ATTEMPTS = 3


@dataclass(frozen=True)
class Settings:
    """What the user asked for.

    Attributes:
        dtype: a name from `fastsal.backends.DTYPES`; None for the dtype of the parameters.
        backend: "auto" or a name from `fastsal.backends.BACKENDS`.
        strict: raise NotCoveredError where the reference would run.
    """

    dtype: str | None = None
    backend: str = "auto"
    strict: bool = False

    @property
    def refuses_reference(self) -> bool:
        return self.strict and self.backend != "reference"


@dataclass(frozen=True)
class EncoderStatus:
    """What computes an encoder.

    Attributes:
        backend: "triton", "cpu" or "reference".
        dtype: what it computes in.
        detail: why this backend, or why no other.
        last_fallback: why the last call ran in the reference although the backend is another; None if it did not.
        strict: whether such a call raises NotCoveredError instead.
    """

    backend: str
    dtype: str
    detail: str
    last_fallback: str | None
    strict: bool


@dataclass(frozen=True)
class Plan:
    """Who computes a module as it was when it was read.

    Attributes:
        reading: the encoder and the watch over the module.
        backend: None for the reference, because of `detail`.
        dtype: what is computed in.
        parameter_dtype, device: of the parameters; None where the module could not be read.
    """

    reading: EncoderReading
    backend: Backend | None
    detail: str
    dtype: str
    parameter_dtype: torch.dtype | None
    device: torch.device | None


def make_plan(module: nn.Module, settings: Settings) -> Plan:
    """Read `module` and choose its backend.

    Raises:
        BackendError: `settings` names a dtype or backend that cannot run this module; the message says why.
    """
    reading = read_encoder(module)
    dtypes, devices = reading.watch.float_dtypes, reading.watch.devices
    parameter_dtype = dtypes.pop() if len(dtypes) == 1 else None
    device = devices.pop() if len(devices) == 1 else None
    own_dtype = str(parameter_dtype).removeprefix("torch.") if parameter_dtype else "mixed"
    # On the CPU float16 is a way to store numbers: nothing there multiplies it, and float32 holds all of it.
    widened = settings.dtype is None and own_dtype == "float16" and device is not None and device.type == "cpu"
    dtype = "float32" if widened else settings.dtype or own_dtype

    backend, detail = None, reading.reason
    if settings.backend == "reference":
        detail = "backend='reference' was asked for"
    elif reading.spec is not None and device is not None:
        if dtype in DTYPES:
            backend, detail = choose_backend(settings.backend, reading.spec, dtype, device)
            if backend is not None and widened:
                detail += ", in float32 from its float16 parameters"
        else:
            detail = f"no backend computes in {dtype}"
    # The reference computes in the parameters' dtype, whether that was asked for or not.
    if backend is None:
        if settings.backend not in ("auto", "reference") or settings.dtype not in (None, own_dtype):
            raise BackendError(f"backend={settings.backend!r} with dtype={settings.dtype!r} cannot run: {detail}")
        dtype = own_dtype
    return Plan(reading, backend, detail or "", dtype, parameter_dtype, device)


class Preparation:
    """The settings of one fast module, and what is made from its weights: remade when the module changes.

    Safe to use from several threads. Copies and pickles hold the settings only.
    """

    def __init__(self, settings: Settings = Settings(), refusal: str | None = None) -> None:
        """`refusal`: why the kernels must never be used for this module, if so."""
        self.settings = settings
        self.refusal = refusal
        self.last_fallback: str | None = None
        self.handle = next(_handles)  # a number that nothing else in this process has
        # The encoder is None until first used. One tuple, so that another thread sees both or neither.
        self._current: tuple[Plan, PreparedEncoder | None] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.settings, self.refusal)

    def __deepcopy__(self, memo: dict[int, Any]) -> Preparation:
        return Preparation(self.settings, self.refusal)

    def plan(self, module: nn.Module) -> Plan:
        """The plan for `module` as it is now.

        Raises:
            BackendError: the module changed so that an explicitly chosen dtype or backend cannot run it any more.
        """
        current = self._current
        if current is not None and current[0].reading.watch.unchanged():
            return current[0]
        with _prepare_lock:
            return self._refresh(module)[0]

    def prepare(self, module: nn.Module) -> None:
        """Pack the weights where a backend computes them, and nobody has yet."""
        if self.refusal is None and self.plan(module).backend is not None:
            self.encoder(module)

    def encoder(self, module: nn.Module) -> PreparedEncoder:
        """The prepared encoder of the plan that `plan` has just returned, which must have a backend; it computes."""
        self.last_fallback = None
        current = self._current
        if current is not None and current[1] is not None:
            return current[1]
        with _prepare_lock:
            for _ in range(_ATTEMPTS):
                plan, encoder = self._refresh(module)
                if encoder is not None:
                    return encoder
                prepared = _prepare(plan)
                self._current = plan, prepared
                # If another process or thread has written to the weights meanwhile, the next round starts anew.
            return prepared

    def status(self, module: nn.Module) -> EncoderStatus:
        plan = self.plan(module)
        name = plan.backend.name if plan.backend is not None and self.refusal is None else "reference"
        detail = self.refusal or plan.detail
        return EncoderStatus(name, plan.dtype, detail, self.last_fallback, self.settings.strict)

    def _refresh(self, module: nn.Module) -> tuple[Plan, PreparedEncoder | None]:
        """The current plan and encoder, made anew where the module changed. Call with the lock held."""
        current = self._current
        if current is not None and current[0].reading.watch.unchanged():
            return current
        self._current = None  # frees the stale packed weights before the new ones are made
        plan, encoder = make_plan(module, self.settings), None
        if current is not None and _same_encoder(current[0], plan):
            encoder = current[1]
        self._current = plan, encoder
        return self._current


def _same_encoder(old: Plan, new: Plan) -> bool:
    """Whether what was packed for `old` serves `new`: modules changed (a hook came, say), but no weight did."""
    return (
        (old.reading.spec, old.dtype, old.device) == (new.reading.spec, new.dtype, new.device)
        and old.reading.watch.same_tensors(new.reading.watch)
        and old.reading.watch.tensors_unchanged()
    )


def _prepare(plan: Plan) -> PreparedEncoder:
    spec, weights = plan.reading.spec, plan.reading.weights
    if plan.backend is None or spec is None or weights is None:
        raise BackendError(f"no backend was chosen: {plan.detail}")
    return plan.backend.prepare(spec, weights, plan.dtype)


def make_settings(dtype: str | torch.dtype | None, backend: str, strict: bool) -> Settings:
    """Settings from a user's arguments.

    Raises:
        ValueError: an unknown dtype.
    """
    return Settings(None if dtype is None else dtype_name(dtype), backend, strict)
