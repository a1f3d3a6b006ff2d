"""How far embeddings are from the truth, and how far they may be: what every measurement of speed checks first."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fastsal.measure.verify import ERROR_RATIO, ERROR_ULPS

#: int8 has no reference to be compared with. Below this cosine to the truth something is wrong, not just rounded.
INT8_MIN_COSINE = 0.99

_RESOLUTIONS = {"float32": 2.0**-23, "bfloat16": 2.0**-7, "float16": 2.0**-10}


class WrongResultError(RuntimeError):
    """What was measured computes something else than the model; its speed means nothing."""


@dataclass(frozen=True)
class Accuracy:
    """Of embeddings (n, D) against their truth.

    Attributes:
        error: ``||embeddings - truth|| / ||truth||`` over all sentences.
        min_cosine: the smallest cosine of an embedding with its truth.
    """

    error: float
    min_cosine: float

    @classmethod
    def of(cls, embeddings: np.ndarray, truth: np.ndarray) -> Accuracy:
        embeddings, truth = embeddings.astype(np.float64), truth.astype(np.float64)
        if embeddings.shape != truth.shape:
            raise WrongResultError(f"expected embeddings {truth.shape}, got {embeddings.shape}")
        norms = np.linalg.norm(embeddings, axis=1) * np.linalg.norm(truth, axis=1)
        cosines = (embeddings * truth).sum(axis=1) / norms
        return cls(float(np.linalg.norm(embeddings - truth) / np.linalg.norm(truth)), float(cosines.min()))

    def check(self, what: str, dtype: str, reference: Accuracy) -> None:
        """Raise an error if the embeddings are wrong for their dtype.

        Args:
            what: computed the embeddings, for the message.
            dtype: that they were computed in.
            reference: of the model that was replaced, computed in the same dtype. Does not matter for int8.

        Raises:
            WrongResultError: they are.
        """
        if dtype == "int8":
            if not self.min_cosine >= INT8_MIN_COSINE:
                raise WrongResultError(f"{what}: cosine {self.min_cosine:.4f} to the truth, below {INT8_MIN_COSINE}")
            return
        limit = ERROR_RATIO * reference.error + ERROR_ULPS * _RESOLUTIONS[dtype]
        if not self.error <= limit:  # NaN is no less than anything
            raise WrongResultError(f"{what}: error {self.error:.1e}, above the limit of {limit:.1e} in {dtype}")
