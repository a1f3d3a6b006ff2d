"""The compiled kernels on numpy arrays: one native call per forward pass (kernels/cpu)."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import numpy as np

from fastsal.engine.int8 import int8_smoothing
from fastsal.engine.packing import PackedBatch
from fastsal.engine.pooling import PoolingSpec
from fastsal.engine.spec import EncoderSpec, EncoderWeights, LayerNorm, LayerWeights, Linear

try:
    import fastsal._cpu as _cpu

    _import_error: str | None = None
except ImportError as error:  # a platform without the extension still has the reference
    _import_error = str(error)

#: What the matrix products multiply. Sums, softmax, norms, activations and the residual stream are float32.
PRECISIONS = ("float32", "bfloat16", "int8")

#: Pooling modes with their convolutions, packed for one encoder's kernels.
NativePooling = Any


def why_unavailable() -> str | None:
    """Why the kernels cannot run on this machine, or None if they can."""
    if _import_error is not None:
        return f"the compiled kernels are missing ({_import_error}); install fastsal from source with a C++ compiler"
    try:
        _cpu.selected_instruction_set()
    except ValueError as error:  # FASTSAL_CPU_ISA names none
        return str(error)
    return None


def describe_kernels() -> str:
    """Instruction sets that run here, the selected one named first. Only where the kernels are available."""
    sets = {each.name: each for each in _cpu.instruction_sets()}
    selected = sets[_cpu.selected_instruction_set()]
    others = [each.name for each in sets.values() if each.runs_here and not each.model]
    detail = f"{selected.name} (instruction sets that run here: {', '.join(others)})"
    for precision in PRECISIONS:
        if precision not in selected.native:
            detail += f"; {precision} weights in memory, computed in float32"
    for each in sets.values():
        if each.refused:
            detail += f"; {each.name} is not used: {each.refused}"
    return detail


def usable_processors() -> int:
    """Processors that this process may use: by its affinity, its cgroup's quota, and OMP_NUM_THREADS where that is
    set, as by every library of this kind."""
    affinity = getattr(os, "sched_getaffinity", None)
    processors = len(affinity(0)) if affinity else os.cpu_count() or 1
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text(encoding="ascii").split()
        processors = min(processors, max(1, math.ceil(int(quota) / int(period))))
    except (OSError, ValueError):  # no cgroup, or no limit ("max")
        pass
    wanted = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0]
    return int(wanted) if wanted.isdecimal() and int(wanted) > 0 else processors


class NativeEncoder:
    """An encoder packed for the selected instruction set. Safe to use from several threads at once.

    Embedding tables are read where they are; everything else is copied once into the kernels' layout.

    Args:
        spec, weights: the encoder; all weights are float32, in C order.
        precision: one of `PRECISIONS`.
        threads: that pack the weights; they change no bit.
    """

    def __init__(
        self, spec: EncoderSpec, weights: EncoderWeights, precision: str = "float32", threads: int = 1
    ) -> None:
        self.spec = spec
        self.precision = precision
        smoothing = int8_smoothing(spec, weights) if precision == "int8" else [(None, None)] * len(weights.layers)
        self._native = _cpu.Encoder(
            num_heads=spec.num_heads,
            head_size=spec.head_size,
            intermediate_size=spec.intermediate_size,
            activation=spec.activation,
            layer_norm_eps=spec.layer_norm_eps,
            precision=precision,
            layer_schedule=list(spec.layer_schedule),
            word_embeddings=weights.word_embeddings,
            position_embeddings=weights.position_embeddings,
            type_embeddings=weights.type_embeddings,
            embedding_norm=_pair(weights.embedding_norm),
            mapping=None if weights.mapping is None else _pair(weights.mapping),
            layers=[_layer(layer, *vectors) for layer, vectors in zip(weights.layers, smoothing, strict=True)],
            threads=threads,
        )

    @property
    def instruction_set(self) -> str:
        return self._native.instruction_set

    @property
    def packed_bytes(self) -> int:
        """Memory that the packed weights take, in bytes."""
        return self._native.packed_bytes

    def hidden_states(self, batch: PackedBatch, threads: int, all_layers: bool = False) -> np.ndarray:
        """(1, T, hidden_size) float32, the last layer; with `all_layers` (num_layers + 1, T, hidden_size): the
        embeddings (after ALBERT's mapping) first, the last layer last.

        Raises:
            IndexError: an id, type or position outside its table, found before any table is read.
        """
        states = len(self.spec.layer_schedule) + 1 if all_layers else 1
        output = np.empty((states, batch.num_tokens, self.spec.hidden_size), np.float32)
        self._native.hidden_states(**batch_arguments(batch), output=output, threads=threads)
        return output

    def pooling(self, pooling: PoolingSpec) -> NativePooling:
        """Pack `pooling`, whose convolutions are float32, for `sentence_embeddings` of this encoder."""
        return self._native.pooling(
            modes=list(pooling.modes),
            convolutions=[(c.weight, c.bias, c.stride) for c in pooling.convolutions],
            skip=pooling.skip_tokens,
            normalize=pooling.normalize,
        )

    def sentence_embeddings(self, batch: PackedBatch, pooling: NativePooling, threads: int) -> np.ndarray:
        """Run the encoder and pool: (B, pooling.output_size) float32.

        Raises:
            IndexError: as `hidden_states`.
            ValueError: a sentence is shorter than a convolution needs, or the convolutions' lengths differ.
        """
        output = np.empty((batch.num_sentences, pooling.output_size), np.float32)
        self._native.sentence_embeddings(pooling=pooling, **batch_arguments(batch), output=output, threads=threads)
        return output


def content_sample(addresses: np.ndarray, sizes: np.ndarray) -> int:
    """A number made from a few words of each piece of memory, which changes when all of one is written anew.

    Args:
        addresses, sizes: (n,) int64, in bytes; the memory must be there.
    """
    return _cpu.content_sample(addresses, sizes)


def linear(rows: np.ndarray, weight: np.ndarray, bias: np.ndarray | None, activation: str, threads: int) -> np.ndarray:
    """activation(rows (B, K) @ weight (N, K).T + bias (N,)), all float32: (B, N).

    `activation` is one of `fastsal.engine.spec.ACTIVATIONS`. A row's result does not depend on the other rows.
    """
    output = np.empty((len(rows), len(weight)), np.float32)
    _cpu.linear(rows, weight, bias, output, activation, threads)
    return output


def layer_norm(rows: np.ndarray, weight: np.ndarray, bias: np.ndarray, eps: float) -> np.ndarray:
    """LayerNorm of each row of (B, D), all float32."""
    output = np.array(rows, np.float32, order="C")
    _cpu.layer_norm(output, weight, bias, eps)
    return output


def normalize(rows: np.ndarray) -> np.ndarray:
    """Each row of (B, D) float32 scaled to L2 norm 1; zero rows stay zero."""
    output = np.array(rows, np.float32, order="C")
    _cpu.normalize(output)
    return output


def _pair(parameters: Linear | LayerNorm) -> tuple[np.ndarray, np.ndarray]:
    return parameters.weight, parameters.bias


def _layer(layer: LayerWeights, qkv_smoothing: np.ndarray | None, up_smoothing: np.ndarray | None) -> _cpu.Layer:
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


def batch_arguments(batch: PackedBatch) -> dict[str, Any]:
    """A batch as the native calls name its arrays."""
    return {
        "input_ids": batch.input_ids,
        "inputs_embeds": batch.inputs_embeds,
        "position_ids": batch.position_ids,
        "token_type_ids": batch.token_type_ids,
        "cu_seqlens": batch.cu_seqlens,
    }
