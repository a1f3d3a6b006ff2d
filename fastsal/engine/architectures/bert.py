"""BERT, as `transformers.BertModel` saves it."""

from __future__ import annotations

from fastsal.engine.architectures.parts import Parts
from fastsal.engine.spec import EncoderSpec, EncoderWeights, LayerWeights


def read_bert(parts: Parts) -> tuple[EncoderSpec, EncoderWeights]:
    """Read a BertModel.

    Raises:
        UnsupportedModelError, ValueError: as `read_encoder_folder`.
    """
    hidden, num_heads = parts.count("hidden_size", 768), parts.count("num_attention_heads", 12)
    num_layers, intermediate = parts.count("num_hidden_layers", 12), parts.count("intermediate_size", 3072)
    spec = EncoderSpec(
        vocab_size=parts.count("vocab_size", 30522),
        max_positions=parts.count("max_position_embeddings", 512),
        type_vocab_size=parts.count("type_vocab_size", 2),
        embedding_size=hidden,
        hidden_size=hidden,
        num_heads=num_heads,
        head_size=parts.head_size(hidden, num_heads),
        intermediate_size=intermediate,
        activation=parts.activation("gelu"),
        layer_norm_eps=parts.epsilon(),
        layer_schedule=tuple(range(num_layers)),
    )
    weights = EncoderWeights(
        word_embeddings=parts.table("embeddings.word_embeddings", spec.vocab_size, hidden),
        position_embeddings=parts.table("embeddings.position_embeddings", spec.max_positions, hidden),
        type_embeddings=parts.table("embeddings.token_type_embeddings", spec.type_vocab_size, hidden),
        embedding_norm=parts.layer_norm("embeddings.LayerNorm", hidden),
        mapping=None,
        layers=tuple(_read_layer(parts, f"encoder.layer.{i}", hidden, intermediate) for i in range(num_layers)),
    )
    return spec, weights


def _read_layer(parts: Parts, name: str, hidden: int, intermediate: int) -> LayerWeights:
    return LayerWeights(
        query=parts.linear(f"{name}.attention.self.query", hidden, hidden),
        key=parts.linear(f"{name}.attention.self.key", hidden, hidden),
        value=parts.linear(f"{name}.attention.self.value", hidden, hidden),
        attention_output=parts.linear(f"{name}.attention.output.dense", hidden, hidden),
        attention_norm=parts.layer_norm(f"{name}.attention.output.LayerNorm", hidden),
        up=parts.linear(f"{name}.intermediate.dense", hidden, intermediate),
        down=parts.linear(f"{name}.output.dense", intermediate, hidden),
        output_norm=parts.layer_norm(f"{name}.output.LayerNorm", hidden),
    )
