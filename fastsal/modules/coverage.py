"""Which calls of an encoder's forward the kernels cover, and for what they don't, why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.nn.modules import module as torch_module
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

#: Arguments of AlbertModel.forward and BertModel.forward that come first, in this order, in every transformers 5.
INPUT_NAMES = ("input_ids", "attention_mask", "token_type_ids", "position_ids", "inputs_embeds")

#: Attention implementations that compute softmax(q k / sqrt(d)) v; any other name may be anything.
ATTENTION_IMPLEMENTATIONS = frozenset(
    (None, "eager", "sdpa", "flex_attention", "flash_attention_2", "flash_attention_3", "flash_attention_4")
)

#: What these names mean before a user registers something else under one of them.
_ATTENTION_FUNCTIONS = {name: ALL_ATTENTION_FUNCTIONS.get(name) for name in ATTENTION_IMPLEMENTATIONS if name}

_POSITIONS = {name: position for position, name in enumerate(INPUT_NAMES)}
_NONE_GIVEN = (None,) * len(INPUT_NAMES)
_OUTPUT_OPTIONS = ("output_hidden_states", "output_attentions", "return_dict")

#: nn.Embedding takes these; any other is an error that the reference raises.
_INDEX_DTYPES = (torch.int64, torch.int32)
_PLAIN_TENSORS = (Tensor, nn.Parameter)


class NotCoveredError(RuntimeError):
    """With ``strict=True``: the kernels do not cover this model or call; the message says why."""


class Call(NamedTuple):
    """The arguments of a forward call that the kernels cover.

    Attributes:
        input_ids: (B, S) int32 or int64, or None where `inputs_embeds` is given: (B, S, embedding_size).
        attention_mask: (B, S) of any dtype, or None.
        token_type_ids, position_ids: (B, S) or (1, S) int32 or int64, or None.
        output_hidden_states: whether all layers are wanted.
        return_dict: False for a tuple.
    """

    input_ids: Tensor | None
    attention_mask: Tensor | None
    token_type_ids: Tensor | None
    position_ids: Tensor | None
    inputs_embeds: Tensor | None
    output_hidden_states: bool
    return_dict: bool

    @property
    def inputs(self) -> tuple[Tensor | None, ...]:
        """The five tensors, in the order of `INPUT_NAMES`."""
        return self.input_ids, self.attention_mask, self.token_type_ids, self.position_ids, self.inputs_embeds

    @property
    def tokens(self) -> Any:
        """`input_ids` or `inputs_embeds`, whichever is given."""
        return self.inputs_embeds if self.input_ids is None else self.input_ids

    @property
    def shape(self) -> tuple[int, int]:
        """(B, S)."""
        rows, columns = self.tokens.shape[:2]
        return rows, columns


def environment_reason() -> str | None:
    """What about the state of torch the kernels do not follow: tracing, transforms, modes, hooks; else None."""
    if torch.jit.is_tracing():
        return "torch.jit is tracing"
    if torch._C._functorch.peek_interpreter_stack() is not None:
        return "a torch.func transform is active"
    if torch._C._len_torch_dispatch_stack():
        return "a TorchDispatchMode is active"
    if torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda"):
        return "autocast is active"
    if torch_module._global_forward_hooks or torch_module._global_forward_pre_hooks:
        return "there are global forward hooks"
    if forward_ad._current_level >= 0:
        return "forward-mode differentiation is active"
    return None


def bind_call(
    config: Any,
    embedding_size: int,
    parameter_dtype: torch.dtype | None,
    device: torch.device | None,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> Call | str:
    """The arguments of a call that the kernels cover, or the reason why they don't.

    Shapes and dtypes that the reference treats as errors are reasons too: it raises them.

    Args:
        config: of the model, for defaults.
        embedding_size, parameter_dtype, device: of the model's parameters.
        args, kwargs: of the forward call.

    Raises:
        ValueError: both or neither of input_ids and inputs_embeds are given.
    """
    num_positional = len(args)
    inputs: list[Any] = [*args[:5], *_NONE_GIVEN[num_positional:]]
    if num_positional > 5 and any(arg is not None for arg in args[5:]):
        return f"only {', '.join(INPUT_NAMES)} are covered as positional arguments"

    for name, value in kwargs.items():
        position = _POSITIONS.get(name)
        if position is not None:
            if position < num_positional:
                return f"{name} is given twice"
            inputs[position] = value
        elif name == "use_cache":
            if value:
                return "use_cache is set"
        elif value is not None and name not in _OUTPUT_OPTIONS:
            return f"the argument {name} is not covered"

    # These given as None turn off what the config says: not the same as not given.
    output_hidden_states = _option("output_hidden_states", config, kwargs)
    if output_hidden_states is not None and not isinstance(output_hidden_states, bool):
        return f"output_hidden_states={output_hidden_states!r} selects layers"
    if _option("output_attentions", config, kwargs):
        return "output_attentions is set: the kernels never hold attention probabilities"
    return_dict = _option("return_dict", config, kwargs)
    reason = _input_reason(inputs, embedding_size, parameter_dtype, device) or _config_reason(config, inputs)
    return reason or Call._make([*inputs, bool(output_hidden_states), return_dict is not False])


def _option(name: str, config: Any, kwargs: Mapping[str, Any]) -> Any:
    return kwargs[name] if name in kwargs else getattr(config, name)  # a config's attributes are slow to look up


def _config_reason(config: Any, inputs: list[Any]) -> str | None:
    _, mask, _, positions, _ = inputs
    implementation = config._attn_implementation
    if implementation not in ATTENTION_IMPLEMENTATIONS:
        return f"the attention implementation {implementation!r} is not covered"
    if implementation and ALL_ATTENTION_FUNCTIONS.get(implementation) is not _ATTENTION_FUNCTIONS[implementation]:
        return f"another attention function was registered as {implementation!r}"
    if vars(config).get("is_causal"):
        return "config.is_causal is set"
    if positions is not None and mask is None and str(implementation).startswith("flash"):
        return "flash attention reads position_ids without a mask as packed sentences"
    return None


def _input_reason(
    inputs: list[Any], embedding_size: int, parameter_dtype: Any, device: torch.device | None
) -> str | None:
    ids, mask, types, positions, embeds = inputs
    if (ids is None) == (embeds is None):
        raise ValueError("You must specify exactly one of input_ids or inputs_embeds")
    for name, tensor in zip(INPUT_NAMES, inputs, strict=True):
        if tensor is None:
            continue
        if type(tensor) not in _PLAIN_TENSORS or tensor.layout is not torch.strided:
            return f"{name} is a {type(tensor).__name__}, not a plain dense tensor"
        if tensor.device != device:
            return f"{name} is on {tensor.device}, the parameters are on {device}"

    if ids is not None:
        if ids.dim() != 2 or ids.dtype not in _INDEX_DTYPES:
            return f"input_ids must be (B, S) of int64 or int32, got {tuple(ids.shape)} of {ids.dtype}"
    else:
        if embeds.dim() != 3 or embeds.shape[2] != embedding_size or not embeds.dtype.is_floating_point:
            expected = f"(B, S, {embedding_size}) of floats"
            return f"inputs_embeds must be {expected}, got {tuple(embeds.shape)} of {embeds.dtype}"
        if torch.promote_types(embeds.dtype, parameter_dtype) != parameter_dtype:
            return f"inputs_embeds of {embeds.dtype} do not fit parameters of {parameter_dtype}"
        if embeds.requires_grad and torch.is_grad_enabled():
            return "a gradient for inputs_embeds is wanted"

    shape = tuple(embeds.shape[:2] if ids is None else ids.shape)
    if 0 in shape:
        return f"the batch is empty: shape {shape}"
    if mask is not None and mask.shape != shape:
        return f"attention_mask must have the shape of the tokens {shape}, got {tuple(mask.shape)}"
    for name, index in (("token_type_ids", types), ("position_ids", positions)):
        if index is None:
            continue
        if index.dtype not in _INDEX_DTYPES or (index.shape != shape and index.shape != (1, shape[1])):
            expected = f"{shape} or {(1, shape[1])} of int64 or int32"
            return f"{name} must be {expected}, got {tuple(index.shape)} of {index.dtype}"
    return None
