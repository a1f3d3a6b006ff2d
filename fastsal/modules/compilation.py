"""Under torch.compile an encoder is one operator, ``fastsal::encode``, which Dynamo and the compilers do not look into.

The operator runs what a call outside a graph runs, so the results are the same to the bit. Which backend computes, with
which packed weights, is decided when it runs: weights that change after compilation are noticed as ever.

The encoder's parameters and buffers are inputs of the operator. That keeps their changes inside the graph in order, and
other tensors in their place (`torch.func.functional_call`) are computed with. The module itself is found by its handle,
a number that no other module of the process has.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary, WeakValueDictionary

import torch
from torch import Tensor
from torch.nn.utils.stateless import _reparametrize_module

# The operator takes its batch to the host and may replay a CUDA graph of its own: no capture around it can hold that.
_TAGS = tuple(tag for tag in (getattr(torch.Tag, "cudagraph_unsafe", None),) if tag is not None)


@dataclass(frozen=True)
class _Outline:
    """What a trace rests on.

    Attributes:
        num_states: layers + 1.
        hidden_size: of every state.
        pooled_shape: without the batch dimension; None without a pooler.
        dtype: of all of it.
        slots: where the encoder's parameters and then its buffers lie, in the order of `parameters()` and `buffers()`.
    """

    num_states: int
    hidden_size: int
    pooled_shape: tuple[int, ...] | None
    dtype: torch.dtype
    slots: list[tuple[dict[str, Any], str]]


#: The FastEncoderMixins alive, by handle, and the outlines of those that were traced.
_encoders: WeakValueDictionary[int, Any] = WeakValueDictionary()
_outlines: WeakKeyDictionary[Any, _Outline] = WeakKeyDictionary()


def register(handle: int, encoder: Any) -> None:
    """Let graphs find `encoder` by its handle, as long as it is alive."""
    _encoders[handle] = encoder


@torch.compiler.assume_constant_result
def why_not_encode(handle: int) -> str | None:
    """Why `encode` does not stand for the encoder as it is now, so that its reference has to be traced; or None.

    Dynamo calls this while it traces and takes the result for a constant.
    """
    return _take_outline(_encoders[handle])


@torch.compiler.assume_constant_result
def note_traced_reference(handle: int) -> None:
    """Remember why torch.compile traced the reference: called in its place."""
    _note_fallback(_encoders[handle])


# After a graph break Python runs the functions above, and Dynamo must not trace what they do.
@torch.compiler.disable
def _take_outline(encoder: Any) -> str | None:
    plan = encoder._plan()
    if isinstance(plan, str):
        return plan
    spec, dtype = plan.reading.spec, plan.parameter_dtype
    with torch.no_grad():
        pooled = encoder._pooled(torch.zeros(1, 1, spec.hidden_size, dtype=dtype, device=plan.device))
    _outlines[encoder] = _Outline(
        num_states=len(spec.layer_schedule) + 1,
        hidden_size=spec.hidden_size,
        pooled_shape=None if pooled is None else tuple(pooled.shape[1:]),
        dtype=dtype,
        slots=_find_slots(encoder),
    )
    return None


@torch.compiler.disable
def _note_fallback(encoder: Any) -> None:
    plan = encoder._plan()
    covered = "the arguments of a call that torch.compile traced are not covered"
    encoder._note_fallback(plan if isinstance(plan, str) else covered)


@torch.library.custom_op("fastsal::encode", mutates_args=(), tags=_TAGS)
def encode(
    tensors: list[Tensor],
    handle: int,
    num_layers: int,
    input_ids: Tensor | None,
    attention_mask: Tensor | None,
    token_type_ids: Tensor | None,
    position_ids: Tensor | None,
    inputs_embeds: Tensor | None,
    all_states: bool,
) -> list[Tensor]:
    """The forward pass of the encoder `handle`, on arguments that `fastsal.modules.coverage.bind_call` has accepted.

    Args:
        tensors: its parameters, then its buffers.
        handle: as given to `register`.
        num_layers: of its config; the graph is valid for these only.
        all_states: whether all hidden states are wanted, or the last one only.

    Returns:
        [hidden states (n, B, S, H)], and with a pooler [hidden states, pooled (B, ...)].

    Raises:
        RuntimeError: the encoder is not one of this process.
    """
    if handle not in _encoders:
        raise RuntimeError(f"this graph belongs to an encoder of another process (handle {handle}): compile it again")
    encoder = _encoders[handle]
    inputs = {
        "input_ids": input_ids,
        "attention_mask": attention_mask,
        "token_type_ids": token_type_ids,
        "position_ids": position_ids,
        "inputs_embeds": inputs_embeds,
        "output_hidden_states": all_states,
        "return_dict": True,
    }
    with torch.no_grad():
        if _are_its_own(encoder, tensors):
            output = encoder._eager_forward((), inputs)
        else:
            names = [name for name, _ in itertools.chain(encoder.named_parameters(), encoder.named_buffers())]
            with _reparametrize_module(encoder, dict(zip(names, tensors, strict=True))):
                output = encoder._eager_forward((), inputs)
    states = torch.stack(output.hidden_states) if all_states else output.last_hidden_state[None]
    return [states] if output.pooler_output is None else [states, output.pooler_output]


@encode.register_fake
def _(
    tensors: list[Tensor],
    handle: int,
    num_layers: int,
    input_ids: Tensor | None,
    attention_mask: Tensor | None,
    token_type_ids: Tensor | None,
    position_ids: Tensor | None,
    inputs_embeds: Tensor | None,
    all_states: bool,
) -> list[Tensor]:
    outline = _outlines[_encoders[handle]]
    tokens: Any = inputs_embeds if input_ids is None else input_ids
    rows, columns = tokens.shape[:2]
    num_states = outline.num_states if all_states else 1
    results = [tokens.new_empty(num_states, rows, columns, outline.hidden_size, dtype=outline.dtype)]
    if outline.pooled_shape is not None:
        results.append(tokens.new_empty(rows, *outline.pooled_shape, dtype=outline.dtype))
    return results


def _are_its_own(encoder: Any, tensors: list[Tensor]) -> bool:
    slots = _outlines[encoder].slots
    own = [owner.get(name) for owner, name in slots]
    return len(own) == len(tensors) and all(
        a is b or (a is not None and a.is_set_to(b)) for a, b in zip(own, tensors, strict=True)
    )


def _find_slots(encoder: torch.nn.Module) -> list[tuple[dict[str, Any], str]]:
    slots = []
    for kind in ("_parameters", "_buffers"):
        seen = set()
        for module in encoder.modules():
            owner = getattr(module, kind)
            for name, tensor in owner.items():
                if tensor is not None and tensor not in seen:
                    seen.add(tensor)
                    slots.append((owner, name))
    return slots
