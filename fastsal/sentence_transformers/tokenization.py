"""Texts -> token ids without padding, the same ids that sentence-transformers' `preprocess` gives.

How a text is truncated, whether token types are passed on and how long the prompt is, is not worked out here: the
model's own `preprocess` is asked once per setting with a one-letter text, and leaves its tokenizer set accordingly.
Texts then go through a tokenizer of the call's own, which shares the parts of the model's: no lock, and whatever of the
parts was changed counts from the next call on.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast
from weakref import WeakKeyDictionary

from sentence_transformers import SentenceTransformer
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from fastsal.engine.tokenization import TextTokenizer, Tokens, join
from fastsal.engine.tokenizer_files import shared_copy

#: What `preprocess` may return for this module to stand in for it; anything else is a feature unknown here.
_KNOWN_FEATURES = {"input_ids", "attention_mask", "token_type_ids", "modality", "prompt_length"}

#: Settings remembered per tokenizer: a bound for callers who come with ever new prompts.
_MAX_SETTINGS = 256

#: Texts per call of a `preprocess`, which pads them to the longest.
_TEXTS_PER_CALL = 512


@dataclass(frozen=True)
class Settings:
    """What one call of `encode` asks of the tokenizer.

    Attributes:
        prompt: text put in front of every text, maybe empty.
        prompt_length: tokens that the prompt takes at the start of every text (with the leading special token).
        passes_types: the tokenizer's token types reach the model; it sees zeros otherwise.
        truncation: the backend tokenizer's truncation parameters, None for no truncation.
        split_special_tokens: special tokens written out in a text are taken apart as any word.
    """

    prompt: str
    prompt_length: int
    passes_types: bool
    truncation: dict[str, Any] | None
    split_special_tokens: bool


class UnknownFeaturesError(Exception):
    """`preprocess` of this model does more than tokenise; the message says what."""


@dataclass
class _Shared:
    """What all users of one tokenizer object share.

    Truncation and padding are states of the tokenizer, so whoever calls `preprocess` holds the lock.
    """

    lock: threading.RLock = field(default_factory=threading.RLock)
    settings: dict[tuple, Settings] = field(default_factory=dict)


_shared: WeakKeyDictionary[PreTrainedTokenizerBase, _Shared] = WeakKeyDictionary()
_shared_guard = threading.Lock()


def _forget_after_fork() -> None:
    # A thread of the parent may have held any of the locks; in the child it does not exist.
    global _shared, _shared_guard
    _shared, _shared_guard = WeakKeyDictionary(), threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_after_fork)


def _shared_of(tokenizer: PreTrainedTokenizerBase) -> _Shared:
    shared = _shared.get(tokenizer)
    if shared is None:
        with _shared_guard:
            shared = _shared.setdefault(tokenizer, _Shared())
    return shared


def tokenizer_lock(tokenizer: PreTrainedTokenizerBase) -> threading.RLock:
    """The lock to hold while using a tokenizer whose truncation or padding another thread may set."""
    return _shared_of(tokenizer).lock


def _tokenizer_of(model: SentenceTransformer) -> PreTrainedTokenizerBase:
    return cast(PreTrainedTokenizerBase, model[0].tokenizer)


def read_settings(model: SentenceTransformer, prompt: str | None, task: str | None) -> Settings:
    """Find out how `model` tokenises texts with this prompt and task.

    Raises:
        UnknownFeaturesError: its `preprocess` gives features other than those of a plain text encoder.
    """
    transformer, tokenizer = model[0], _tokenizer_of(model)
    key = (
        prompt,
        task,
        tokenizer.model_max_length,
        tokenizer.truncation_side,
        getattr(tokenizer, "split_special_tokens", False),
        tuple(tokenizer.model_input_names),
        getattr(transformer, "query_length", None),
        getattr(transformer, "document_length", None),
        repr(getattr(transformer, "query_expansion", None)),  # a dict
    )
    shared = _shared_of(tokenizer)
    settings = shared.settings.get(key)
    if settings is None:
        with shared.lock:
            settings = _ask(model, prompt, task)
            if len(shared.settings) >= _MAX_SETTINGS:
                shared.settings.clear()
            shared.settings[key] = settings
    return settings


def _ask(model: SentenceTransformer, prompt: str | None, task: str | None) -> Settings:
    features: dict[str, Any] = model.preprocess(["a"], prompt=prompt, **({} if task is None else {"task": task}))
    if unknown := set(features) - _KNOWN_FEATURES:
        raise UnknownFeaturesError(f"its preprocess gives {', '.join(sorted(unknown))}")
    if features.get("modality", "text") != "text":
        raise UnknownFeaturesError(f"its preprocess turns texts into {features['modality']!r} inputs")
    tokenizer = _tokenizer_of(model)
    backend = cast(PreTrainedTokenizerFast, tokenizer).backend_tokenizer if is_plain(tokenizer) else None
    return Settings(
        prompt=prompt or "",
        prompt_length=features.get("prompt_length") or 0,
        passes_types="token_type_ids" in features,
        truncation=None if backend is None else backend.truncation,
        split_special_tokens=backend is not None and backend.encode_special_tokens,
    )


def is_plain(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Whether calling `tokenizer` comes to calling its Rust tokenizer and nothing else."""
    return isinstance(tokenizer, PreTrainedTokenizerFast) and all(
        getattr(type(tokenizer), name, None) is getattr(PreTrainedTokenizerFast, name, None)
        for name in ("__call__", "_encode_plus", "_convert_encoding")
    )


def make_tokenize(
    model: SentenceTransformer, settings: Settings, task: str | None
) -> Callable[[Sequence[str]], Tokens]:
    """What tokenises texts exactly as ``model.preprocess(texts, prompt, task=task)`` does, without the padding."""
    tokenizer = _tokenizer_of(model)
    if not is_plain(tokenizer):
        return partial(_tokenize_by_reference, model, settings=settings, task=task)
    own = shared_copy(cast(PreTrainedTokenizerFast, tokenizer).backend_tokenizer)
    own.encode_special_tokens = settings.split_special_tokens
    if settings.truncation is not None:
        own.enable_truncation(**settings.truncation)
    return TextTokenizer(own, settings.prompt, settings.passes_types)


def _tokenize_by_reference(
    model: SentenceTransformer, texts: Sequence[str], settings: Settings, task: str | None
) -> Tokens:
    parts = []
    for start in range(0, len(texts), _TEXTS_PER_CALL):
        features = model.preprocess(
            list(texts[start : start + _TEXTS_PER_CALL]),
            prompt=settings.prompt,
            **({} if task is None else {"task": task}),
        )
        mask = features["attention_mask"].bool()
        types = features["token_type_ids"][mask].long().numpy() if settings.passes_types else None
        parts.append(
            Tokens(
                features["input_ids"][mask].long().numpy(),
                types if types is not None and types.any() else None,
                mask.sum(dim=1).numpy(),
            )
        )
    return join(parts)


def find_vocabulary_gap(tokenizer: PreTrainedTokenizerBase, vocab_size: int) -> tuple[str | None, str | None]:
    """An error and a warning about a tokenizer that knows too few tokens for a table of `vocab_size` embeddings.

    transformers builds an empty tokenizer where the vocabulary file is missing, and every word becomes unknown.
    """
    known = len(tokenizer)
    if known <= len(tokenizer.all_special_tokens):
        return f"its tokenizer knows {known} special tokens and no word: the vocabulary file is missing or empty", None
    if known < 0.9 * vocab_size:
        return None, f"its tokenizer knows {known} tokens, its embedding table {vocab_size}: is the vocabulary whole?"
    return None, None
