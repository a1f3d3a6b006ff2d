"""`transformers.AlbertModel`: factorised embeddings, groups of layers that are run again and again."""

from __future__ import annotations

from transformers.models.albert import modeling_albert as hf

from fastsal.architectures.activations import read_activation
from fastsal.architectures.reader import ModuleReader, UnreadableError, read_head_size, read_tables, same_for_all
from fastsal.spec import EncoderSpec, EncoderWeights, LayerWeights


def read_albert(model: hf.AlbertModel, reader: ModuleReader) -> tuple[EncoderSpec, EncoderWeights]:
    """Read an AlbertModel.

    Raises:
        UnreadableError: it computes something that EncoderSpec cannot say.
    """
    embeddings = reader.child(model, "embeddings", hf.AlbertEmbeddings)
    word, position, types, embedding_norm, eps = read_tables(reader, embeddings)
    encoder = reader.child(model, "encoder", hf.AlbertTransformer)
    hidden_size = reader.out_features(encoder, "embedding_hidden_mapping_in")
    mapping = reader.linear(encoder, "embedding_hidden_mapping_in", word.shape[1], hidden_size)

    layers: list[LayerWeights] = []
    shapes: list[tuple[int, int, str]] = []  # head size, intermediate size, activation
    epsilons = [eps]
    group_members: list[range] = []
    for group in reader.children(encoder, "albert_layer_groups", hf.AlbertLayerGroup):
        first = len(layers)
        for layer in reader.children(group, "albert_layers", hf.AlbertLayer):
            weights, shape, layer_epsilons = _read_layer(layer, reader, hidden_size)
            layers.append(weights)
            shapes.append(shape)
            epsilons += layer_epsilons
        group_members.append(range(first, len(layers)))

    schedule = _layer_schedule(
        reader.attribute(encoder.config, "num_hidden_layers"),
        reader.attribute(encoder.config, "num_hidden_groups"),
        group_members,
    )
    head_size, intermediate_size, activation = same_for_all(shapes, "head sizes, widths or activations")
    spec = EncoderSpec(
        vocab_size=word.shape[0],
        max_positions=position.shape[0],
        type_vocab_size=types.shape[0],
        embedding_size=word.shape[1],
        hidden_size=hidden_size,
        num_heads=hidden_size // head_size,
        head_size=head_size,
        intermediate_size=intermediate_size,
        activation=activation,
        layer_norm_eps=same_for_all(epsilons, "LayerNorm eps"),
        layer_schedule=schedule,
    )
    return spec, EncoderWeights(word, position, types, embedding_norm, mapping, tuple(layers))


def _layer_schedule(num_layers: int, num_groups: int, group_members: list[range]) -> tuple[int, ...]:
    """Indices of the layers in running order: per step one group, and in it every inner layer."""
    schedule: list[int] = []
    for step in range(num_layers):
        group = int(step / (num_layers / num_groups))  # transformers' formula, rounding included
        if group >= len(group_members):
            raise UnreadableError(f"the config names {num_groups} layer groups, the model has {len(group_members)}")
        schedule += group_members[group]
    if not schedule:
        raise UnreadableError("the model has no layers")
    return tuple(schedule)


def _read_layer(
    layer: hf.AlbertLayer, reader: ModuleReader, hidden_size: int
) -> tuple[LayerWeights, tuple[int, int, str], list[float]]:
    attention = reader.child(layer, "attention", hf.AlbertAttention)
    head_size = read_head_size(reader, attention, hidden_size)
    reader.dropout(attention, "attention_dropout")
    reader.dropout(attention, "output_dropout")
    reader.dropout(layer, "dropout")
    attention_norm, attention_eps = reader.layer_norm(attention, "LayerNorm", hidden_size)
    output_norm, output_eps = reader.layer_norm(layer, "full_layer_layer_norm", hidden_size)
    intermediate_size = reader.out_features(layer, "ffn")
    weights = LayerWeights(
        query=reader.linear(attention, "query", hidden_size, hidden_size),
        key=reader.linear(attention, "key", hidden_size, hidden_size),
        value=reader.linear(attention, "value", hidden_size, hidden_size),
        attention_output=reader.linear(attention, "dense", hidden_size, hidden_size),
        attention_norm=attention_norm,
        up=reader.linear(layer, "ffn", hidden_size, intermediate_size),
        down=reader.linear(layer, "ffn_output", intermediate_size, hidden_size),
        output_norm=output_norm,
    )
    shape = (head_size, intermediate_size, read_activation(reader, layer, "activation"))
    return weights, shape, [attention_eps, output_eps]
