"""Unlabelled text for distillation: sentences, and further texts made from their words.

A teacher can label any text, so a small corpus gives as many training texts as there is time for. Each kind of made
text teaches something that whole sentences do not: single words and lists of words what a word means without a
context, spans and thinned sentences what each part adds, replaced words and spliced sentences how the parts combine.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from experiment import Source, Texts

from fastsal.measure.evaluation import DataError
from fastsal.measure.evaluation.tables import read_lines, read_rows

#: A full stop, question or exclamation mark, perhaps with closing quotes, before a capital, digit or opening quote.
_SENTENCE_END = re.compile(r"(?<=[.!?])(?:[\"')\]]*)\s+(?=[\"'(\[]?[A-Z0-9])")

#: Longer sentences are cut here, in words.
MAX_WORDS = 48

#: Sentences of fewer words say little.
_MIN_WORDS = 3


def read_texts(texts: Texts, folder: Path) -> list[str]:
    """The sentences of `texts` below `folder`, each once, without those that are excluded.

    Raises:
        DataError: a source matches no file, or a row lacks a column.
    """
    excluded = (text for source in texts.exclude for text in _cells(source, folder))
    sentences = without((sentence for source in texts.sources for sentence in _sentences(source, folder)), excluded)
    return sentences[: texts.limit]


def _sentences(source: Source, folder: Path) -> Iterator[str]:
    """A leading ``title -- `` of a passage is dropped; sentences of more than MAX_WORDS words are cut."""
    for text in _cells(source, folder):
        for sentence in _SENTENCE_END.split(text.partition(" -- ")[2] or text):
            words = sentence.split()[:MAX_WORDS]
            if len(words) >= _MIN_WORDS:
                yield " ".join(words)


def _cells(source: Source, folder: Path) -> Iterator[str]:
    paths = sorted(folder.glob(source.file))
    if not paths:
        raise DataError(f"{folder}: no file {source.file}")
    for path in paths:
        if source.columns is None:
            yield from (line for _, line in read_lines(path))
        else:
            rows = read_rows(path, max(source.columns) + 1, spare=True)
            yield from (row[column] for _, row in rows for column in source.columns)


def letters(text: str) -> str:
    """Lower-cased letters and digits alone: what makes two sentences the same for `without`."""
    return "".join(character for character in text.lower() if character.isalnum())


def without(sentences: Iterable[str], excluded: Iterable[str]) -> list[str]:
    """The sentences, each once, that equal none of `excluded` in letters and digits."""
    seen = set(map(letters, excluded))
    kept = []
    for sentence in sentences:
        key = letters(sentence)
        if key not in seen:
            seen.add(key)
            kept.append(sentence)
    return kept


def make_texts(sentences: Sequence[str], number: int, seed: int) -> list[str]:
    """Up to `number` different further texts made from the words of `sentences`; equal seeds give equal texts."""
    rng = random.Random(seed)
    split = [sentence.split() for sentence in sentences]
    vocabulary = sorted({_bare(word) for words in split for word in words} - {""})
    makers: list[Callable[[], list[str]]] = [
        lambda: rng.sample(vocabulary, rng.choice((1, 1, 2, 3, 5))),
        lambda: _span(rng.choice(split), rng),
        lambda: _thinned(rng.choice(split), rng),
        lambda: _replaced(rng.choice(split), rng.choice(split), vocabulary, rng),
        lambda: _replaced(rng.choice(split), rng.choice(split), vocabulary, rng),
        lambda: _spliced(rng.choice(split), rng.choice(split), rng),
    ]
    made: dict[str, None] = {}
    for _ in range(number):
        words = rng.choice(makers)()
        if words:
            made[" ".join(words)] = None
    for sentence in sentences:
        made.pop(sentence, None)
    return list(made)


def _bare(word: str) -> str:
    return word.strip(".,;:!?\"'()[]").lower()


def _span(words: list[str], rng: random.Random) -> list[str]:
    length = rng.randint(2, max(2, min(14, len(words))))
    start = rng.randint(0, max(0, len(words) - length))
    return words[start : start + length]


def _thinned(words: list[str], rng: random.Random) -> list[str]:
    dropped = rng.uniform(0.1, 0.5)
    return [word for word in words if rng.random() > dropped]


def _replaced(words: list[str], others: list[str], vocabulary: list[str], rng: random.Random) -> list[str]:
    """Some words replaced by those of another sentence or any of the vocabulary, rare ones as often as common ones."""
    replaced, pool = rng.uniform(0.05, 0.5), rng.choice((others, vocabulary))
    return [rng.choice(pool) if rng.random() < replaced else word for word in words[:24]]


def _spliced(words: list[str], others: list[str], rng: random.Random) -> list[str]:
    return words[: rng.randint(1, min(12, len(words)))] + others[-rng.randint(1, min(12, len(others))) :]
