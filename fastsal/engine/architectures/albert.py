"""ALBERT, as `transformers.AlbertModel` saves it: factorised embeddings, groups of layers that run again and again."""

from __future__ import annotations

from fastsal.engine.architectures.parts import Parts
from fastsal.engine.spec import EncoderSpec, EncoderWeights, LayerWeights


def read_albert(parts: Parts) -> tuple[EncoderSpec, EncoderWeights]:
    """Read an AlbertModel.

    Raises:
        UnsupportedModelError, ValueError: as `read_encoder_folder`.
    """
    hidden, num_heads = parts.count("hidden_size", 4096), parts.count("num_attention_heads", 64)
    embedding, intermediate = parts.count("embedding_size", 128), parts.count("intermediate_size", 16384)
    num_layers, num_groups = parts.count("num_hidden_layers", 12), parts.count("num_hidden_groups", 1)
    inner = parts.count("inner_group_num", 1)
    if num_groups > num_layers:
        raise ValueError(f"{parts.path}: num_hidden_groups {num_groups} must be at most num_hidden_layers {num_layers}")
    spec = EncoderSpec(
        vocab_size=parts.count("vocab_size", 30000),
        max_positions=parts.count("max_position_embeddings", 512),
        type_vocab_size=parts.count("type_vocab_size", 2),
        embedding_size=embedding,
        hidden_size=hidden,
        num_heads=num_heads,
        head_size=parts.head_size(hidden, num_heads),
        intermediate_size=intermediate,
        activation=parts.activation("gelu_new"),
        layer_norm_eps=parts.epsilon(),
        layer_schedule=layer_schedule(num_layers, num_groups, [inner] * num_groups),
    )
    weights = EncoderWeights(
        word_embeddings=parts.table("embeddings.word_embeddings", spec.vocab_size, embedding),
        position_embeddings=parts.table("embeddings.position_embeddings", spec.max_positions, embedding),
        type_embeddings=parts.table("embeddings.token_type_embeddings", spec.type_vocab_size, embedding),
        embedding_norm=parts.layer_norm("embeddings.LayerNorm", embedding),
        mapping=parts.linear("encoder.embedding_hidden_mapping_in", embedding, hidden),
        layers=tuple(
            _read_layer(parts, f"encoder.albert_layer_groups.{group}.albert_layers.{i}", hidden, intermediate)
            for group in range(num_groups)
            for i in range(inner)
        ),
    )
    return spec, weights


def layer_schedule(num_layers: int, num_groups: int, group_sizes: list[int]) -> tuple[int, ...]:
    """Indices of the layers in running order: per step one group, and in it every inner layer.

    Raises:
        IndexError: the formula names a group that is not there.
    """
    firsts = [sum(group_sizes[:group]) for group in range(len(group_sizes))]
    schedule: list[int] = []
    for step in range(num_layers):
        group = int(step / (num_layers / num_groups))  # transformers' formula, rounding included
        schedule += range(firsts[group], firsts[group] + group_sizes[group])
    return tuple(schedule)


def _read_layer(parts: Parts, name: str, hidden: int, intermediate: int) -> LayerWeights:
    return LayerWeights(
        query=parts.linear(f"{name}.attention.query", hidden, hidden),
        key=parts.linear(f"{name}.attention.key", hidden, hidden),
        value=parts.linear(f"{name}.attention.value", hidden, hidden),
        attention_output=parts.linear(f"{name}.attention.dense", hidden, hidden),
        attention_norm=parts.layer_norm(f"{name}.attention.LayerNorm", hidden),
        up=parts.linear(f"{name}.ffn", hidden, intermediate),
        down=parts.linear(f"{name}.ffn_output", intermediate, hidden),
        output_norm=parts.layer_norm(f"{name}.full_layer_layer_norm", hidden),
    )
