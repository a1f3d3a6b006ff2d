"""Inputs as reports from the field had them: surrogates, columns of any kind, backends, NaN."""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path

import numpy as np
import pandas
import pytest
import torch
from models_zoo import TINY
from safetensors.torch import load_file, save_file
from sentence_transformers.sentence_transformer.modules import CNN, Pooling
from tiny import TEXTS, model_folder
from torch import nn
from typer.testing import CliRunner

import fastsal
from fastsal.cli import app
from fastsal.measure.evaluation.nli import score_nli
from fastsal.measure.evaluation.pairs import LabelledPairs, NliData, ScoredPairs, StsData
from fastsal.measure.evaluation.sts import PRECISIONS, score_sts

BAD = "cat \ud83d"
KINDS = {
    "list": list,
    "tuple": tuple,
    "array": lambda column: np.array(column),
    "Series": lambda column: pandas.Series(column, index=range(len(column), 0, -1)),
    "Series by name": lambda column: pandas.Series(column, index=[f"row {i}" for i in range(len(column))]),
}


class Toy:
    """Embeddings given by hand: a sentence is the number of its row."""

    def __init__(self, rows):
        self.rows = rows

    def encode(self, sentences):
        return np.array([self.rows[int(sentence)] for sentence in sentences])


def sts(gold):
    texts = [str(i) for i in range(2 * len(gold))]
    return StsData("toy", "memory", (ScoredPairs("all", texts[::2], texts[1::2], gold, len(gold)),))


@pytest.mark.parametrize(
    ("inputs", "prompt", "name"),
    [
        (["dog", BAD], None, r"inputs\[1\]"),
        (BAD, None, "inputs"),
        ([("dog", "cat"), ("dog", BAD)], None, r"inputs\[1\]\[1\]"),
        ([{"text": "dog"}, {"text": BAD}], None, r"inputs\[1\]\['text'\]"),
        (["dog", "cat"], BAD, "prompt"),
        ("dog", BAD, "prompt"),
    ],
)
def test_half_a_surrogate_pair_is_named(checkpoint, inputs, prompt, name):
    model = fastsal.SentenceEncoder(str(checkpoint), device="cpu")
    with pytest.raises(TypeError, match=rf"^{name} must be a text, got one with half of a surrogate pair"):
        model.encode(inputs, prompt=prompt)


def test_half_a_surrogate_pair_in_a_prompt_of_text_encoder():
    with pytest.raises(TypeError, match=r"^prompt must be a text, got one with half"):
        fastsal.TextEncoder().encode(["dog"], prompt=BAD)


def test_half_a_surrogate_pair_on_the_command_line(tmp_path):
    (tmp_path / "texts.txt").write_text("a dog\n")
    arguments = ["encode", str(tmp_path / "texts.txt"), "-o", str(tmp_path / "out.npy"), "--prompt", BAD]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 2
    assert "--prompt must be a text, got one with half of a surrogate pair" in result.stderr
    assert not (tmp_path / "out.npy").exists()


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_sts_of_embeddings_that_are_not_finite(precision, bad):
    rows = np.random.default_rng(0).normal(size=(12, 8))
    rows[3, 2] = bad
    with pytest.raises(ValueError, match="toy: 1 of 12 embeddings contain NaN or infinity"):
        score_sts(Toy(rows), sts(np.arange(6)), precision)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.int8])
def test_sts_of_a_zero_row(precision, dtype):
    rows = (np.random.default_rng(0).normal(size=(16, 8)) * 20).astype(dtype)
    rows[4] = 0
    scores = score_sts(Toy(rows), sts(np.arange(8)), precision).all
    assert np.isfinite(list(scores.values())).all()
    assert scores == score_sts(Toy(rows.astype(np.float32)), sts(np.arange(8)), precision).all


def test_sts_without_pairs():
    with pytest.raises(ValueError, match="there are no pairs to score in all"):
        score_sts(Toy(np.zeros((0, 4))), sts(np.zeros(0)))
    with pytest.raises(ValueError, match="there are no pairs to score"):
        score_sts(Toy(np.zeros((0, 4))), StsData("toy", "memory", ()))


@pytest.mark.parametrize("kind", KINDS)
def test_nli_columns_of_any_kind_score_alike(kind):
    rng = np.random.default_rng(0)
    labels = [("entailment", "neutral", "contradiction")[i % 3] for i in range(90)]
    rows = rng.normal(size=(180, 6))
    rows[:90, 0] += 3 * (np.arange(90) % 3)
    texts = [str(i) for i in range(180)]

    def pairs(name, part, make):
        columns = [texts[:90][part], texts[90:][part], labels[part]]
        return LabelledPairs(name, *map(make, columns), 90)

    def score(make):
        data = NliData("toy", "memory", pairs("train", slice(0, 60), make), (pairs("test", slice(60, 90), make),))
        return score_nli(Toy(rows), data, train_limit=45).frozen

    assert score(KINDS[kind]) == score(list)
    assert score(list)["test"] > 60


def test_columns_of_different_lengths():
    with pytest.raises(ValueError, match="same length, they have: first 2, second 1, gold 2"):
        ScoredPairs("toy", ["a", "b"], ["c"], np.zeros(2), 2)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
def test_a_cnn_in_another_dtype_keeps_its_promise_or_says_not(checkpoint, tmp_path, dtype, caplog):
    folder = model_folder(tmp_path / "model", checkpoint, CNN(32, 6, [1, 3]), Pooling(12, "max"))
    model = fastsal.SentenceEncoder(str(folder), device="cpu").to(dtype)
    with caplog.at_level(logging.WARNING, logger="fastsal"):
        alone = np.stack([model.encode(text) for text in TEXTS])
        together = model.encode(TEXTS)
    if dtype is torch.float16:
        assert np.array_equal(alone, together)
        assert "encode runs" not in caplog.text
    else:
        assert caplog.text.count("embeddings depend on their batch: no backend computes in float64") == 1


def test_a_circular_cnn_says_that_embeddings_depend_on_their_batch(checkpoint, tmp_path, caplog):
    folder = model_folder(tmp_path / "model", checkpoint, CNN(32, 6, [1, 3]), Pooling(12, "max"))
    model = fastsal.SentenceEncoder(str(folder), device="cpu")
    for convolution in model[1].convs:
        convolution.padding_mode = "circular"
    with caplog.at_level(logging.WARNING, logger="fastsal"):
        model.encode(TEXTS)
        model.encode(TEXTS)
    assert caplog.text.count("embeddings depend on their batch: its CNN has convolutions other") == 1


@pytest.mark.parametrize("backend", ["onnx", "openvino"])
def test_backends_of_sentence_transformers_are_told_apart(checkpoint, backend):
    with pytest.raises(ValueError, match=f"backend='{backend}' is sentence-transformers' way.*SentenceTransformer"):
        fastsal.SentenceEncoder(str(checkpoint), backend=backend)


def test_torch_as_wrappers_pass_it_on_is_auto(checkpoint):
    model = fastsal.SentenceEncoder(str(checkpoint), backend="torch", device="cpu")
    assert model[0].model._fastsal.settings.backend == "auto"
    with pytest.raises(ValueError, match="backend must be 'auto' or one of"):
        fastsal.SentenceEncoder(str(checkpoint), backend="tensorflow", device="cpu")


def test_verify_says_what_it_can_verify():
    class Wrapper(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = fastsal.accelerate(TINY["bert"]())

        def forward(self, ids):
            return self.inner(ids).last_hidden_state

    model = Wrapper()
    with pytest.raises(TypeError, match=r"a Wrapper is not known. Verify the encoders in it: inner \(FastBertModel\)"):
        fastsal.verify(model, [[1, 2, 3]])
    assert fastsal.verify(model.inner, [[1, 2, 3], [4, 5]]).num_sentences == 2


def rename_weights(folder, rename, as_pickle=False):
    """Write the encoder's weights under other names; None drops one."""
    path = folder / "model.safetensors"
    renamed = {rename(name): tensor for name, tensor in load_file(path).items()}
    renamed.pop(None, None)
    if as_pickle:
        path.unlink()
        torch.save(renamed, folder / "pytorch_model.bin")
    else:
        save_file(renamed, path)


@pytest.mark.parametrize("as_pickle", [False, True])
def test_weights_under_names_that_match_nothing_are_refused(checkpoint, tmp_path, as_pickle):
    folder = Path(shutil.copytree(checkpoint, tmp_path / "model"))
    rename_weights(folder, lambda name: "tf_" + name.replace(".", "/"), as_pickle)
    with pytest.raises(OSError, match=r"weights are not in the files .*word_embeddings.*unknown in the files: 'tf_emb"):
        fastsal.SentenceEncoder(str(folder), device="cpu")


def test_one_weight_that_would_stay_random_is_named(checkpoint, tmp_path):
    folder = Path(shutil.copytree(checkpoint, tmp_path / "model"))
    dropped = next(name for name in load_file(folder / "model.safetensors") if name.endswith("query.bias"))
    rename_weights(folder, lambda name: None if name == dropped else name)
    with pytest.raises(OSError, match=f"1 of its .* weights are not in the files .*'{dropped}'.*in the files: none"):
        fastsal.SentenceEncoder(str(folder), device="cpu")


def test_checkpoints_without_a_pooler_or_with_a_head_are_whole(checkpoint, tmp_path):
    prefix = json.loads((checkpoint / "config.json").read_text())["model_type"]
    expected = fastsal.SentenceEncoder(str(checkpoint), device="cpu").encode("cat")
    folder = Path(shutil.copytree(checkpoint, tmp_path / "model"))
    rename_weights(folder, lambda name: None if name.startswith("pooler") else f"{prefix}.{name}")
    assert np.array_equal(fastsal.SentenceEncoder(str(folder), device="cpu").encode("cat"), expected)
