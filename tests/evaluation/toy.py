"""A small world whose embeddings are known: a sentence is a line of numbers, and its embedding is these numbers."""

from __future__ import annotations

import numpy as np


class NumberEncoder:
    """Encodes "0.5 -1" as [0.5, -1]; remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[list[str]] = []

    def encode(self, inputs: list[str]) -> np.ndarray:
        self.asked.append(list(inputs))
        return np.array([[float(number) for number in text.split()] for text in inputs], dtype=np.float32)


def sentence(vector: np.ndarray) -> str:
    return " ".join(f"{number:.6f}" for number in vector)


def sentences(vectors: np.ndarray) -> list[str]:
    return [sentence(vector) for vector in vectors]
