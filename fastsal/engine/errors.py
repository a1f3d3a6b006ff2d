"""What the engine refuses, in words for the person who gave it."""

from __future__ import annotations


class UnsupportedModelError(ValueError):
    """The engine cannot be sure to compute this model right; the message says why.

    `fastsal.SentenceEncoder` can, with torch: on the kernels where they cover the model, else in the original code.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(f"{reason}: use fastsal.SentenceEncoder, which runs it with torch")
        self.reason = reason
