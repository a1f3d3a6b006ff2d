"""Texts of the lengths that people encode, for measuring; made of the sentences that come with fastsal."""

from __future__ import annotations

from collections.abc import Callable

from fastsal.data import sample_sentences

#: Tokens per text, about. "sts": single sentences; "mixed": queries, sentences and passages as in a search index.
MIXES = {"queries": 8, "sts": 15, "passages": 140, "mixed": 40}

_PASSAGE_SENTENCES = 12


def make_texts(mix: str, number: int) -> list[str]:
    """Texts, always the same ones for the same arguments; few of them are equal.

    Raises:
        ValueError: `mix` is none of `MIXES`.
    """
    if mix not in MIXES:
        raise ValueError(f"mix must be one of {', '.join(MIXES)}, got {mix!r}")
    make = _MAKERS[mix]
    sentences = sample_sentences()
    return [make(sentences, index) for index in range(number)]


def _query(sentences: list[str], index: int) -> str:
    words = _sentence(sentences, index).split()
    return " ".join(words[: 4 + index % 5])


def _sentence(sentences: list[str], index: int) -> str:
    """After the first round, the first half of one and the second half of another."""
    turn, place = divmod(index, len(sentences))
    if turn == 0:
        return sentences[place]
    words, other = sentences[place].split(), sentences[(place + 7 * turn) % len(sentences)].split()
    return " ".join(words[: (len(words) + 1) // 2] + other[len(other) // 2 :])


def _passage(sentences: list[str], index: int) -> str:
    start = index * 5 + index // len(sentences)
    length = _PASSAGE_SENTENCES - 4 + index % 9
    return " ".join(sentences[(start + i) % len(sentences)] for i in range(length))


def _mixed(sentences: list[str], index: int) -> str:
    return (_query, _sentence, _sentence, _passage)[index % 4](sentences, index)


_MAKERS: dict[str, Callable[[list[str], int], str]] = {
    "queries": _query,
    "sts": _sentence,
    "passages": _passage,
    "mixed": _mixed,
}
