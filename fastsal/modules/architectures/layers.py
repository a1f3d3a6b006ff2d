"""What the readers of BERT and ALBERT share: a layer from the places of its parts, an encoder from its layers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from fastsal.engine.spec import EncoderSpec, EncoderWeights, LayerNorm, LayerWeights, Linear
from fastsal.modules.architectures.activations import read_activation
from fastsal.modules.architectures.reader import ModuleReader, UnreadableError

#: A module and the name of its child.
Place = tuple[nn.Module, str]


@dataclass(frozen=True)
class LayerPlaces:
    """Where the parts of a layer are. `projections` has the children query, key and value."""

    projections: nn.Module
    attention_output: Place
    attention_norm: Place
    up: Place
    activation: Place
    down: Place
    output_norm: Place


class LayerReading(NamedTuple):
    """A layer; `epsilons` are those of its LayerNorms."""

    weights: LayerWeights
    head_size: int
    intermediate_size: int
    activation: str
    epsilons: list[float]


class Embeddings(NamedTuple):
    """The three tables, their LayerNorm, and its eps."""

    word: Tensor
    position: Tensor
    types: Tensor
    norm: LayerNorm
    eps: float


def read_embeddings(reader: ModuleReader, embeddings: nn.Module) -> Embeddings:
    """BERT's and ALBERT's embeddings, which are alike.

    Raises:
        UnreadableError: a part is something else.
    """
    word = reader.embedding(embeddings, "word_embeddings")
    position = reader.embedding(embeddings, "position_embeddings")
    types = reader.embedding(embeddings, "token_type_embeddings")
    if not word.shape[1] == position.shape[1] == types.shape[1]:
        raise UnreadableError("the embedding tables have different widths")
    norm, eps = reader.layer_norm(embeddings, "LayerNorm", word.shape[1])
    reader.dropout(embeddings, "dropout")
    columns = torch.arange(position.shape[0], device=position.device)[None]
    reader.default_ids(embeddings, "position_ids", columns)
    reader.default_ids(embeddings, "token_type_ids", torch.zeros_like(columns))
    return Embeddings(word, position, types, norm, eps)


def read_layer(reader: ModuleReader, places: LayerPlaces, hidden_size: int) -> LayerReading:
    """Read a layer, which must be as EncoderSpec says.

    Raises:
        UnreadableError: a part is something else.
    """
    head_size = _read_head_size(reader, places.projections, hidden_size)
    attention_norm, attention_eps = reader.layer_norm(*places.attention_norm, hidden_size)
    output_norm, output_eps = reader.layer_norm(*places.output_norm, hidden_size)
    intermediate_size = reader.out_features(*places.up)
    query, key, value = (
        reader.linear(places.projections, name, hidden_size, hidden_size) for name in ("query", "key", "value")
    )
    weights = LayerWeights(
        query=query,
        key=key,
        value=value,
        attention_output=reader.linear(*places.attention_output, hidden_size, hidden_size),
        attention_norm=attention_norm,
        up=reader.linear(*places.up, hidden_size, intermediate_size),
        down=reader.linear(*places.down, intermediate_size, hidden_size),
        output_norm=output_norm,
    )
    activation = read_activation(reader, *places.activation)
    return LayerReading(weights, head_size, intermediate_size, activation, [attention_eps, output_eps])


def make_encoder(
    embeddings: Embeddings,
    mapping: Linear | None,
    hidden_size: int,
    layers: list[LayerReading],
    schedule: Sequence[int],
) -> tuple[EncoderSpec, EncoderWeights]:
    """The encoder that runs `layers` in the order of `schedule`.

    Raises:
        UnreadableError: there are no layers, or their shapes differ.
    """
    if not schedule:
        raise UnreadableError("the model has no layers")
    shapes = [(layer.head_size, layer.intermediate_size, layer.activation) for layer in layers]
    head_size, intermediate_size, activation = _same_for_all(shapes, "head sizes, widths or activations")
    epsilons = [embeddings.eps, *(eps for layer in layers for eps in layer.epsilons)]
    spec = EncoderSpec(
        vocab_size=embeddings.word.shape[0],
        max_positions=embeddings.position.shape[0],
        type_vocab_size=embeddings.types.shape[0],
        embedding_size=embeddings.word.shape[1],
        hidden_size=hidden_size,
        num_heads=hidden_size // head_size,
        head_size=head_size,
        intermediate_size=intermediate_size,
        activation=activation,
        layer_norm_eps=_same_for_all(epsilons, "LayerNorm eps"),
        layer_schedule=tuple(schedule),
    )
    weights = EncoderWeights(
        word_embeddings=embeddings.word,
        position_embeddings=embeddings.position,
        type_embeddings=embeddings.types,
        embedding_norm=embeddings.norm,
        mapping=mapping,
        layers=tuple(layer.weights for layer in layers),
    )
    return spec, weights


def _same_for_all(values: list[Any], what: str) -> Any:
    """The one value that all layers share; UnreadableError if they differ."""
    if any(value != values[0] for value in values):
        raise UnreadableError(f"the layers have different {what}: {values}")
    return values[0]


def _read_head_size(reader: ModuleReader, attention: nn.Module, hidden_size: int) -> int:
    """Head size of an attention module whose scores are scaled by its inverse square root, without a causal mask."""
    head_size = reader.attribute(attention, "attention_head_size")
    if not isinstance(head_size, int) or head_size < 1 or hidden_size % head_size:
        raise UnreadableError(f"hidden size {hidden_size} is not a multiple of the head size {head_size}")
    scaling = reader.attribute(attention, "scaling")
    if not isinstance(scaling, float) or not math.isclose(scaling, head_size**-0.5):
        raise UnreadableError(f"attention scores are scaled by {scaling}, not by head size ** -0.5")
    if reader.attribute(attention, "is_causal"):
        raise UnreadableError("attention is causal")
    reader.watch.add_active_in_training(attention)  # it drops probabilities by itself
    if "distance_embedding" in attention._modules:
        raise UnreadableError("attention uses relative positions")
    return head_size
