"""Tiny random models as folders, for tests through sentence-transformers."""

from __future__ import annotations

import string
from pathlib import Path

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Transformer
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from torch import nn
from transformers import (
    AlbertConfig,
    AlbertModel,
    BertConfig,
    BertModel,
    BertTokenizer,
    PreTrainedTokenizerFast,
    logging,
)

import fastsal

logging.disable_progress_bar()

WORDS = ["the", "a", "cat", "dog", "sat", "on", "mat", "man", "plays", "guitar", "old", "green", "house", "red", "car"]
MAX_POSITIONS = 48

#: Texts of 2 to some 40 tokens, with the characters that tokenizers are known to trip over.
TEXTS = [
    "the cat sat on the mat",
    "a dog",
    "",
    "old green house and the red car of the old man and the dog was on the mat",
    "a man plays guitar",
    "cat",
    "5+3=8",
    "cat\U0001f600",
    "\U0001f600",
    "❤️",
    "́̂",
    "cat\r\ndog cat dog\tcat",
    "ca\x00t ca​t ca\x7ft ﻿cat",
    "cat [SEP] dog",
    "[PAD] cat",
    "<pad> cat",
    "[MASK]cat [sep]",
    "x" * 101,
    "The Cat SAT; on: the, mat.",
    " ".join(["the cat"] * 15),
]


def bert_vocabulary() -> dict[str, int]:
    letters = [prefix + letter for letter in string.ascii_lowercase + string.digits for prefix in ("", "##")]
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, *WORDS, "+", "=", ",", ".", ";", ":"]
    return {token: index for index, token in enumerate(dict.fromkeys(tokens))}


def bert_checkpoint(folder: Path, seed: int = 0, **config: object) -> Path:
    """A plain Hugging Face BERT folder with a WordPiece tokenizer."""
    torch.manual_seed(seed)
    vocabulary = bert_vocabulary()
    defaults = {
        "vocab_size": len(vocabulary),
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 64,
        "max_position_embeddings": MAX_POSITIONS,
    }
    _save(BertModel(BertConfig(**{**defaults, **config})), folder)
    BertTokenizer(vocab=vocabulary, do_lower_case=True).save_pretrained(folder)
    return folder


def albert_checkpoint(folder: Path, seed: int = 0, **config: object) -> Path:
    """A plain Hugging Face ALBERT folder with a Unigram tokenizer."""
    torch.manual_seed(seed)
    tokenizer = unigram_tokenizer()
    defaults = {
        "vocab_size": len(tokenizer),
        "embedding_size": 16,
        "hidden_size": 32,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "intermediate_size": 64,
        "max_position_embeddings": MAX_POSITIONS,
        "hidden_dropout_prob": 0.1,
    }
    _save(AlbertModel(AlbertConfig(**{**defaults, **config})), folder)
    tokenizer.save_pretrained(folder)
    return folder


def unigram_tokenizer() -> PreTrainedTokenizerFast:
    pieces = [
        "<pad>",
        "<unk>",
        "[CLS]",
        "[SEP]",
        "[MASK]",
        "▁",
        *string.ascii_lowercase,
        *("▁" + word for word in WORDS),
    ]
    scores = [(piece, 0.0 if index < 5 else -len(pieces) / (index + 1)) for index, piece in enumerate(pieces)]
    tokenizer = Tokenizer(models.Unigram(scores, unk_id=1))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.NFKD(), normalizers.StripAccents(), normalizers.Lowercase()]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        unk_token="<unk>",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
    )


def model_folder(folder: Path, checkpoint: Path, *behind: nn.Module, **settings: object) -> Path:
    """A sentence-transformers folder: the checkpoint's encoder and the modules behind it."""
    model = SentenceTransformer(modules=[Transformer(str(checkpoint)), *behind], device="cpu", **settings)
    model.save(str(folder), create_model_card=False)
    return folder


def encoders_of(folder: Path) -> tuple[SentenceTransformer, fastsal.SentenceEncoder]:
    """The reference and fastsal."""
    return SentenceTransformer(str(folder), device="cpu"), fastsal.SentenceEncoder(str(folder), device="cpu")


def _save(model: nn.Module, folder: Path) -> None:
    # Wide weights make the tokens differ, so that a mixed-up row or a pooled pad shows.
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(5)
            else:
                parameter.add_(0.1 * torch.randn_like(parameter))
    model.save_pretrained(folder)
