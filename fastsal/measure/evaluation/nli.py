"""Natural language inference: how often a classifier over two embeddings names the right relation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from sklearn.linear_model import LogisticRegression  # a dependency of sentence-transformers
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler

from fastsal.measure.evaluation.embedding import Encoder
from fastsal.measure.evaluation.nli_head import NliHead
from fastsal.measure.evaluation.pairs import DataError, LabelledPairs, NliData

#: Training pairs of the classifier at most; a seeded sample of them is drawn from larger sets.
TRAIN_LIMIT = 20_000

#: Inverse regularisation of the logistic regression, over features of unit variance. One value, not a search: the
#: choice among close ones would turn on a single pair, and with it the difference between two encoders that agree. A
#: strong one: with 1.0 embeddings that differ by bfloat16's rounding differed by 0.1 points in accuracy.
_REGULARISATION = 1e-3

#: Of the solver, in double precision: to convergence, so that the classifier is a function of the embeddings alone.
#: Where scikit-learn stops by default, the classifiers of embeddings that differ by bfloat16's rounding disagreed on up
#: to twice as many pairs.
_TOLERANCE, _MAX_ITERATIONS = 1e-8, 10_000


@dataclass(frozen=True)
class NliScores:
    """Accuracies x 100.

    Attributes:
        task, source: what was evaluated.
        frozen: per test set, of a logistic regression over (u, v, |u - v|, u * v), as SentEval does.
        head: per test set, of the model's own softmax classifier; empty where it has none.
        trained_on: name and number of the pairs that the regression learnt from.
        num_pairs: of each test set.
        num_rows: rows read per test set, including those without a label.
    """

    task: str
    source: str
    frozen: Mapping[str, float]
    head: Mapping[str, float]
    trained_on: str
    num_pairs: Mapping[str, int]
    num_rows: Mapping[str, int]


def score_nli(
    encoder: Encoder, data: NliData, head: NliHead | None = None, seed: int = 0, train_limit: int = TRAIN_LIMIT
) -> NliScores:
    """Train a classifier over the frozen embeddings, and count what it and the model's own `head` get right.

    Args:
        encoder: whatever has the `encode` of a SentenceTransformer: list of texts in, (n, D) array out.
        data: a task, see `load_task`.
        head: the classifier that the model was trained with, if it has one.
        seed: of the sample of training pairs, and of the regression.
        train_limit: number of training pairs at most.

    Raises:
        DataError: the training pairs lack a label that the tests have.
        ValueError: embeddings that are not finite, or not as wide as the head's.
    """
    train = _sample(data.train, train_limit, seed)
    missing = {label for test in data.tests for label in test.labels} - set(train.labels)
    if missing:
        raise DataError(f"{train.name}: no pairs labelled {', '.join(sorted(missing))}, which the tests have")
    sets = [train, *data.tests]
    sentences = [sentence for pairs in sets for sentence in (*pairs.first, *pairs.second)]
    embeddings = np.asarray(encoder.encode(sentences))
    bounds = np.cumsum([0, *(2 * len(pairs) for pairs in sets)])
    sides = [np.split(embeddings[start:stop], 2) for start, stop in pairwise(bounds)]

    classifier = _fit(_features(*sides[0]), train.labels, seed)
    frozen, own = {}, {}
    for test, (first, second) in zip(data.tests, sides[1:], strict=True):
        gold = np.array(test.labels)
        frozen[test.name] = 100 * float((classifier.predict(_features(first, second)) == gold).mean())
        if head is not None:
            own[test.name] = 100 * float((head.predict(first, second) == gold).mean())
    return NliScores(
        task=data.task,
        source=data.source,
        frozen=frozen,
        head=own,
        trained_on=f"{len(train)} pairs of {train.name}",
        num_pairs={test.name: len(test) for test in data.tests},
        num_rows={test.name: test.num_rows for test in data.tests},
    )


def _sample(pairs: LabelledPairs, limit: int, seed: int) -> LabelledPairs:
    if len(pairs) <= limit:
        return pairs
    rows = np.sort(np.random.default_rng(seed).choice(len(pairs), limit, replace=False))
    first, second, labels = ([column[row] for row in rows] for column in (pairs.first, pairs.second, pairs.labels))
    return LabelledPairs(pairs.name, first, second, labels, pairs.num_rows)


def _features(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """(pairs, 4 D) float64: u, v, |u - v|, u * v (Conneau and Kiela 2018, arXiv 1803.05449)."""
    first, second = first.astype(np.float64), second.astype(np.float64)
    return np.concatenate([first, second, np.abs(first - second), first * second], axis=1)


def _fit(features: np.ndarray, labels: list[str], seed: int) -> Pipeline:
    # Scaled, so that one regularisation suits embeddings of any length.
    regression = LogisticRegression(C=_REGULARISATION, tol=_TOLERANCE, max_iter=_MAX_ITERATIONS, random_state=seed)
    return make_pipeline(StandardScaler(copy=False), regression).fit(features, labels)
