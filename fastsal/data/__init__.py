"""Files that come with fastsal."""

from __future__ import annotations

from importlib.resources import files


def sample_sentences() -> list[str]:
    """A few hundred English sentences of one to a hundred words, written for this project."""
    return files(__name__).joinpath("sentences.txt").read_text(encoding="utf-8").split("\n")[:-1]
