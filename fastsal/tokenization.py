"""Texts -> token ids without padding, the same ids that sentence-transformers' `preprocess` gives.

How a text is truncated, whether token types are passed on and how long the prompt is, is not worked out here: the
model's own `preprocess` is asked once per setting with a one-letter text, and leaves its tokenizer set accordingly.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast
from weakref import WeakKeyDictionary

import numpy as np
from sentence_transformers import SentenceTransformer
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

#: What `preprocess` may return for this module to stand in for it; anything else is a feature unknown here.
_KNOWN_FEATURES = {"input_ids", "attention_mask", "token_type_ids", "modality", "prompt_length"}

#: Settings remembered per tokenizer: a bound for callers who come with ever new prompts.
_MAX_SETTINGS = 256

#: Texts per call of the tokenizer: its result takes some hundred bytes per token until the ids are taken out.
_TEXTS_PER_CALL = 512


@dataclass(frozen=True)
class Tokens:
    """Token ids of n texts, one text after the other.

    Attributes:
        ids: (T,) int32.
        type_ids: (T,) int32, or None where all are zero.
        lengths: (n,) int64, tokens of each text.
    """

    ids: np.ndarray
    type_ids: np.ndarray | None
    lengths: np.ndarray


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

    Truncation and padding are states of the tokenizer, so whoever tokenises holds the lock while both are as he needs.
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


def tokenize(model: SentenceTransformer, texts: Sequence[str], settings: Settings, task: str | None) -> Tokens:
    """Tokenise texts exactly as ``model.preprocess(texts, prompt, task=task)`` does, without the padding."""
    tokenizer = _tokenizer_of(model)
    if not is_plain(tokenizer):
        parts = [
            _tokenize_by_reference(model, texts[start : start + _TEXTS_PER_CALL], settings, task)
            for start in range(0, len(texts), _TEXTS_PER_CALL)
        ]
    else:
        lock, backend = tokenizer_lock(tokenizer), cast(PreTrainedTokenizerFast, tokenizer).backend_tokenizer
        parts = []
        for start in range(0, len(texts), _TEXTS_PER_CALL):
            batch = texts[start : start + _TEXTS_PER_CALL]
            if settings.prompt:
                batch = [settings.prompt + text for text in batch]
            with lock:
                _set(backend, settings)
                encodings = backend.encode_batch_fast(batch)
            parts.append(_take_ids(encodings, settings.passes_types))
    return parts[0] if len(parts) == 1 else _join(parts)


def _set(backend: Tokenizer, settings: Settings) -> None:
    # Reading these is ten times cheaper than setting them.
    if backend.truncation != settings.truncation:
        if settings.truncation is None:
            backend.no_truncation()
        else:
            backend.enable_truncation(**settings.truncation)
    if backend.padding is not None:
        backend.no_padding()
    if backend.encode_special_tokens != settings.split_special_tokens:
        backend.encode_special_tokens = settings.split_special_tokens


def _take_ids(encodings: list, passes_types: bool) -> Tokens:
    if len(encodings) == 1:
        ids = encodings[0].ids
        types = encodings[0].type_ids if passes_types else ()
        lengths = np.array([len(ids)], np.int64)
    else:
        lists = [encoding.ids for encoding in encodings]
        lengths = np.fromiter(map(len, lists), np.int64, len(lists))
        ids = [id for ids in lists for id in ids]
        types = [type for encoding in encodings for type in encoding.type_ids] if passes_types else ()
    return Tokens(np.array(ids, np.int32), np.array(types, np.int32) if any(types) else None, lengths)


def _tokenize_by_reference(
    model: SentenceTransformer, texts: Sequence[str], settings: Settings, task: str | None
) -> Tokens:
    features = model.preprocess(list(texts), prompt=settings.prompt, **({} if task is None else {"task": task}))
    mask = features["attention_mask"].bool()
    types = features["token_type_ids"][mask].int().numpy() if settings.passes_types else None
    return Tokens(
        features["input_ids"][mask].int().numpy(),
        types if types is not None and types.any() else None,
        mask.sum(dim=1).numpy(),
    )


def _join(parts: list[Tokens]) -> Tokens:
    ids = np.concatenate([part.ids for part in parts])
    types = None
    if any(part.type_ids is not None for part in parts):
        types = np.concatenate([np.zeros_like(p.ids) if p.type_ids is None else p.type_ids for p in parts])
    return Tokens(ids, types, np.concatenate([part.lengths for part in parts]))
