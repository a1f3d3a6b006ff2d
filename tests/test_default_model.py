"""SALBERT-mini, the model inside fastsal: there without a network, small, exact, and as good as its card says."""

import json
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer
from tolerance import assert_as_exact_as_reference

import fastsal
from fastsal import demo
from fastsal.data import sample_sentences
from fastsal.engine.model_files import default_model_folder
from fastsal.measure.evaluation import NliHead, load_task, score_sts

FOLDER = default_model_folder()


@pytest.fixture(scope="module")
def mini():
    return fastsal.SentenceEncoder(device="cpu")


def test_it_loads_without_a_network():
    program = """
        import os, socket

        os.environ.pop("HF_HUB_OFFLINE", None)

        def no_network(*arguments):
            raise AssertionError(f"a connection was wanted: {arguments}")

        socket.socket.connect = socket.getaddrinfo = no_network
        import fastsal

        print(fastsal.SentenceEncoder(device="cpu").encode("A cat sat on the mat.").shape)
        """
    command = [sys.executable, "-c", textwrap.dedent(program)]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "(384,)\n"


def test_files():
    assert FOLDER.parents[1] == Path(fastsal.__file__).parent
    weights = FOLDER / "model.safetensors"
    assert weights.stat().st_size <= 8_000_000
    assert {tensor.dtype for tensor in load_file(weights).values()} == {torch.float16}
    config = json.loads((FOLDER / "config.json").read_text())
    assert (config["model_type"], config["num_hidden_groups"]) == ("albert", 1)
    assert config["embedding_size"] < config["hidden_size"]
    card = (FOLDER / "README.md").read_text()
    for part in ("license: apache-2.0", "## Training", "## Scores", "## Limits", "## Data and licences"):
        assert part in card


def test_nothing_of_it_is_ignored_by_the_build():
    """scikit-build-core leaves out what git ignores."""
    if shutil.which("git") is None or not (Path(__file__).parents[1] / ".git").exists():
        pytest.skip("no git checkout")
    files = [str(path) for path in FOLDER.rglob("*") if path.is_file()]
    command = ["git", "-C", str(Path(__file__).parents[1]), "check-ignore", *files]
    assert subprocess.run(command, capture_output=True, text=True, check=False).stdout == ""


@pytest.mark.parametrize("cls", [SentenceTransformer, fastsal.SentenceEncoder])
def test_whoever_loads_it_computes_in_float32(cls):
    assert {parameter.dtype for parameter in cls(str(FOLDER), device="cpu").parameters()} == {torch.float32}


def test_other_ways_to_make_an_encoder_are_as_before(mini):
    other = fastsal.SentenceEncoder(modules=list(mini), device="cpu")
    assert other.encode("A cat.").tolist() == mini.encode("A cat.").tolist()
    with pytest.raises(OSError, match=r"internet connection|model identifier"):
        fastsal.SentenceEncoder("no-such-folder/at-all", device="cpu")


def test_it_is_as_exact_as_the_reference(mini):
    assert mini[0].model.fastsal_status().backend == "cpu"
    plain = SentenceTransformer(str(FOLDER), device="cpu")
    sentences = sample_sentences()[::6]

    def one_by_one() -> torch.Tensor:
        return torch.stack([plain.encode(sentence, convert_to_tensor=True) for sentence in sentences])

    reference = one_by_one()
    plain.double()
    assert_as_exact_as_reference(mini.encode(sentences, convert_to_tensor=True), reference, one_by_one())


def test_known_neighbours(mini):
    nearest = mini.similarity(mini.encode(list(demo.QUERIES)), mini.encode(list(demo.NOTES))).argmax(dim=1)
    assert [demo.NOTES[index] for index in nearest] == [
        "My bicycle has a flat tyre.",
        "The match ended in a draw after extra time.",
        "The recipe needs two eggs and a cup of flour.",
    ]


@pytest.mark.parametrize("text", ["", " ", "語 🙂 ქართული", "x" * 300, "word " * 1000, "[CLS] [PAD] [SEP]", "a\x00b"])
def test_any_text_has_an_embedding(mini, text):
    assert mini.encode(text, convert_to_tensor=True).norm().item() == pytest.approx(1, abs=1e-5)


def test_its_head_fits(mini):
    head = NliHead.load(FOLDER)
    assert head is not None
    premise, hypothesis = mini.encode(["A man plays a guitar on stage."]), mini.encode(["A woman sleeps at home."])
    assert head.predict(premise, hypothesis).tolist() == ["contradiction"]
    assert head.predict(premise, mini.encode(["A man plays an instrument."])).tolist() == ["entailment"]


def test_scores_in_every_dtype(data_dir):
    task = load_task("stsb", data_dir)
    scores = []
    for dtype in ("float32", "bfloat16", "int8"):
        encoder = fastsal.SentenceEncoder(dtype=dtype, device="cpu")
        scores.append(score_sts(encoder, task).all["spearman_cosine"])
    assert min(scores) > 74.5  # the card says 75.07
    assert max(scores) - min(scores) < 0.2
    assert score_sts(fastsal.SentenceEncoder(device="cpu"), load_task("sick-r", data_dir)).all["spearman_cosine"] > 71
