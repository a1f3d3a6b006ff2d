"""The two protocols of NLI, on embeddings that say what the label is."""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.losses import SoftmaxLoss
from sentence_transformers.sentence_transformer.modules import Pooling
from tiny import bert_checkpoint, model_folder
from toy import NumberEncoder, sentences

from fastsal.measure.evaluation import DataError, LabelledPairs, NliData, NliHead, score_nli
from fastsal.measure.evaluation.nli import _features, _fit
from fastsal.measure.evaluation.pairs import NLI_LABELS

WIDTH = 4


def pairs(name, number, seed, labels=NLI_LABELS):
    """Entailment: u = v; contradiction: u = -v; neutral: unrelated."""
    rng = np.random.default_rng(seed)
    u = rng.normal(size=(number, WIDTH))
    chosen = [labels[i % len(labels)] for i in range(number)]
    v = np.stack(
        [
            row if label == "entailment" else -row if label == "contradiction" else rng.normal(size=WIDTH)
            for row, label in zip(u, chosen, strict=True)
        ]
    )
    return LabelledPairs(name, sentences(u), sentences(v), chosen, number)


def perfect_head(labels) -> NliHead:
    """Knows entailment by a small |u - v|; calls all else neutral, or contradiction where |u - v| is large."""
    weight = torch.zeros(3, 3 * WIDTH)
    weight[labels.index("contradiction"), 2 * WIDTH :] = 1
    bias = torch.zeros(3)
    bias[labels.index("entailment")] = 1e-3
    bias[labels.index("neutral")] = -100
    return NliHead(weight, bias, tuple(labels))


def test_a_classifier_learns_the_relation():
    data = NliData("toy", "here", pairs("train", 1200, 0), (pairs("a", 300, 1), pairs("b", 30, 2)))
    scores = score_nli(NumberEncoder(), data)
    assert scores.frozen["a"] > 70  # chance is 33
    assert set(scores.frozen) == {"a", "b"}
    assert scores.head == {}
    assert scores.num_pairs == {"a": 300, "b": 30}
    assert scores.trained_on == "1200 pairs of train"
    assert score_nli(NumberEncoder(), data).frozen == scores.frozen


def test_the_classifier_is_solved_to_convergence():
    """At the optimum the gradient of C * cross-entropy + |weight|^2 / 2 is zero."""
    rng = np.random.default_rng(0)
    features, labels = rng.normal(size=(400, 24)), rng.choice(NLI_LABELS, 400)
    scaler, regression = _fit(features.copy(), list(labels), 0)
    wrong = regression.predict_proba(scaler.transform(features.copy())) - (labels[:, None] == regression.classes_)
    gradient = regression.C * wrong.T @ scaler.transform(features.copy()) + regression.coef_
    assert np.abs(gradient).max() < 1e-6 * np.abs(regression.coef_).max()


def test_features_are_u_v_difference_product():
    u, v = np.array([[1.0, -2.0]]), np.array([[3.0, 5.0]])
    assert _features(u, v).tolist() == [[1, -2, 3, 5, 2, 7, 3, -10]]


def test_large_training_sets_are_sampled_by_seed():
    data = NliData("toy", "here", pairs("train", 3000, 0), (pairs("test", 300, 1),))
    first, again = (score_nli(NumberEncoder(), data, train_limit=150) for _ in range(2))
    assert first.trained_on == "150 pairs of train"
    assert first == again
    encoders = [NumberEncoder(), NumberEncoder()]
    for seed, encoder in enumerate(encoders):
        score_nli(encoder, data, seed=seed, train_limit=150)
    assert encoders[0].asked != encoders[1].asked


def test_training_pairs_must_have_every_label():
    data = NliData("toy", "here", pairs("train", 60, 0, ("entailment", "neutral")), (pairs("test", 30, 1),))
    with pytest.raises(DataError, match="train: no pairs labelled contradiction, which the tests have"):
        score_nli(NumberEncoder(), data)


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1), (1, 2, 0)])
def test_the_models_own_head_by_the_names_of_its_rows(order):  # B70
    head = perfect_head([NLI_LABELS[i] for i in order])
    labels = ("entailment", "contradiction")
    data = NliData("toy", "here", pairs("train", 60, 0), (pairs("test", 200, 1, labels),))
    assert score_nli(NumberEncoder(), data, head).head == {"test": 100.0}


def test_head_is_that_of_softmax_loss(tmp_path):
    folder = model_folder(tmp_path / "model", bert_checkpoint(tmp_path / "checkpoint"), Pooling(32, "mean"))
    model = SentenceTransformer(str(folder), device="cpu")
    loss = SoftmaxLoss(model, 32, num_labels=3)
    labels = ["contradiction", "entailment", "neutral"]
    assert NliHead.load(folder) is None
    NliHead.from_softmax_loss(loss, labels).save(folder)
    head = NliHead.load(folder)

    premises, hypotheses = ["the cat sat", "a dog", "old man"], ["a cat sat", "the red house", "green car"]
    features = [model.preprocess(texts) for texts in (premises, hypotheses)]
    _, logits = loss(features, labels=None)
    expected = [labels[i] for i in logits.argmax(dim=1)]
    assert head.predict(model.encode(premises), model.encode(hypotheses)).tolist() == expected
    assert json.loads((folder / "nli_head" / "config.json").read_text()) == {"labels": labels}
    tensors = load_file(folder / "nli_head" / "classifier.safetensors")
    assert {name: tuple(tensor.shape) for name, tensor in tensors.items()} == {"weight": (3, 96), "bias": (3,)}
    SentenceTransformer(str(folder), device="cpu")  # the folder goes on loading

    with pytest.raises(ValueError, match=r"loss must read u, v and \|u - v\|"):
        NliHead.from_softmax_loss(SoftmaxLoss(model, 32, 3, concatenation_sent_multiplication=True), labels)
    with pytest.raises(ValueError, match="trained on embeddings of 32 numbers, the model's have 4"):
        head.predict(np.zeros((1, 4), np.float32), np.zeros((1, 4), np.float32))


def test_damaged_heads(tmp_path):
    head = perfect_head(list(NLI_LABELS))
    head.save(tmp_path)
    folder = tmp_path / "nli_head"
    (folder / "config.json").write_text('{"labels": ["entailment", "neutral", "contradictory"]}')
    with pytest.raises(DataError, match="labels must be entailment, neutral, contradiction in any order"):
        NliHead.load(tmp_path)
    for content in ("{", "{}", "[]"):
        (folder / "config.json").write_text(content)
        with pytest.raises(DataError, match="the NLI head in nli_head cannot be used"):
            NliHead.load(tmp_path)
    head.save(tmp_path)
    save_file({"weight": torch.zeros(3, 7), "bias": torch.zeros(3)}, folder / "classifier.safetensors")
    with pytest.raises(DataError, match=r"weight must be \(3, 3 D\), got \(3, 7\)"):
        NliHead.load(tmp_path)
    (folder / "classifier.safetensors").write_bytes(b"junk")
    with pytest.raises(DataError, match="cannot be used"):
        NliHead.load(tmp_path)
    (folder / "classifier.safetensors").unlink()
    with pytest.raises(DataError, match=r"has no file classifier\.safetensors"):
        NliHead.load(tmp_path)
    assert NliHead.load("nobody/no-such-model-in-the-cache") is None
