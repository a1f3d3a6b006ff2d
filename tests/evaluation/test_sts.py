"""Correlations against hand-made embeddings and sentence-transformers' own evaluator."""

import numpy as np
import pytest
from scipy.stats import pearsonr, spearmanr
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.evaluation import EmbeddingSimilarityEvaluator
from sentence_transformers.sentence_transformer.modules import Pooling
from tiny import bert_checkpoint, model_folder
from toy import NumberEncoder, sentences

from fastsal.data import sample_sentences
from fastsal.measure.evaluation import ScoredPairs, StsData, compare, score_sts
from fastsal.measure.evaluation.embedding import TimedEncoder
from fastsal.measure.evaluation.sts import PRECISIONS


def task(*subsets):
    pairs = [ScoredPairs(f"set {i}", a, b, np.asarray(gold, float), len(a)) for i, (a, b, gold) in enumerate(subsets)]
    return StsData("toy", "here", tuple(pairs))


def random_subset(seed, pairs=20, width=8):
    rng = np.random.default_rng(seed)
    one, other = rng.normal(size=(2, pairs, width)).round(3)
    return one, other, rng.uniform(0, 5, pairs)


def test_four_similarities_by_their_definitions():
    one, other, gold = random_subset(0)
    scores = score_sts(NumberEncoder(), task((sentences(one), sentences(other), gold))).all
    similarities = {
        "cosine": (one * other).sum(1) / np.linalg.norm(one, axis=1) / np.linalg.norm(other, axis=1),
        "dot": (one * other).sum(1),
        "euclidean": -np.linalg.norm(one - other, axis=1),
        "manhattan": -np.abs(one - other).sum(1),
    }
    assert set(scores) == {f"{measure}_{name}" for measure in ("spearman", "pearson") for name in similarities}
    for name, values in similarities.items():
        assert scores[f"spearman_{name}"] == pytest.approx(100 * spearmanr(values, gold).statistic, abs=1e-6)
        assert scores[f"pearson_{name}"] == pytest.approx(100 * pearsonr(values, gold).statistic, abs=1e-4)


def test_all_and_means_are_different_numbers_with_names():  # B68
    """Within each subset the order is perfect; the second's scores are shifted, which only "all" sees."""
    angles = np.linspace(0, 1.5, 110)
    one = np.stack([np.ones(110), np.zeros(110)], axis=1)
    other = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    small, large = slice(0, 110, 11), np.setdiff1d(np.arange(110), np.arange(0, 110, 11))
    subsets = [
        (sentences(one[small]), sentences(other[small]), 5 - angles[small]),
        (sentences(one[large]), sentences(other[large]), 1.6 - angles[large]),
    ]
    scores = score_sts(NumberEncoder(), task(*subsets))
    assert scores.num_pairs == {"set 0": 10, "set 1": 100}
    assert scores.mean["spearman_cosine"] == pytest.approx(100)
    assert scores.weighted_mean["spearman_cosine"] == pytest.approx(100)
    assert 50 < scores.all["spearman_cosine"] < 99

    subsets[0] = (*subsets[0][:2], subsets[0][2][::-1])  # the small subset the wrong way round
    scores = score_sts(NumberEncoder(), task(*subsets))
    assert scores.mean["spearman_cosine"] == pytest.approx(0, abs=1e-9)
    assert scores.weighted_mean["spearman_cosine"] == pytest.approx(100 * 90 / 110)
    headline = compare({"toy": NumberEncoder()}, task(*subsets)).headline()
    assert headline["Spearman, all"] == [scores.all["spearman_cosine"]]
    assert headline["Spearman, mean over subsets"] == [scores.mean["spearman_cosine"]]


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> SentenceTransformer:
    folder = tmp_path_factory.mktemp("model")
    return SentenceTransformer(
        str(model_folder(folder / "model", bert_checkpoint(folder / "checkpoint"), Pooling(32, "mean"))), device="cpu"
    )


@pytest.mark.parametrize("precision", PRECISIONS)
def test_as_the_evaluator_of_sentence_transformers(model, precision):  # B72
    texts = sample_sentences()[:80]
    gold = np.random.default_rng(1).uniform(0, 5, 40)
    evaluator = EmbeddingSimilarityEvaluator(
        texts[:40],
        texts[40:],
        gold.tolist(),
        similarity_fn_names=["cosine", "dot", "euclidean", "manhattan"],
        precision=precision,
    )
    expected = evaluator(model)
    if precision == "float32":  # there the evaluator takes embeddings as normalised; ours are the model's own
        evaluator.precision = None
        expected = evaluator(model)
    scores = score_sts(model, task((texts[:40], texts[40:], gold)), precision).all
    for name, score in scores.items():
        if name == "spearman_cosine" and "binary" in precision:
            continue  # cosines of a few bits are often equal but for their last rounding, which the order then follows
        assert score == pytest.approx(100 * expected[name], abs=0.02), name


@pytest.mark.parametrize("precision", PRECISIONS)
def test_an_identical_pair_is_the_most_similar(precision, monkeypatch):  # B72
    """With one range for both sides; calibrated apart, the two sides of the identical pair would differ."""
    import fastsal.measure.evaluation.sts as sts

    one, other, gold = random_subset(3, pairs=30, width=16)
    one, other = one - 1, other + 1  # the two sides have different ranges
    other[7] = one[7]
    seen = {}
    monkeypatch.setattr(sts, "_correlations", lambda what, values, gold: seen.update(values) or {"x": 0.0})
    score_sts(NumberEncoder(), task((sentences(one), sentences(other), gold)), precision)
    assert seen["cosine"][7] == pytest.approx(1.0)
    assert seen["euclidean"][7] == seen["manhattan"][7] == 0
    assert all(np.isfinite(values).all() for values in seen.values())
    assert (seen["cosine"] <= 1 + 1e-9).all()
    assert (seen["cosine"] > -1).all() or precision == "float32"


def test_identical_pairs_are_tied():
    """Their cosines are 1 but for the last bits, in an order that means nothing."""
    one, other, gold = random_subset(5, pairs=60, width=8)
    other[:40] = one[:40]
    scores = score_sts(NumberEncoder(), task((sentences(one), sentences(other), gold))).all
    cosines = (one * other).sum(1) / np.linalg.norm(one, axis=1) / np.linalg.norm(other, axis=1)
    cosines[:40] = 1
    assert scores["spearman_cosine"] == pytest.approx(100 * spearmanr(cosines, gold).statistic, abs=1e-9)
    assert scores["spearman_manhattan"] == pytest.approx(
        100 * spearmanr(-np.abs(one - other).sum(1), gold).statistic, abs=1e-9
    )


def test_refusals():
    one, other, gold = random_subset(0)
    texts = sentences(one), sentences(other)
    with pytest.raises(ValueError, match=r"precision must be one of .* got 'int4'"):
        score_sts(NumberEncoder(), task((*texts, gold)), "int4")
    with pytest.raises(ValueError, match=r"toy set 0: all gold scores are 3\.0"):
        score_sts(NumberEncoder(), task((*texts, np.full(20, 3.0))))
    with pytest.raises(ValueError, match="toy set 0: all cosine similarities are"):
        score_sts(NumberEncoder(), task((["1 2"] * 20, ["1 2"] * 20, gold)))
    with pytest.raises(
        ValueError, match="1 of 40 embeddings hold NaN or infinity; the first is of 'nan 1 1 1 1 1 1 1'"
    ):
        score_sts(TimedEncoder(NumberEncoder()), task((["nan 1 1 1 1 1 1 1", *texts[0][1:]], texts[1], gold)))


def test_each_sentence_is_encoded_once():
    encoder = NumberEncoder()
    timed = TimedEncoder(encoder)
    embeddings = timed.encode(["1 2", "3 4", "1 2"])
    assert embeddings.tolist() == [[1, 2], [3, 4], [1, 2]]
    assert encoder.asked == [["1 2", "3 4"]]
    assert timed.sentences == 2
    assert timed.seconds > 0
