"""The CPU backend: one native call per forward pass, kernels in kernels/cpu."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fastsal.backends.int8 import int8_smoothing
from fastsal.packing import PackedBatch
from fastsal.pooling import PoolingSpec
from fastsal.rows import cast
from fastsal.spec import EncoderSpec, EncoderWeights, LayerNorm, LayerWeights, Linear

try:
    import fastsal._cpu as _cpu

    _import_error: str | None = None
except ImportError as error:  # a platform without the extension still has the reference
    _import_error = str(error)

#: What the matrix products multiply.
_PRECISIONS = ("float32", "bfloat16", "int8")

#: Convolutions kept packed per encoder; a model has one set, more only while its weights change.
_MAX_PACKED_POOLINGS = 4


class CpuBackend:
    """Compiled kernels for x86-64 and 64-bit Arm."""

    name = "cpu"

    def unavailable(self) -> str | None:
        if _import_error is not None:
            return (
                f"the compiled kernels are missing ({_import_error}); install fastsal from source with a C++ compiler"
            )
        try:
            _cpu.selected_instruction_set()
        except ValueError as error:  # FASTSAL_CPU_ISA names none
            return str(error)
        return None

    def describe(self) -> str:
        """Instruction sets of this build, the selected one named first. Only where the backend is available."""
        others = [name for name, runs_here in _cpu.instruction_sets() if runs_here]
        selected = _cpu.selected_instruction_set()
        detail = f"{selected} (instruction sets that run here: {', '.join(others)})"
        if selected != "avx512_bf16":
            detail += "; bfloat16 weights in memory, computed in float32"
        if selected not in ("avx512_bf16", "avx512_vnni"):
            detail += "; int8 weights in memory, computed in float32"
        return detail

    def unsupported(self, spec: EncoderSpec, dtype: str, device: torch.device) -> str | None:
        if device.type != "cpu":
            return f"the CPU kernels need the model on the CPU, it is on {device}"
        if dtype not in _PRECISIONS:
            return f"the CPU kernels compute in {', '.join(_PRECISIONS)}, not in {dtype}"
        return None

    def prepare(self, spec: EncoderSpec, weights: EncoderWeights, dtype: str) -> CpuEncoder:
        return CpuEncoder(spec, weights, dtype)


class CpuEncoder:
    """An encoder packed for the selected instruction set; implements `PreparedEncoder`.

    float32 embedding tables are read where they are; everything else is copied once into the kernels' layout. `dtype`
    is what the matrix products multiply ("float32", "bfloat16", "int8"); sums, softmax, norms, activations and the
    residual stream are float32.
    """

    def __init__(self, spec: EncoderSpec, weights: EncoderWeights, dtype: str = "float32") -> None:
        self._spec = spec
        smoothing = int8_smoothing(spec, weights) if dtype == "int8" else [(None, None)] * len(weights.layers)
        self._native = _cpu.Encoder(
            num_heads=spec.num_heads,
            head_size=spec.head_size,
            intermediate_size=spec.intermediate_size,
            activation=spec.activation,
            layer_norm_eps=spec.layer_norm_eps,
            precision=dtype,
            layer_schedule=list(spec.layer_schedule),
            word_embeddings=_floats(weights.word_embeddings),
            position_embeddings=_floats(weights.position_embeddings),
            type_embeddings=_floats(weights.type_embeddings),
            embedding_norm=_pair(weights.embedding_norm),
            mapping=None if weights.mapping is None else _pair(weights.mapping),
            layers=[_layer(layer, *vectors) for layer, vectors in zip(weights.layers, smoothing, strict=True)],
        )
        # No lock, which a forked child could find held: each operation on it is atomic.
        self._poolings: dict[tuple, tuple[PoolingSpec, _cpu.Pooling]] = {}

    @property
    def instruction_set(self) -> str:
        return self._native.instruction_set

    @property
    def packed_bytes(self) -> int:
        """Memory that the packed weights take, in bytes."""
        return self._native.packed_bytes

    def hidden_states(self, batch: PackedBatch, all_layers: bool = False) -> Tensor:
        states = len(self._spec.layer_schedule) + 1 if all_layers else 1
        output = torch.empty(states, batch.num_tokens, self._spec.hidden_size, dtype=torch.float32, device="cpu")
        self._native.hidden_states(**_batch_arguments(batch), output=output, threads=torch.get_num_threads())
        return output if all_layers else output[0]

    def sentence_embeddings(self, batch: PackedBatch, pooling: PoolingSpec) -> Tensor:
        native = self._pooling(pooling)
        output = torch.empty(batch.num_sentences, native.output_size, dtype=torch.float32, device="cpu")
        self._native.sentence_embeddings(
            pooling=native, **_batch_arguments(batch), output=output, threads=torch.get_num_threads()
        )
        return output

    def warm_up(self, pooling: PoolingSpec) -> None:
        """Nothing is left to do: the kernels are compiled, the weights laid out."""

    def _pooling(self, pooling: PoolingSpec) -> _cpu.Pooling:
        key = pooling.fingerprint()
        known = self._poolings.get(key)
        if known is not None:
            return known[1]
        native = self._native.pooling(
            modes=list(pooling.modes),
            convolutions=[
                (_floats(c.weight), None if c.bias is None else _floats(c.bias), c.stride) for c in pooling.convolutions
            ],
            skip=pooling.skip_tokens,
            normalize=pooling.normalize,
        )
        self._poolings[key] = (pooling, native)  # the spec keeps its tensors, so that no address is reused
        for oldest in list(self._poolings)[:-_MAX_PACKED_POOLINGS]:
            self._poolings.pop(oldest, None)
        return native


def linear(rows: Tensor, weight: Tensor, bias: Tensor | None, activation: str = "linear") -> Tensor:
    """activation(rows (B, K) @ weight (N, K).T + bias (N,)), all float32 on the CPU: (B, N).

    `activation` is one of `fastsal.spec.ACTIVATIONS`. A row's result does not depend on the other rows.
    """
    output = torch.empty(len(rows), len(weight), dtype=torch.float32, device="cpu")
    bias = None if bias is None else _floats(bias)
    _cpu.linear(_floats(rows), _floats(weight), bias, output, activation, torch.get_num_threads())
    return output


def _floats(tensor: Tensor) -> Tensor:
    return cast(tensor.detach(), torch.float32).contiguous()


def _pair(parameters: Linear | LayerNorm) -> tuple[Tensor, Tensor]:
    return _floats(parameters.weight), _floats(parameters.bias)


def _layer(layer: LayerWeights, qkv_smoothing: Tensor | None, up_smoothing: Tensor | None) -> _cpu.Layer:
    return _cpu.Layer(
        query=_pair(layer.query),
        key=_pair(layer.key),
        value=_pair(layer.value),
        attention_output=_pair(layer.attention_output),
        attention_norm=_pair(layer.attention_norm),
        up=_pair(layer.up),
        down=_pair(layer.down),
        output_norm=_pair(layer.output_norm),
        qkv_smoothing=qkv_smoothing,
        up_smoothing=up_smoothing,
    )


def _batch_arguments(batch: PackedBatch) -> dict[str, Any]:
    return {
        "input_ids": batch.input_ids,
        "inputs_embeds": None if batch.inputs_embeds is None else _floats(batch.inputs_embeds),
        "position_ids": batch.position_ids,
        "token_type_ids": batch.token_type_ids,
        "cu_seqlens": batch.cu_seqlens,
    }
