"""Pooling modes: the kernels beside the plain PyTorch twin, and beside sentence-transformers at batch size 1."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import OracleEncoder
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling
from tiny import MAX_POSITIONS, TEXTS, encoders_of, model_folder
from tolerance import assert_as_exact_as_reference
from torch import Tensor
from transformers import AutoModel

import fastsal
from fastsal.engine.packing import pack_token_lists
from fastsal.engine.pooling import POOLING_MODES, PoolingSpec
from fastsal.modules.architectures import read_encoder

pytestmark = pytest.mark.usefixtures("one_thread", "no_grad")

WIDTH = 32


@pytest.fixture(scope="module")
def encoder(checkpoint):
    return fastsal.accelerate(AutoModel.from_pretrained(checkpoint).eval(), strict=True)


@pytest.fixture(scope="module")
def oracles(encoder):
    """The twin in float32 and float64."""
    reading = read_encoder(encoder)
    return [OracleEncoder(reading.spec, reading.weights, dtype) for dtype in (torch.float32, torch.float64)]


def assert_pooled(encoder, oracles, token_lists: list[list[int]], pooling: PoolingSpec) -> None:
    batch = pack_token_lists(token_lists)
    actual = encoder.sentence_embeddings(token_lists, pooling)
    reference, truth = (oracle.sentence_embeddings(batch, pooling) for oracle in oracles)
    # -inf where there is nothing to take the maximum of: the same entries, which then are left out.
    nothing = truth == float("-inf")
    assert torch.equal(actual == float("-inf"), nothing)
    assert_as_exact_as_reference(*(x.masked_fill(nothing, 0) for x in (actual, reference, truth)))


tokens = st.integers(5, 45)
mode_lists = st.lists(st.sampled_from(POOLING_MODES), min_size=1, max_size=6, unique=True).map(tuple)


@settings(max_examples=60, deadline=None)
@given(
    token_lists=st.lists(st.lists(tokens, max_size=MAX_POSITIONS), min_size=1, max_size=6),
    modes=mode_lists,
    skip_tokens=st.sampled_from([0, 0, 1, 2, 7]),
)
def test_modes_against_the_twin(encoder, oracles, token_lists, modes, skip_tokens):
    assert_pooled(encoder, oracles, token_lists, PoolingSpec(modes, skip_tokens=skip_tokens))


@settings(max_examples=30, deadline=None)
@given(
    token_lists=st.lists(st.lists(tokens, min_size=1, max_size=MAX_POSITIONS), min_size=1, max_size=6), modes=mode_lists
)
def test_normalized_against_the_twin(encoder, oracles, token_lists, modes):
    assert_pooled(encoder, oracles, token_lists, PoolingSpec(modes, normalize=True))
    embeddings = encoder.sentence_embeddings(token_lists, modes, normalize=True)
    torch.testing.assert_close(embeddings.norm(dim=1), torch.ones(len(token_lists)))


@pytest.mark.parametrize("length", [1, 2, 15, 16, 17, 31, 32, 33, MAX_POSITIONS])
def test_lengths(encoder, oracles, length):
    token_lists = [[5 + (index * 7 + length) % 40 for index in range(length)]] * 2 + [[6]]
    assert_pooled(encoder, oracles, token_lists, PoolingSpec(POOLING_MODES))


def test_no_tokens(encoder):
    empty = {mode: encoder.sentence_embeddings([[], [5, 6]], mode, normalize=False)[0] for mode in POOLING_MODES}
    assert (empty.pop("max") == float("-inf")).all()
    for mode, embedding in empty.items():
        assert (embedding == 0).all(), mode
    assert encoder.sentence_embeddings([], "mean").shape == (0, WIDTH)


def test_the_spec_names_what_is_wrong():
    with pytest.raises(ValueError, match=r"one of \('cls', .*'lasttoken'\), got 'avg'"):
        PoolingSpec(("mean", "avg"))
    with pytest.raises(ValueError, match="at least one pooling mode"):
        PoolingSpec(())
    assert PoolingSpec(("mean", "cls")).output_size(WIDTH) == 2 * WIDTH


def assert_native(fast: fastsal.SentenceEncoder) -> None:
    """The model is one that runs natively, so that the comparison is not of the reference with itself."""
    assert not isinstance(fast._computation(None), str), fast._computation(None)


@pytest.mark.parametrize(
    "modes",
    [
        *POOLING_MODES,
        POOLING_MODES,
        ["mean", "cls"],
        ["max", "lasttoken", "max"],
        *itertools.combinations(POOLING_MODES[:3], 2),
    ],
    ids=str,
)
def test_modes_against_sentence_transformers(checkpoint, tmp_path, modes):
    pooling = Pooling(WIDTH, modes)
    reference, fast = encoders_of(model_folder(tmp_path / "model", checkpoint, pooling))
    assert_native(fast)
    truth = SentenceTransformer(str(tmp_path / "model"), device="cpu").double()
    alone = {"batch_size": 1, "convert_to_tensor": True}
    assert_as_exact_as_reference(
        fast.encode(TEXTS, convert_to_tensor=True), reference.encode(TEXTS, **alone), truth.encode(TEXTS, **alone)
    )
    assert fast.get_embedding_dimension() == reference.get_embedding_dimension() == fast.encode("cat").shape[0]


@pytest.mark.parametrize("prompt", ["a b c: ", "cat", "the " * 30, "the " * 60], ids=["short", "word", "long", "full"])
@pytest.mark.parametrize("modes", [POOLING_MODES, "weightedmean"], ids=str)
@pytest.mark.parametrize("padding_side", ["right", "left"])
def test_an_excluded_prompt(checkpoint, tmp_path, prompt, modes, padding_side):
    folder = model_folder(tmp_path / "model", checkpoint, Pooling(WIDTH, modes, include_prompt=False), Normalize())
    reference, fast = encoders_of(folder)
    fast.tokenizer.padding_side = reference.tokenizer.padding_side = padding_side
    assert_native(fast)
    actual, expected = fast.encode(TEXTS, prompt=prompt), reference.encode(TEXTS, prompt=prompt, batch_size=1)
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-5)
    included = fastsal.SentenceEncoder(str(folder), device="cpu")
    included.set_pooling_include_prompt(True)
    assert not np.allclose(included.encode(TEXTS, prompt=prompt), actual, atol=1e-3)
    np.testing.assert_array_equal(included.encode(TEXTS), fast.encode(TEXTS))


def test_a_prompt_that_fills_the_window_leaves_the_last_token(checkpoint, tmp_path):
    folder = model_folder(tmp_path / "model", checkpoint, Pooling(WIDTH, POOLING_MODES, include_prompt=False))
    fast = fastsal.SentenceEncoder(str(folder), device="cpu")
    parts = np.split(fast.encode(TEXTS, prompt="the " * 60), len(POOLING_MODES), axis=1)
    for part in parts[1:]:
        np.testing.assert_allclose(part, parts[0], rtol=0, atol=1e-6)


FLAGS = {
    "cls": "pooling_mode_cls_token",
    "max": "pooling_mode_max_tokens",
    "mean": "pooling_mode_mean_tokens",
    "mean_sqrt_len_tokens": "pooling_mode_mean_sqrt_len_tokens",
    "weightedmean": "pooling_mode_weightedmean_tokens",
    "lasttoken": "pooling_mode_lasttoken",
}


@pytest.mark.parametrize(
    ("config", "modes"),
    [
        ({FLAGS["mean_sqrt_len_tokens"]: True, FLAGS["mean"]: True, FLAGS["cls"]: True}, None),
        ({FLAGS["cls"]: False, FLAGS["mean"]: False}, ("mean",)),
        (dict.fromkeys(reversed(FLAGS.values()), True), POOLING_MODES),
        ({"pooling_mode": ["mean", "cls"]}, ("mean", "cls")),
        ({"pooling_mode": "lasttoken", FLAGS["cls"]: True}, ("lasttoken",)),
    ],
    ids=["flags", "no flag", "all flags", "list", "name and flag"],
)
def test_forms_of_the_config(checkpoint, tmp_path, config, modes):
    """B41: flags concatenate in a fixed order, a list keeps its own."""
    modes = modes or ("cls", "mean", "mean_sqrt_len_tokens")
    folder = model_folder(tmp_path / "model", checkpoint, Pooling(WIDTH, "max"))
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"word_embedding_dimension": WIDTH, **config}))
    reference, fast = encoders_of(folder)
    assert_native(fast)
    embeddings = fast.encode(TEXTS)
    assert embeddings.shape == (len(TEXTS), WIDTH * len(modes))
    np.testing.assert_allclose(embeddings, reference.encode(TEXTS, batch_size=1), rtol=0, atol=1e-5)
    parts: list[Tensor] = [torch.from_numpy(part) for part in np.split(embeddings, len(modes), axis=1)]
    for mode, part in zip(modes, parts, strict=True):
        fast[1].pooling_mode = mode
        torch.testing.assert_close(part, fast.encode(TEXTS, convert_to_tensor=True), rtol=0, atol=0)
