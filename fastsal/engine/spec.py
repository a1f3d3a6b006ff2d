"""What a backend needs to know about an encoder: its shape (EncoderSpec) and its parameters (EncoderWeights).

Nothing here knows Hugging Face: `fastsal.engine.architectures` reads files into these, `fastsal.modules.architectures`
live modules, and the backends compute from them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, TypeAlias

#: Numbers of a weight: a numpy array in the engine, a torch tensor in the layers above it.
Array: TypeAlias = Any

#: Activations that the kernels compute. The names are Hugging Face's `ACT2FN` names, synonyms folded into one.
ACTIVATIONS = (
    "linear",
    "relu",
    "relu2",
    "relu6",
    "leaky_relu",
    "sigmoid",
    "silu",
    "tanh",
    "mish",
    "gelu",  # x * Phi(x) by erf
    "gelu_tanh",  # the tanh approximation
    "quick_gelu",  # x * sigmoid(1.702 x)
    "gelu_10",  # erf GELU clipped to [-10, 10]
    "laplace",
    "hardswish",
    "sqrtsoftplus",
)


@dataclass(frozen=True)
class EncoderSpec:
    """Shape of a post-norm transformer encoder (BERT, ALBERT).

    Attributes:
        vocab_size, max_positions, type_vocab_size: rows of the three embedding tables.
        embedding_size: columns of the embedding tables.
        hidden_size: width of the residual stream, equal to ``num_heads * head_size``.
        intermediate_size: width of the feed-forward layer.
        activation: one of `ACTIVATIONS`.
        layer_norm_eps: added to the variance in every LayerNorm.
        layer_schedule: for each layer in running order the index into ``EncoderWeights.layers``. ALBERT-base is
            ``(0,) * 12``: one set of weights, twelve times.
    """

    vocab_size: int
    max_positions: int
    type_vocab_size: int
    embedding_size: int
    hidden_size: int
    num_heads: int
    head_size: int
    intermediate_size: int
    activation: str
    layer_norm_eps: float
    layer_schedule: tuple[int, ...]


@dataclass(frozen=True)
class Linear:
    """``y = x @ weight.T + bias``; weight is (out_features, in_features), bias (out_features,)."""

    weight: Array
    bias: Array


@dataclass(frozen=True)
class LayerNorm:
    """Scale and shift of a LayerNorm, both (features,)."""

    weight: Array
    bias: Array


@dataclass(frozen=True)
class LayerWeights:
    """One transformer layer: attention, add & norm, feed-forward, add & norm."""

    query: Linear
    key: Linear
    value: Linear
    attention_output: Linear
    attention_norm: LayerNorm
    up: Linear
    down: Linear
    output_norm: LayerNorm


@dataclass(frozen=True)
class EncoderWeights:
    """All parameters of an encoder; `mapping` is ALBERT's embedding_size -> hidden_size projection, else None."""

    word_embeddings: Array
    position_embeddings: Array
    type_embeddings: Array
    embedding_norm: LayerNorm
    mapping: Linear | None
    layers: tuple[LayerWeights, ...]

    def map(self, function: Callable[[Array], Array]) -> EncoderWeights:
        """The same weights with `function` applied to every array."""

        def pair(parameters: Any) -> Any:
            return type(parameters)(function(parameters.weight), function(parameters.bias))

        return EncoderWeights(
            word_embeddings=function(self.word_embeddings),
            position_embeddings=function(self.position_embeddings),
            type_embeddings=function(self.type_embeddings),
            embedding_norm=pair(self.embedding_norm),
            mapping=None if self.mapping is None else pair(self.mapping),
            layers=tuple(
                LayerWeights(**{field.name: pair(getattr(layer, field.name)) for field in fields(layer)})
                for layer in self.layers
            ),
        )
