"""Semantic textual similarity: how well the embeddings' similarities agree with people's scores."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from scipy.stats import pearsonr, spearmanr
from sentence_transformers.util import (
    pairwise_cos_sim,
    pairwise_dot_score,
    pairwise_euclidean_sim,
    pairwise_manhattan_sim,
)
from sentence_transformers.util.quantization import quantize_embeddings

from fastsal.engine.texts import count_not_finite
from fastsal.measure.evaluation.embedding import Encoder
from fastsal.measure.evaluation.pairs import StsData

#: Larger is more similar in all of them: distances count with a minus sign.
SIMILARITIES = {
    "cosine": pairwise_cos_sim,
    "dot": pairwise_dot_score,
    "euclidean": pairwise_euclidean_sim,
    "manhattan": pairwise_manhattan_sim,
}

#: Of a similarity, relative to the largest one.
_DIGITS = 6

PRECISIONS = ("float32", "int8", "uint8", "binary", "ubinary")

Scores = Mapping[str, float]


@dataclass(frozen=True)
class StsScores:
    """Correlations x 100, by name: ``spearman_cosine``, ``pearson_cosine``, and the same of dot, euclidean, manhattan.

    Attributes:
        task, source: what was evaluated.
        all: over the pairs of all subsets together, as SBERT reports STS12 to STS16. Compare with this by default.
        mean: the mean over the subsets.
        weighted_mean: the mean over the subsets, weighted by their numbers of pairs.
        subsets: of each subset.
        num_pairs: of each subset.
        num_rows: rows read per subset, including those that were not scored.
    """

    task: str
    source: str
    all: Scores
    mean: Scores
    weighted_mean: Scores
    subsets: Mapping[str, Scores]
    num_pairs: Mapping[str, int]
    num_rows: Mapping[str, int]


def score_sts(encoder: Encoder, data: StsData, precision: str = "float32") -> StsScores:
    """Encode all sentences of a task and correlate.

    Args:
        encoder: whatever has the `encode` of a SentenceTransformer: list of texts in, (n, D) array out.
        data: a task, see `load_task`.
        precision: of the embeddings that are compared, see `quantize_embeddings` of sentence-transformers. They are
            normalised and quantised together, so that both sentences of a pair share their ranges.

    Raises:
        ValueError: unknown precision, a set without pairs, embeddings that are not finite, or similarities or scores
            that are all equal.
    """
    if precision not in PRECISIONS:
        raise ValueError(f"precision must be one of {PRECISIONS}, got {precision!r}")
    empty = [subset.name for subset in data.subsets if not len(subset)]
    if empty or not data.subsets:
        raise ValueError(f"{data.task}: there are no pairs to score{' in ' if empty else ''}{', '.join(empty)}")
    first = [sentence for subset in data.subsets for sentence in subset.first]
    second = [sentence for subset in data.subsets for sentence in subset.second]
    embeddings = _quantised(_finite(data.task, np.asarray(encoder.encode(first + second))), precision)
    similarities = _similarities(embeddings[: len(first)], embeddings[len(first) :])

    gold = np.concatenate([subset.gold for subset in data.subsets])
    weights = [len(subset) for subset in data.subsets]
    subsets = {}
    for subset, (start, stop) in zip(data.subsets, pairwise(np.cumsum([0, *weights])), strict=True):
        own = {name: values[start:stop] for name, values in similarities.items()}
        subsets[subset.name] = _correlations(f"{data.task} {subset.name}", own, subset.gold)
    together = _correlations(data.task, similarities, gold)
    columns = {name: [scores[name] for scores in subsets.values()] for name in together}
    return StsScores(
        task=data.task,
        source=data.source,
        all=together,
        mean={name: float(np.mean(values)) for name, values in columns.items()},
        weighted_mean={name: float(np.average(values, weights=weights)) for name, values in columns.items()},
        subsets=subsets,
        num_pairs={subset.name: len(subset) for subset in data.subsets},
        num_rows={subset.name: subset.num_rows for subset in data.subsets},
    )


def _finite(task: str, embeddings: np.ndarray) -> np.ndarray:
    """(n, D) numbers of any dtype in float32 at least, in which norms neither overflow nor vanish."""
    embeddings = embeddings.astype(np.promote_types(embeddings.dtype, np.float32), copy=False)
    if bad := count_not_finite(embeddings):
        raise ValueError(f"{task}: {bad} of {len(embeddings)} embeddings contain NaN or infinity")
    return embeddings


def _quantised(embeddings: np.ndarray, precision: str) -> np.ndarray:
    """Embeddings as the quantised ones compare: as numbers that do not overflow, and bits one by one."""
    if precision == "float32":
        return embeddings
    norms = np.linalg.norm(embeddings, axis=1, keepdims=True)
    quantised = np.asarray(quantize_embeddings(embeddings / np.maximum(norms, 1e-12), precision=precision))  # type: ignore[arg-type]
    if precision in ("binary", "ubinary"):
        bits = quantised.astype(np.int16) + (128 if precision == "binary" else 0)  # "binary" is shifted by 128
        return np.unpackbits(bits.astype(np.uint8), axis=1).astype(np.float32)
    return quantised.astype(np.float32)


def _similarities(first: np.ndarray, second: np.ndarray) -> dict[str, np.ndarray]:
    """(pairs,) float64 per similarity; in double precision, since close distances of long vectors cancel.

    What float32 embeddings do not tell apart is made equal. Otherwise pairs of identical sentences, of which some sets
    have dozens, get ranks by the last rounding of their cosines, and Spearman's correlation moves by 0.1 points.
    """
    one, other = torch.from_numpy(first).double(), torch.from_numpy(second).double()
    similarities = {}
    for name, similarity in SIMILARITIES.items():
        values = similarity(one, other).numpy()
        largest = np.abs(values).max(initial=1e-30)
        similarities[name] = np.round(values / largest, _DIGITS) * largest
    return similarities


def _correlations(what: str, similarities: Mapping[str, np.ndarray], gold: np.ndarray) -> dict[str, float]:
    if np.ptp(gold) == 0:
        raise ValueError(f"{what}: all gold scores are {gold[0]}, so nothing can correlate with them")
    scores = {}
    for name, values in similarities.items():
        if np.ptp(values) == 0:
            raise ValueError(f"{what}: all {name} similarities are {values[0]}, so nothing can correlate with them")
        scores[f"spearman_{name}"] = 100 * float(spearmanr(values, gold).statistic)
        scores[f"pearson_{name}"] = 100 * float(pearsonr(values, gold).statistic)
    return scores
