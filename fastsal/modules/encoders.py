"""Drop-in Hugging Face encoders on fastsal's kernels."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import update_wrapper
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers.modeling_outputs import BaseModelOutputWithPooling, BaseModelOutputWithPoolingAndCrossAttentions
from transformers.models.albert.modeling_albert import AlbertModel
from transformers.models.bert.modeling_bert import BertModel, BertPooler

from fastsal.backends.reference import reference_sentence_embeddings
from fastsal.backends.rows import as_bool, cast, limits, threadless
from fastsal.engine.packing import pack_token_lists
from fastsal.engine.pooling import PoolingSpec
from fastsal.engine.spec import EncoderSpec
from fastsal.modules.compilation import encode, note_traced_reference, register, why_not_encode
from fastsal.modules.coverage import Call, NotCoveredError, bind_call, environment_reason
from fastsal.modules.forks import one_thread_if_forked
from fastsal.modules.linear import is_hooked, linear_and_tanh
from fastsal.modules.output_recording import register_recorders
from fastsal.modules.padding import pack, unpack
from fastsal.modules.preparation import EncoderStatus, Plan, Preparation, Settings

logger = logging.getLogger("fastsal")

TokenLists = Sequence[Sequence[int] | Tensor | np.ndarray]

_GRADIENTS_WANTED = "gradients are enabled and parameters require them (use torch.inference_mode() or torch.no_grad())"


class FastEncoderMixin(nn.Module):
    """Puts the kernels under a Hugging Face encoder class, which must follow in the bases.

    Calls that the kernels do not cover go to that class's forward with the same arguments. The packed weights are a
    cache in ``__dict__``, outside parameters, buffers, state dict and config; copies and pickles keep the settings.
    """

    _fastsal: Preparation

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._prepare_anew(Settings())

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._prepare_anew(self._fastsal.settings, self._fastsal.refusal)

    @torch.compiler.disable
    def fastsal_status(self) -> EncoderStatus:
        """Who computes this encoder, in which dtype, and why."""
        return self._fastsal.status(self)

    @torch.compiler.disable(reason="sentences as lists are no tensors: compile a call of the encoder instead")
    def sentence_embeddings(
        self, token_lists: TokenLists, pooling: str | tuple[str, ...] | PoolingSpec = "mean", normalize: bool = True
    ) -> Tensor:
        """Embed B sentences given as token ids, special tokens included. Nothing is padded where the kernels compute.

        Args:
            token_lists: B sequences, 1-D arrays or 1-D tensors of token ids. Token types are 0, positions count from
                0.
            pooling: a pooling mode, several (their results are concatenated), or a PoolingSpec.
            normalize: scale each embedding to L2 norm 1. A PoolingSpec has its own `normalize`, which then decides.

        Returns:
            (B, D) in the dtype of the model's parameters, rows in the order of `token_lists`. D is the hidden size
            times the number of modes; with a PoolingSpec its `output_size`.

        Raises:
            TypeError: a sentence is not a sequence of integers.
            ValueError: an unknown pooling mode, or a sentence longer than the model's position table.
            IndexError: a token id outside the vocabulary.
            NotCoveredError: the kernels do not cover this model or call, and ``strict=True`` was asked for.
        """
        if not isinstance(pooling, PoolingSpec):
            modes = (pooling,) if isinstance(pooling, str) else tuple(pooling)
            pooling = PoolingSpec(modes=modes, normalize=normalize)
        if not isinstance(token_lists, (str, bytes)) and hasattr(token_lists, "__len__"):
            token_lists = [ids.detach().cpu().numpy() if isinstance(ids, Tensor) else ids for ids in token_lists]
        batch = pack_token_lists(token_lists)  # type: ignore[arg-type]
        table: Tensor = self.embeddings.position_embeddings.weight  # type: ignore[union-attr, assignment]
        lengths = np.diff(batch.cu_seqlens)
        if len(lengths) and int(lengths.max()) > len(table):
            index = int(lengths.argmax())
            raise ValueError(
                f"token_lists[{index}] has {int(lengths[index])} tokens, the position table {len(table)} rows"
            )

        plan = self._plan()
        if isinstance(plan, str):
            self._note_fallback(plan)
            hidden_size: Any = self.config.hidden_size  # type: ignore[union-attr]
            with one_thread_if_forked():
                return reference_sentence_embeddings(super().forward, batch, pooling, hidden_size, table.device)
        embeddings = self._fastsal.encoder(self).sentence_embeddings(batch, pooling)
        return cast(embeddings, plan.parameter_dtype)

    @torch.no_grad()
    def warm_up(self, pooling: str | tuple[str, ...] | PoolingSpec = "mean", normalize: bool = True) -> None:
        """Do now what the first calls of `sentence_embeddings` would have to, so that a server never waits for it.

        Lays the weights out; on a GPU also compiles the kernels and captures the CUDA graphs of every size, which takes
        a minute where they were never compiled. Where the original modules compute there is nothing to do.

        Args:
            pooling, normalize: as in `sentence_embeddings`; graphs are made for them.
        """
        if not isinstance(pooling, PoolingSpec):
            modes = (pooling,) if isinstance(pooling, str) else tuple(pooling)
            pooling = PoolingSpec(modes=modes, normalize=normalize)
        if not isinstance(self._plan(), str):
            self._fastsal.encoder(self).warm_up(pooling)

    def save_pretrained(self, *args: Any, **kwargs: Any) -> Any:
        """As transformers' method: plain Hugging Face files, with nothing of fastsal in them."""
        if type(self) not in FAST_CLASSES.values():
            return super().save_pretrained(*args, **kwargs)  # type: ignore[misc]
        return reference_twin(self).save_pretrained(*args, **kwargs)  # config.json holds the name of the class

    def _prepare_anew(self, settings: Settings, refusal: str | None = None) -> None:
        """Drop what is prepared, and take these settings."""
        self.__dict__["_fastsal"] = preparation = Preparation(settings, refusal)
        register(preparation.handle, self)

    def _replicate_for_data_parallel(self) -> Any:
        replica = super()._replicate_for_data_parallel()
        # its weights are plain attributes on another device and live for one call
        replica._prepare_anew(self._fastsal.settings, refusal="this is a DataParallel replica")
        return replica

    def _pooled(self, last_hidden_state: Tensor) -> Tensor | None:
        """The architecture's pooler on (B, S, H) hidden states, None without one."""
        raise NotImplementedError

    def _output(self, **outputs: Any) -> Any:
        """The architecture's output class."""
        raise NotImplementedError

    def _reference(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return super().forward(*args, **kwargs)

    def _eager_reference(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        with one_thread_if_forked():
            return self._reference(args, kwargs)

    def _forward(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return (self._traced_forward if torch.compiler.is_compiling() else self._eager_forward)(args, kwargs)

    @torch.compiler.disable  # what a graph break leaves to Python must not be traced piece by piece
    def _eager_forward(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        plan = self._plan()
        if isinstance(plan, str):
            self._note_fallback(plan)
            return self._eager_reference(args, kwargs)
        spec = plan.reading.spec
        if spec is None:
            raise RuntimeError("a plan with a backend must have a spec")
        call = bind_call(self.config, spec.embedding_size, plan.parameter_dtype, plan.device, args, kwargs)
        if isinstance(call, str):
            self._note_fallback(call)
            return self._eager_reference(args, kwargs)
        return self._compute(call, spec, plan.parameter_dtype, args, kwargs)

    def _traced_forward(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What torch.compile traces: one operator, or the reference's modules. An exported graph gets the latter, since
        it has to run without fastsal's modules."""
        preparation = self._fastsal
        handle, strict = preparation.handle, preparation.settings.refuses_reference
        if torch.compiler.is_exporting():
            return self._reference(args, kwargs)
        call: Call | str | None = why_not_encode(handle)
        if call is None:
            table: Tensor = self.embeddings.word_embeddings.weight  # type: ignore[union-attr, assignment]
            call = bind_call(self.config, table.shape[1], table.dtype, table.device, args, kwargs)
        if isinstance(call, str):
            if strict:
                raise NotCoveredError(f"{type(self).__name__}: the kernels do not cover what torch.compile traces")
            note_traced_reference(handle)
            return self._reference(args, kwargs)
        stacked, *pooled = encode(
            [*self.parameters(), *self.buffers()],
            handle,
            self.config.num_hidden_layers,  # type: ignore[union-attr]
            *call.inputs,
            call.output_hidden_states,
        )
        states = stacked.unbind(0)
        return self._assemble(states[-1], pooled[0] if pooled else None, states, call)

    def _plan(self) -> Plan | str:
        """The plan by which the kernels compute now, or why they don't."""
        preparation = self._fastsal
        reason = environment_reason() or preparation.refusal
        if reason is not None:
            return reason
        if self.training:
            return "the model is in training mode"
        plan = preparation.plan(self)
        if plan.backend is None:
            return plan.detail
        watch = plan.reading.watch
        if watch.any_training():
            return "a part of the model is in training mode"
        if torch.is_grad_enabled() and watch.any_requires_grad():
            return _GRADIENTS_WANTED
        return plan

    def _note_fallback(self, reason: str) -> None:
        """Remember why the reference runs.

        Raises:
            NotCoveredError: ``strict=True`` was asked for.
        """
        preparation = self._fastsal
        if preparation.settings.refuses_reference:
            raise NotCoveredError(f"{type(self).__name__}: the kernels do not cover this: {reason}")
        if reason is _GRADIENTS_WANTED and preparation.last_fallback is None:
            logger.warning("%s runs in the reference, at its speed: %s", type(self).__name__, reason)
        preparation.last_fallback = reason

    def _compute(
        self,
        call: Call,
        spec: EncoderSpec,
        dtype: torch.dtype | None,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        shape = call.shape
        if call.position_ids is None and shape[1] > spec.max_positions:
            raise RuntimeError(
                f"the input has {shape[1]} columns, the position table only {spec.max_positions} rows: truncate the "
                "input or give position_ids"
            )
        mask = None if call.attention_mask is None else as_bool(call.attention_mask)
        if mask is not None and bool(threadless(mask).all()):
            mask = None

        if mask is not None:
            _check_ids(call, spec)  # the backend checks the tokens it gets, which are those that are not masked
            if self.pooler is not None and _pools_a_masked_token(mask):
                return self._reference_with_zeros(mask, call, args, kwargs)
        batch, index = pack(shape, mask, call.input_ids, call.inputs_embeds, call.position_ids, call.token_type_ids)

        packed = self._fastsal.encoder(self).hidden_states(batch, all_layers=call.output_hidden_states)
        packed = cast(packed, dtype)
        states = tuple(
            layer.view(*shape, -1) if index is None else unpack(layer, index, *shape)
            for layer in (packed.unbind(0) if call.output_hidden_states else (packed,))
        )
        return self._assemble(states[-1], self._pooled(states[-1]), states, call)

    def _reference_with_zeros(self, mask: Tensor, call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The pooler reads column 0 of every row, also where it is masked: a value that the kernels do not compute."""
        self._note_fallback("the pooler reads column 0, which is masked in a sentence (left padding)")
        output = self._eager_reference(args, {**kwargs, "return_dict": True})
        masked = ~mask[..., None]
        states = output.hidden_states if call.output_hidden_states else (output.last_hidden_state,)
        zeroed = tuple(state.masked_fill(masked, 0) for state in states)
        return self._assemble(zeroed[-1], output.pooler_output, zeroed, call)

    def _assemble(self, last: Tensor, pooled: Tensor | None, states: tuple[Tensor, ...], call: Call) -> Any:
        hidden_states = states if call.output_hidden_states else None
        output = self._output(last_hidden_state=last, pooler_output=pooled, hidden_states=hidden_states)
        return output if call.return_dict else output.to_tuple()


class FastAlbertModel(FastEncoderMixin, AlbertModel):
    """`transformers.AlbertModel` on fastsal's kernels: the same arguments, outputs, parameters and files.

    A call takes `input_ids` (B, S) of int64 or int32 or `inputs_embeds` (B, S, embedding_size), and optionally
    `attention_mask` (B, S) of any dtype, `token_type_ids` and `position_ids` (B, S) or (1, S). It returns
    `last_hidden_state` (B, S, H) in the dtype of the parameters, zeros where masked, and `pooler_output` (B, H). Other
    arguments, training and gradients run in the original class's forward.

    Raises, from a call:
        ValueError: both or neither of `input_ids` and `inputs_embeds` are given.
        IndexError: an id or type outside its table.
        RuntimeError: more columns than the model has positions.
        NotCoveredError: the original class would have to compute, and ``strict=True`` was asked for.
    """

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self._forward(args, kwargs)

    def _pooled(self, last_hidden_state: Tensor) -> Tensor | None:
        if self.pooler is None:
            return None
        return linear_and_tanh(self.pooler, self.pooler_activation, last_hidden_state[:, 0])

    def _output(self, **outputs: Any) -> BaseModelOutputWithPooling:
        return BaseModelOutputWithPooling(**outputs)


class FastBertModel(FastEncoderMixin, BertModel):
    """`transformers.BertModel` on fastsal's kernels; calls, results and errors as of `FastAlbertModel`."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self._forward(args, kwargs)

    def _pooled(self, last_hidden_state: Tensor) -> Tensor | None:
        pooler = self.pooler
        if type(pooler) is not BertPooler or is_hooked(pooler):
            return None if pooler is None else pooler(last_hidden_state)
        return linear_and_tanh(pooler.dense, pooler.activation, last_hidden_state[:, 0])

    def _output(self, **outputs: Any) -> BaseModelOutputWithPoolingAndCrossAttentions:
        return BaseModelOutputWithPoolingAndCrossAttentions(**outputs)


#: Hugging Face class -> its drop-in.
FAST_CLASSES: dict[type[nn.Module], type[FastEncoderMixin]] = {AlbertModel: FastAlbertModel, BertModel: FastBertModel}

for _reference, _fast in FAST_CLASSES.items():
    update_wrapper(_fast.forward, _reference.forward)  # the signature, which sentence-transformers and Trainer look at
    register_recorders(_reference)
    register_recorders(_fast)


def reference_twin(model: Any) -> Any:
    """`model` with its encoders under the classes that they have without fastsal, for who writes class names to files.

    The twin shares parameters, buffers and configurations with `model`, which other threads may go on using.
    """
    cls: Any = reference_class(type(model)) if type(model) in FAST_CLASSES.values() else type(model)
    twin: Any = cls.__new__(cls)
    twin.__dict__.update(model.__dict__)
    if cls is not type(model):
        del twin.__dict__["_fastsal"]
    twin._modules = {
        name: reference_twin(child) if child is not None and fast_encoders(child) else child
        for name, child in model._modules.items()
    }
    return twin


def runs_fast_forward(encoder: FastEncoderMixin) -> bool:
    """Whether no subclass overrides the drop-in's forward."""
    return any(type(encoder).forward is fast.forward for fast in FAST_CLASSES.values())


def fast_encoders(model: nn.Module) -> dict[str, FastEncoderMixin]:
    """The accelerated encoders in `model` by their names in it."""
    return {name: module for name, module in model.named_modules() if isinstance(module, FastEncoderMixin)}


def reference_class(fast_class: type[nn.Module]) -> type[nn.Module]:
    return next(reference for reference, fast in FAST_CLASSES.items() if fast is fast_class)


def _check_ids(call: Call, spec: EncoderSpec) -> None:
    """Raise IndexError for an id outside its table, also where it is masked, as the reference does."""
    for name, rows in (
        ("input_ids", spec.vocab_size),
        ("token_type_ids", spec.type_vocab_size),
        ("position_ids", spec.max_positions),
    ):
        ids = getattr(call, name)
        if ids is not None:
            low, high = limits(ids)
            if low < 0 or high >= rows:
                raise IndexError(f"{name} must be in [0, {rows}), got {low if low < 0 else high}")


def _pools_a_masked_token(mask: Tensor) -> bool:
    """Whether a row of the (B, S) bool mask has tokens, but none in column 0."""
    rows = threadless(mask)
    first = rows[:, 0]
    return not bool(first.all()) and bool((rows.any(1) & ~first).any())
