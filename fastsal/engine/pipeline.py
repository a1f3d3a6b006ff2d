"""What turns an encoder's hidden states into sentence embeddings: pooling, then small steps on the pooled rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from fastsal.engine import native
from fastsal.engine.packing import PackedBatch
from fastsal.engine.pooling import PoolingSpec
from fastsal.engine.spec import LayerNorm


class Step(Protocol):
    """What runs behind the pooling. A row's result does not depend on the other rows."""

    def __call__(self, rows: np.ndarray, threads: int) -> np.ndarray:
        """(B, D) float32 -> (B, D') float32."""
        ...


@dataclass(frozen=True)
class DenseStep:
    """``activation(rows @ weight.T + bias)``, plus the rows themselves where `residual` is True, or their projection.

    Attributes:
        weight, bias: (D', D) and (D',) or None, float32.
        activation: one of `fastsal.engine.spec.ACTIVATIONS`.
        residual: a (D', D) float32 matrix, True for the identity, None for nothing.
    """

    weight: np.ndarray
    bias: np.ndarray | None
    activation: str
    residual: np.ndarray | bool | None = None

    def __call__(self, rows: np.ndarray, threads: int) -> np.ndarray:
        result = native.linear(rows, self.weight, self.bias, self.activation, threads)
        if self.residual is None:
            return result
        if isinstance(self.residual, np.ndarray):
            rows = native.linear(rows, self.residual, None, "linear", threads)
        return result + rows


@dataclass(frozen=True)
class LayerNormStep:
    """A LayerNorm over each row; `norm` holds (D,) float32 arrays."""

    norm: LayerNorm
    eps: float

    def __call__(self, rows: np.ndarray, threads: int) -> np.ndarray:
        return native.layer_norm(rows, self.norm.weight, self.norm.bias, self.eps)


class NormalizeStep:
    """Each row to L2 norm 1; zero rows stay zero."""

    def __call__(self, rows: np.ndarray, threads: int) -> np.ndarray:
        return native.normalize(rows)


@dataclass(frozen=True)
class Pipeline:
    """What a model does behind its encoder.

    Attributes:
        pooling: CNN, pooling, and normalisation where nothing comes between; `skip_tokens` is 0: it depends on the
            prompt.
        include_prompt: the prompt's tokens are pooled with the others.
        tail: the steps behind.
    """

    pooling: PoolingSpec
    include_prompt: bool = True
    tail: tuple[Step, ...] = ()

    def output(self, prompt_length: int, normalize_embeddings: bool, truncate_dim: int | None) -> Output:
        """The same with what one call of `encode` wants. What comes last in a PoolingSpec the kernels do in the same
        pass."""
        inside = normalize_embeddings and truncate_dim is None and not self.tail
        pooling = replace(
            self.pooling,
            skip_tokens=0 if self.include_prompt else prompt_length,
            normalize=self.pooling.normalize or inside,
        )
        return Output(pooling, self.tail, truncate_dim, normalize_embeddings and not inside)


@dataclass(frozen=True)
class Output:
    """From an encoder to what a call of `encode` returns; `normalize` comes last."""

    pooling: PoolingSpec
    tail: tuple[Step, ...]
    truncate_dim: int | None
    normalize: bool

    def computation(
        self, encoder: native.NativeEncoder, pooling: native.NativePooling, threads: int
    ) -> Callable[[PackedBatch], np.ndarray]:
        """A batch of B sentences -> (B, D) float32, with `pooling` packed by `encoder`."""

        def compute(batch: PackedBatch) -> np.ndarray:
            rows = encoder.sentence_embeddings(batch, pooling, threads)
            for step in self.tail:
                rows = step(rows, threads)
            if self.truncate_dim is not None:
                rows = rows[:, : self.truncate_dim]
            return native.normalize(rows) if self.normalize else np.ascontiguousarray(rows)

        return compute
