"""Texts -> token ids, without padding, by a `tokenizers.Tokenizer` of one's own.

Truncation is a state of a Tokenizer. One that is set once and never again serves all threads without a lock.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from tokenizers import Encoding, Tokenizer

from fastsal.engine.forks import is_forked

#: Texts and characters per call of the tokenizer. Its results take some hundred bytes per token until the ids are taken
#: out, and other calls' texts wait for one call where they share the tokenizer's threads.
_TEXTS_PER_CALL = 512
_CHARACTERS_PER_CALL = 1 << 16


@dataclass(frozen=True)
class Tokens:
    """Token ids of n texts, one text after the other.

    Attributes:
        ids: (T,) int64.
        type_ids: (T,) int64, or None where all are zero.
        lengths: (n,) int64, tokens of each text.
    """

    ids: np.ndarray
    type_ids: np.ndarray | None
    lengths: np.ndarray


@dataclass(frozen=True)
class TextTokenizer:
    """Tokenises texts in one way.

    Attributes:
        tokenizer: with its truncation set, and no padding; nobody may change it.
        prompt: text put in front of every text, maybe empty.
        passes_types: the tokenizer's token types reach the model; it sees zeros otherwise.
    """

    tokenizer: Tokenizer
    prompt: str = ""
    passes_types: bool = True

    def __call__(self, texts: Sequence[str]) -> Tokens:
        """Tokenise one or more texts. Safe to call from several threads and in forked processes."""
        parts = [self._take_ids(self._encode(piece)) for piece in _pieces(texts)]
        return parts[0] if len(parts) == 1 else join(parts)

    def _encode(self, texts: Sequence[str]) -> list[Encoding]:
        if self.prompt:
            texts = [self.prompt + text for text in texts]
        # The library's threads do not survive a fork, and whether it would use them the environment says, which other
        # threads change meanwhile. One text must not queue for them behind another call's thousands.
        if len(texts) == 1 or is_forked():
            return [self.tokenizer.encode(text) for text in texts]
        return self.tokenizer.encode_batch_fast(texts)

    def _take_ids(self, encodings: list[Encoding]) -> Tokens:
        if len(encodings) == 1:
            ids = encodings[0].ids
            types = encodings[0].type_ids if self.passes_types else ()
            lengths = np.array([len(ids)])
        else:
            lists = [encoding.ids for encoding in encodings]
            lengths = np.fromiter(map(len, lists), np.int64, len(lists))
            ids = [id for ids in lists for id in ids]
            types = [type for encoding in encodings for type in encoding.type_ids] if self.passes_types else ()
        return Tokens(np.array(ids, np.int64), np.array(types, np.int64) if any(types) else None, lengths)


def join(parts: Sequence[Tokens]) -> Tokens:
    """The tokens of all parts, one after the other."""
    ids = np.concatenate([part.ids for part in parts])
    types = None
    if any(part.type_ids is not None for part in parts):
        types = np.concatenate([np.zeros_like(p.ids) if p.type_ids is None else p.type_ids for p in parts])
    return Tokens(ids, types, np.concatenate([part.lengths for part in parts]))


def _pieces(texts: Sequence[str]) -> Iterator[Sequence[str]]:
    start = 0
    while start < len(texts):
        stop, characters = start, 0
        while stop < len(texts) and stop - start < _TEXTS_PER_CALL and characters < _CHARACTERS_PER_CALL:
            characters += len(texts[stop])
            stop += 1
        yield texts[start:stop]
        start = stop
