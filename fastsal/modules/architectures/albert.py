"""`transformers.AlbertModel`: factorised embeddings, groups of layers that are run again and again."""

from __future__ import annotations

from transformers.models.albert import modeling_albert as hf

from fastsal.engine.architectures.albert import layer_schedule
from fastsal.engine.spec import EncoderSpec, EncoderWeights
from fastsal.modules.architectures.layers import LayerPlaces, LayerReading, make_encoder, read_embeddings, read_layer
from fastsal.modules.architectures.reader import ModuleReader, UnreadableError


def read_albert(model: hf.AlbertModel, reader: ModuleReader) -> tuple[EncoderSpec, EncoderWeights]:
    """Read an AlbertModel.

    Raises:
        UnreadableError: it computes something that EncoderSpec cannot say.
    """
    embeddings = read_embeddings(reader, reader.child(model, "embeddings", hf.AlbertEmbeddings))
    encoder = reader.child(model, "encoder", hf.AlbertTransformer)
    hidden_size = reader.out_features(encoder, "embedding_hidden_mapping_in")
    mapping = reader.linear(encoder, "embedding_hidden_mapping_in", embeddings.word.shape[1], hidden_size)

    layers: list[LayerReading] = []
    group_sizes: list[int] = []
    for group in reader.children(encoder, "albert_layer_groups", hf.AlbertLayerGroup):
        members = reader.children(group, "albert_layers", hf.AlbertLayer)
        layers += [_read_layer(layer, reader, hidden_size) for layer in members]
        group_sizes.append(len(members))

    config = reader.attribute(encoder, "config")
    num_groups = reader.attribute(config, "num_hidden_groups")
    try:
        schedule = layer_schedule(reader.attribute(config, "num_hidden_layers"), num_groups, group_sizes)
    except IndexError:
        raise UnreadableError(f"the config names {num_groups} layer groups, the model has {len(group_sizes)}") from None
    return make_encoder(embeddings, mapping, hidden_size, layers, schedule)


def _read_layer(layer: hf.AlbertLayer, reader: ModuleReader, hidden_size: int) -> LayerReading:
    attention = reader.child(layer, "attention", hf.AlbertAttention)
    reader.dropout(attention, "attention_dropout")
    reader.dropout(attention, "output_dropout")
    reader.dropout(layer, "dropout")
    places = LayerPlaces(
        projections=attention,
        attention_output=(attention, "dense"),
        attention_norm=(attention, "LayerNorm"),
        up=(layer, "ffn"),
        activation=(layer, "activation"),
        down=(layer, "ffn_output"),
        output_norm=(layer, "full_layer_layer_norm"),
    )
    return read_layer(reader, places, hidden_size)
