"""A small ALBERT that starts from a BERT sentence encoder, its teacher.

The teacher embeds every piece of the student's vocabulary, alone between its special tokens; the principal components
of these vectors become the student's factorised embedding table, and their directions its mapping to the hidden size.
So the untrained student's token states, and with them their mean, lie where the teacher's embeddings lie. (Embedding
a vocabulary by a sentence encoder, then PCA, is how Model2Vec makes static embeddings: Tulkens and van Dongen 2024.)
The shared layer starts as the teacher's last.
"""

from __future__ import annotations

import torch
from sentence_transformers import SentenceTransformer
from torch import Tensor, nn
from transformers import AlbertModel, BertModel, PreTrainedTokenizerBase

from fastsal import SentenceEncoder

_CONTINUATION = "##"


def embed_vocabulary(teacher: SentenceTransformer, tokenizer: PreTrainedTokenizerBase) -> Tensor:
    """(V, D) float32 of length 1: what `teacher` says about each piece of `tokenizer`.

    Pieces that continue a word are embedded as such where the teacher's WordPiece vocabulary has them too, otherwise
    as if they were words.
    """
    known = teacher.tokenizer.get_vocab()
    beginning, end = teacher.tokenizer.cls_token_id, teacher.tokenizer.sep_token_id

    def teacher_ids(piece: str) -> list[int]:
        if piece in known:
            return [known[piece]]
        word = piece.removeprefix(_CONTINUATION)
        return teacher.tokenizer(word, add_special_tokens=False)["input_ids"] or [teacher.tokenizer.unk_token_id]

    pieces = tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))
    token_lists = [[beginning, *teacher_ids(piece), end] for piece in pieces]
    encoder = SentenceEncoder(modules=list(teacher), device="cpu")[0].model
    with torch.inference_mode():
        return encoder.sentence_embeddings(token_lists, pooling="mean", normalize=True).float()


def start_from_teacher(model: AlbertModel, tokenizer: PreTrainedTokenizerBase, teacher: SentenceTransformer) -> None:
    """Set embeddings and shared layer of a fresh `model`, whose tokenizer is `tokenizer`, by `teacher`'s.

    Raises:
        ValueError: the teacher is no BERT of the model's hidden size, heads and intermediate size.
    """
    encoder = teacher[0].model
    if not isinstance(encoder, BertModel):
        raise ValueError(f"teacher must be a BERT model, got {type(encoder).__name__}")
    for name in ("hidden_size", "num_attention_heads", "intermediate_size", "hidden_act"):
        wanted, got = getattr(encoder.config, name), getattr(model.config, name)
        if wanted != got:
            raise ValueError(f"config: {name} must be the teacher's {wanted!r}, got {got!r}")
    _set_embeddings(model, embed_vocabulary(teacher, tokenizer))
    _set_layer(model.encoder.albert_layer_groups[0].albert_layers[0], encoder.encoder.layer[-1])


def _set_embeddings(model: AlbertModel, vocabulary: Tensor) -> None:
    """Token embeddings and hidden mapping by the principal components of `vocabulary` (V, H); positions are halved."""
    config = model.config
    mean = vocabulary.mean(dim=0)
    centred = vocabulary - mean
    directions = torch.linalg.svd(centred, full_matrices=False).Vh[: config.embedding_size]
    components = centred @ directions.T
    mapping: nn.Linear = model.encoder.embedding_hidden_mapping_in
    scale = components.std()  # the layer norm behind the table brings components to 1
    with torch.no_grad():
        model.embeddings.word_embeddings.weight.copy_(components / scale)
        model.embeddings.position_embeddings.weight.mul_(0.5)
        mapping.weight.copy_(directions.T)
        mapping.bias.copy_(mean / scale)


def _set_layer(layer: nn.Module, source: nn.Module) -> None:
    pairs = (
        (layer.attention.query, source.attention.self.query),
        (layer.attention.key, source.attention.self.key),
        (layer.attention.value, source.attention.self.value),
        (layer.attention.dense, source.attention.output.dense),
        (layer.attention.LayerNorm, source.attention.output.LayerNorm),
        (layer.ffn, source.intermediate.dense),
        (layer.ffn_output, source.output.dense),
        (layer.full_layer_layer_norm, source.output.LayerNorm),
    )
    for module, source_module in pairs:
        module.load_state_dict(source_module.state_dict())
