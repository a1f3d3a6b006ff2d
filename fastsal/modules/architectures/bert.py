"""`transformers.BertModel` as an encoder."""

from __future__ import annotations

from transformers.models.bert import modeling_bert as hf

from fastsal.engine.spec import EncoderSpec, EncoderWeights
from fastsal.modules.architectures.layers import LayerPlaces, LayerReading, make_encoder, read_embeddings, read_layer
from fastsal.modules.architectures.reader import ModuleReader, UnreadableError


def read_bert(model: hf.BertModel, reader: ModuleReader) -> tuple[EncoderSpec, EncoderWeights]:
    """Read a BertModel.

    Raises:
        UnreadableError: it is a decoder, or computes something that EncoderSpec cannot say.
    """
    if reader.attribute(reader.attribute(model, "config"), "is_decoder"):
        raise UnreadableError("the model is a decoder")
    embeddings = read_embeddings(reader, reader.child(model, "embeddings", hf.BertEmbeddings))
    hidden_size = embeddings.word.shape[1]
    encoder = reader.child(model, "encoder", hf.BertEncoder)
    layers = [_read_layer(layer, reader, hidden_size) for layer in reader.children(encoder, "layer", hf.BertLayer)]
    return make_encoder(embeddings, None, hidden_size, layers, list(range(len(layers))))


def _read_layer(layer: hf.BertLayer, reader: ModuleReader, hidden_size: int) -> LayerReading:
    attention = reader.child(layer, "attention", hf.BertAttention)
    projections = reader.child(attention, "self", hf.BertSelfAttention)
    attention_output = reader.child(attention, "output", hf.BertSelfOutput)
    intermediate = reader.child(layer, "intermediate", hf.BertIntermediate)
    output = reader.child(layer, "output", hf.BertOutput)
    for parent in (projections, attention_output, output):
        reader.dropout(parent, "dropout")
    places = LayerPlaces(
        projections=projections,
        attention_output=(attention_output, "dense"),
        attention_norm=(attention_output, "LayerNorm"),
        up=(intermediate, "dense"),
        activation=(intermediate, "intermediate_act_fn"),
        down=(output, "dense"),
        output_norm=(output, "LayerNorm"),
    )
    return read_layer(reader, places, hidden_size)
