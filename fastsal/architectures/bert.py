"""`transformers.BertModel` as an encoder."""

from __future__ import annotations

from transformers.models.bert import modeling_bert as hf

from fastsal.architectures.activations import read_activation
from fastsal.architectures.reader import ModuleReader, UnreadableError, read_head_size, read_tables, same_for_all
from fastsal.spec import EncoderSpec, EncoderWeights, LayerWeights


def read_bert(model: hf.BertModel, reader: ModuleReader) -> tuple[EncoderSpec, EncoderWeights]:
    """Read a BertModel.

    Raises:
        UnreadableError: it is a decoder, or computes something that EncoderSpec cannot say.
    """
    if reader.attribute(model.config, "is_decoder"):
        raise UnreadableError("the model is a decoder")
    embeddings = reader.child(model, "embeddings", hf.BertEmbeddings)
    word, position, types, embedding_norm, eps = read_tables(reader, embeddings)
    hidden_size = word.shape[1]
    encoder = reader.child(model, "encoder", hf.BertEncoder)

    layers: list[LayerWeights] = []
    shapes: list[tuple[int, int, str]] = []  # head size, intermediate size, activation
    epsilons = [eps]
    for layer in reader.children(encoder, "layer", hf.BertLayer):
        weights, shape, layer_epsilons = _read_layer(layer, reader, hidden_size)
        layers.append(weights)
        shapes.append(shape)
        epsilons += layer_epsilons
    if not layers:
        raise UnreadableError("the model has no layers")

    head_size, intermediate_size, activation = same_for_all(shapes, "head sizes, widths or activations")
    spec = EncoderSpec(
        vocab_size=word.shape[0],
        max_positions=position.shape[0],
        type_vocab_size=types.shape[0],
        embedding_size=hidden_size,
        hidden_size=hidden_size,
        num_heads=hidden_size // head_size,
        head_size=head_size,
        intermediate_size=intermediate_size,
        activation=activation,
        layer_norm_eps=same_for_all(epsilons, "LayerNorm eps"),
        layer_schedule=tuple(range(len(layers))),
    )
    return spec, EncoderWeights(word, position, types, embedding_norm, None, tuple(layers))


def _read_layer(
    layer: hf.BertLayer, reader: ModuleReader, hidden_size: int
) -> tuple[LayerWeights, tuple[int, int, str], list[float]]:
    attention = reader.child(layer, "attention", hf.BertAttention)
    projections = reader.child(attention, "self", hf.BertSelfAttention)
    head_size = read_head_size(reader, projections, hidden_size)
    attention_output = reader.child(attention, "output", hf.BertSelfOutput)
    intermediate = reader.child(layer, "intermediate", hf.BertIntermediate)
    output = reader.child(layer, "output", hf.BertOutput)
    for parent in (projections, attention_output, output):
        reader.dropout(parent, "dropout")
    attention_norm, attention_eps = reader.layer_norm(attention_output, "LayerNorm", hidden_size)
    output_norm, output_eps = reader.layer_norm(output, "LayerNorm", hidden_size)
    intermediate_size = reader.out_features(intermediate, "dense")
    weights = LayerWeights(
        query=reader.linear(projections, "query", hidden_size, hidden_size),
        key=reader.linear(projections, "key", hidden_size, hidden_size),
        value=reader.linear(projections, "value", hidden_size, hidden_size),
        attention_output=reader.linear(attention_output, "dense", hidden_size, hidden_size),
        attention_norm=attention_norm,
        up=reader.linear(intermediate, "dense", hidden_size, intermediate_size),
        down=reader.linear(output, "dense", intermediate_size, hidden_size),
        output_norm=output_norm,
    )
    shape = (head_size, intermediate_size, read_activation(reader, intermediate, "intermediate_act_fn"))
    return weights, shape, [attention_eps, output_eps]
