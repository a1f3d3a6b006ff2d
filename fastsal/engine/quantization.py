"""Embeddings in fewer bits, with the ranges and the packing of sentence-transformers' `quantize_embeddings`."""

from __future__ import annotations

import logging
from typing import Literal, get_args

import numpy as np

logger = logging.getLogger(__name__)

Precision = Literal["float32", "int8", "uint8", "binary", "ubinary"]
PRECISIONS = get_args(Precision)


def quantize(embeddings: np.ndarray, precision: Precision | None) -> np.ndarray:
    """(N, D) floats in fewer bits.

    int8 and uint8 take each dimension's range from these embeddings, so that they depend on what they are quantised
    with; binary and ubinary are a bit per number, eight to a byte: (N, D / 8), int8 and uint8.

    Raises:
        ValueError: an unknown `precision`.
    """
    if precision not in (None, *PRECISIONS):
        raise ValueError(f"precision must be one of {PRECISIONS}, got {precision!r}")
    if precision in (None, "float32"):
        return embeddings
    if precision == "ubinary":
        return np.packbits(embeddings > 0, axis=-1)
    if precision == "binary":
        return (np.packbits(embeddings > 0, axis=-1) - np.uint8(128)).view(np.int8)
    if len(embeddings) < 2:
        raise ValueError(
            f"precision={precision!r} takes each dimension's range from the embeddings, which needs 2 at least, "
            f"got {len(embeddings)}: quantise them together, or take 'binary'"
        )
    if len(embeddings) < 100:
        logger.warning(
            "precision=%r takes each dimension's range from the embeddings: those of %d say little",
            precision,
            len(embeddings),
        )
    embeddings = embeddings.astype(np.float32, copy=False)
    low, high = embeddings.min(axis=0), embeddings.max(axis=0)
    steps = (high - low) / 255
    levels = np.clip(np.floor((embeddings - low) / np.where(steps == 0, 1, steps)), 0, 255)
    return levels.astype(np.uint8) if precision == "uint8" else (levels - 128).astype(np.int8)
