"""`SentenceEncoder.encode` beside `SentenceTransformer.encode` on the same folder, argument by argument."""

from __future__ import annotations

import inspect
import logging
import signal
import threading
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Dense, Normalize, Pooling
from tiny import MAX_POSITIONS, TEXTS, albert_checkpoint, bert_checkpoint, model_folder
from torch import Tensor

import fastsal
import fastsal.engine.encode_loop
from fastsal.sentence_transformers import tokenization

pytestmark = pytest.mark.usefixtures("one_thread")

#: How far embeddings may be from sentence-transformers' run one sentence at a time.
TOLERANCE = 1e-5
WIDTH = 32
PROMPTS = {"query": "the cat: ", "passage": "a dog "}


@pytest.fixture(scope="module", params=[bert_checkpoint, albert_checkpoint], ids=["bert", "albert"])
def folder(request, tmp_path_factory):
    base = tmp_path_factory.mktemp("model")
    checkpoint = request.param(base / "checkpoint")
    return model_folder(base / "model", checkpoint, Pooling(WIDTH, "mean"), prompts=PROMPTS)


@pytest.fixture(scope="module")
def reference(folder):
    return SentenceTransformer(str(folder), device="cpu")


@pytest.fixture(scope="module")
def fast(folder):
    return fastsal.SentenceEncoder(str(folder), device="cpu")


@pytest.fixture
def native(monkeypatch) -> list:
    """The results of every native computation: a test that wants the fast path checks that there were some."""
    results: list = []
    embed = fastsal.sentence_transformers.sentence_encoder.embed

    def recording(*args, **kwargs):
        results.append(embed(*args, **kwargs))
        return results[-1]

    monkeypatch.setattr("fastsal.sentence_transformers.sentence_encoder.embed", recording)
    return results


def assert_same(actual, expected) -> None:
    """The same types, dtypes, shapes and, within TOLERANCE, values."""
    assert type(actual) is type(expected)
    if isinstance(expected, (list, tuple)):
        assert len(actual) == len(expected)
        for one, other in zip(actual, expected, strict=True):
            assert_same(one, other)
    elif isinstance(expected, dict):
        assert actual.keys() == expected.keys()
        for name in expected:
            assert_same(actual[name], expected[name])
    elif isinstance(expected, Tensor):
        assert (actual.dtype, actual.shape, actual.device) == (expected.dtype, expected.shape, expected.device)
        assert_same(actual.float().numpy(), expected.float().numpy())
    elif isinstance(expected, np.ndarray):
        assert (actual.dtype, actual.shape) == (expected.dtype, expected.shape)
        if expected.dtype.kind == "f":
            np.testing.assert_allclose(actual, expected, rtol=0, atol=TOLERANCE)
        else:
            np.testing.assert_array_equal(actual, expected)
    else:
        assert actual == expected


def test_signatures_are_the_references():
    for name in ("encode", "encode_query", "encode_document"):
        actual, expected = (inspect.signature(getattr(c, name)) for c in (fastsal.SentenceEncoder, SentenceTransformer))
        parameters = [[(p.name, p.kind, p.default) for p in s.parameters.values()] for s in (actual, expected)]
        assert parameters[0] == parameters[1]


@pytest.mark.parametrize(
    "inputs", [TEXTS, TEXTS[0], ["a dog"], [""]], ids=["texts", "one text", "list of one", "empty"]
)
@pytest.mark.parametrize("convert_to_numpy", [True, False])
@pytest.mark.parametrize("convert_to_tensor", [True, False])
@pytest.mark.parametrize("normalize_embeddings", [True, False])
def test_results(reference, fast, native, inputs, convert_to_numpy, convert_to_tensor, normalize_embeddings):
    arguments = {
        "convert_to_numpy": convert_to_numpy,
        "convert_to_tensor": convert_to_tensor,
        "normalize_embeddings": normalize_embeddings,
    }
    assert_same(fast.encode(inputs, **arguments), reference.encode(inputs, batch_size=1, **arguments))
    assert len(native) == 1


def test_old_argument_name(reference, fast):
    assert_same(fast.encode(sentences=TEXTS), reference.encode(sentences=TEXTS, batch_size=1))


@pytest.mark.parametrize(
    "arguments",
    [
        {"prompt": "the old man "},
        {"prompt": ""},
        {"prompt_name": "query"},
        {"prompt": "the old man ", "prompt_name": "query"},
        {"task": "query"},
    ],
)
def test_prompts(reference, fast, native, arguments):
    assert_same(fast.encode(TEXTS, **arguments), reference.encode(TEXTS, batch_size=1, **arguments))
    assert len(native) == 1


def test_prompt_of_task_and_default_prompt(reference, fast, native):
    for name in ("encode_query", "encode_document"):
        assert_same(getattr(fast, name)(TEXTS), getattr(reference, name)(TEXTS, batch_size=1))
    plain = fast.encode(TEXTS)
    try:
        fast.default_prompt_name = reference.default_prompt_name = "query"
        assert_same(fast.encode(TEXTS), reference.encode(TEXTS, batch_size=1))
        assert not np.allclose(fast.encode(TEXTS), plain)
    finally:
        fast.default_prompt_name = reference.default_prompt_name = None
    assert len(native) == 5


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"prompt_name": "nothing"}, ValueError, "nothing"),
        ({"batch_size": 0}, ValueError, "batch_size"),
        ({"batch_size": -3}, ValueError, "batch_size"),
        ({"precision": "float16"}, ValueError, "float16"),
        ({"unknown": 1}, ValueError, "unknown"),
        ({"device": ["cpu"], "chunk_size": 0}, ValueError, "chunk_size|must not be zero"),
    ],
)
def test_wrong_arguments(reference, fast, arguments, error, message):
    for model in (reference, fast):
        with pytest.raises(error, match=message):
            model.encode(TEXTS, **arguments)


@pytest.mark.parametrize("truncate_dim", [5, WIDTH, 50, 0, -1])
@pytest.mark.parametrize("normalize_embeddings", [True, False])
def test_truncation(reference, fast, native, truncate_dim, normalize_embeddings):
    arguments = {"truncate_dim": truncate_dim, "normalize_embeddings": normalize_embeddings}
    embeddings = fast.encode(TEXTS, **arguments)
    assert_same(embeddings, reference.encode(TEXTS, batch_size=1, **arguments))
    assert_same(fast.encode("cat", **arguments), reference.encode("cat", batch_size=1, **arguments))
    assert embeddings.shape[1] == {50: WIDTH, -1: WIDTH - 1}.get(truncate_dim, truncate_dim)
    if normalize_embeddings and truncate_dim:
        np.testing.assert_allclose(np.linalg.norm(embeddings, axis=1), 1, rtol=1e-6)
    assert len(native) == 2


def test_query_expansion_comes_and_goes(folder):
    expansions = [None, {"strategy": "fixed", "attend": True, "length": 12},
                  {"strategy": "fixed", "attend": True, "length": 20}, None]  # fmt: skip
    models = [cls(str(folder), device="cpu") for cls in (SentenceTransformer, fastsal.SentenceEncoder)]
    results = []
    for expansion in expansions:
        for model in models:
            model[0].query_expansion = expansion
        reference, fast = (model.encode_query("the cat sat") for model in models)
        assert_same(fast, reference)
        results.append(fast)
    assert np.abs(results[0] - results[1]).max() > 100 * TOLERANCE < np.abs(results[1] - results[2]).max()


def test_truncation_of_the_model_and_of_a_context(reference, fast, native):
    with fast.truncate_embeddings(7), reference.truncate_embeddings(7):
        assert_same(fast.encode(TEXTS), reference.encode(TEXTS, batch_size=1))
        assert fast.encode(TEXTS, truncate_dim=3).shape == (len(TEXTS), 3)
    assert fast.encode(TEXTS).shape == (len(TEXTS), WIDTH)
    assert len(native) == 3


def test_truncation_does_not_renormalise_a_models_own_normalize(tmp_path, native):
    checkpoint = bert_checkpoint(tmp_path / "checkpoint")
    folder = model_folder(tmp_path / "model", checkpoint, Pooling(WIDTH, "mean"), Normalize())
    reference, fast = SentenceTransformer(str(folder), device="cpu"), fastsal.SentenceEncoder(str(folder), device="cpu")
    embeddings = fast.encode(TEXTS, truncate_dim=5)
    assert_same(embeddings, reference.encode(TEXTS, batch_size=1, truncate_dim=5))
    assert (np.linalg.norm(embeddings, axis=1) < 0.99).all()
    assert len(native) == 1


@pytest.mark.parametrize("precision", ["float32", "int8", "uint8", "binary", "ubinary", None])
@pytest.mark.parametrize("form", [{}, {"convert_to_tensor": True}, {"convert_to_numpy": False}])
def test_precision(reference, fast, native, precision, form):
    actual = fast.encode(TEXTS, precision=precision, truncate_dim=20, **form)
    expected = reference.encode(TEXTS, precision=precision, truncate_dim=20, batch_size=1, **form)
    if precision in ("int8", "uint8"):
        # A value at the edge of a bucket may fall into the next one.
        assert type(actual) is type(expected)
        for one, other in zip(actual, expected, strict=True):
            assert (one.dtype, one.shape) == (other.dtype, other.shape)
            assert np.abs(np.asarray(one).astype(int) - np.asarray(other).astype(int)).max() <= 1
    else:
        assert_same(actual, expected)
    if precision in ("binary", "ubinary"):
        assert actual[0].shape == (3,)
    assert len(native) == 1


def test_precision_of_one_row(reference, fast):
    try:
        expected = reference.encode(["cat"], precision="int8")
    except ValueError:  # sentence-transformers >= 6.2 refuses to calibrate on one row
        with pytest.raises(ValueError, match=r"precision='int8' .* needs 2 at least, got 1"):
            fast.encode(["cat"], precision="int8")
    else:
        assert_same(fast.encode(["cat"], precision="int8"), expected)
    assert_same(fast.encode("cat", precision="ubinary"), reference.encode("cat", precision="ubinary"))


@pytest.mark.parametrize("output_value", ["token_embeddings", None])
@pytest.mark.parametrize("inputs", [["a dog", "the cat sat"], "cat"], ids=["two", "one"])
def test_other_outputs(reference, fast, native, output_value, inputs):
    # Padded to one length, so that the reference's padded rows can be compared: fastsal's are zeros.
    actual = fast.encode(inputs, output_value=output_value, batch_size=1)
    assert_same(actual, reference.encode(inputs, output_value=output_value, batch_size=1))
    assert not native


@pytest.mark.parametrize("inputs", [[], (), np.array([])], ids=["list", "tuple", "array"])
@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"convert_to_tensor": True},
        {"convert_to_numpy": False},
        {"output_value": "token_embeddings"},
        *({"precision": precision} for precision in ("int8", "uint8", "binary", "ubinary")),
    ],
)
def test_no_inputs(reference, fast, inputs, arguments):
    if isinstance(inputs, np.ndarray):
        inputs = inputs.astype(object)
    assert_same(fast.encode(inputs, **arguments), reference.encode(inputs, **arguments))


@pytest.mark.parametrize(
    "inputs",
    [
        tuple(TEXTS),
        np.array(TEXTS),
        np.array(TEXTS, dtype=object),
        pd.Series(TEXTS, index=range(len(TEXTS), 0, -1)),
        pd.Series(TEXTS, index=["same"] * len(TEXTS)),
        pd.Index(TEXTS),
    ],
    ids=["tuple", "str array", "object array", "reversed series", "series of one label", "pandas index"],
)
def test_kinds_of_inputs(fast, native, inputs):
    texts = [text.rstrip("\x00") for text in inputs]  # numpy's str arrays drop trailing NULs
    assert_same(fast.encode(inputs), fast.encode(texts))
    assert len(native) == 2


@pytest.mark.parametrize(
    "make", [lambda: {"a", "b"}, lambda: iter(["a"]), lambda: (t for t in ["a"]), lambda: {"a": 1}]
)
def test_inputs_without_order(fast, make):
    with pytest.raises(ValueError, match=r".+"):
        fast.encode(make())


@pytest.mark.parametrize("value", [None, 3, 2.5, float("nan"), np.float32(1), pd.NA, pd.NaT, b"cat", True])
def test_what_is_no_text_is_named(fast, value):
    with pytest.raises(TypeError, match=r"inputs\[2\] must be a text \(str\)"):
        fast.encode(["cat", "dog", value, None])
    with pytest.raises(TypeError, match="inputs must be a text"):
        fast.encode(value)


@pytest.mark.parametrize("output_value", ["sentence_embedding", "token_embeddings"])
def test_half_of_a_surrogate_pair_is_named(fast, output_value):
    texts = ["cat", *TEXTS * 30, "dog \ud83d", "\udc00"]  # in a later window
    with pytest.raises(TypeError, match=rf"inputs\[{len(texts) - 2}\] must be a text, got one with half of a surr"):
        fast.encode(texts, output_value=output_value)
    with pytest.raises(TypeError, match=r"inputs must be a text, got one with half of a surrogate pair: '\\ud800'"):
        fast.encode("\ud800", output_value=output_value)


@pytest.mark.parametrize("inputs", [[("cat", "dog"), ("a", "the man")], [["cat", "dog"]]], ids=["tuples", "lists"])
def test_pairs(reference, fast, native, inputs):
    assert_same(fast.encode(inputs, batch_size=1), reference.encode(inputs, batch_size=1))
    assert not native


def test_dicts_are_refused_as_in_the_reference(reference, fast):
    for model in (reference, fast):
        with pytest.raises(ValueError, match="image"):
            model.encode([{"image": "cat.png", "text": "cat"}])
        with pytest.raises(ValueError, match="a"):
            model.encode({"a": 1})


def test_processing_kwargs(reference, fast, native):
    arguments = {"processing_kwargs": {"text": {"max_length": 5, "truncation": True}}}
    assert_same(fast.encode(TEXTS, batch_size=1, **arguments), reference.encode(TEXTS, batch_size=1, **arguments))
    assert not native
    assert_same(fast.encode(TEXTS), reference.encode(TEXTS, batch_size=1))


def test_device(reference, fast, native):
    assert_same(fast.encode(TEXTS, device="cpu"), reference.encode(TEXTS, device="cpu", batch_size=1))
    assert_same(fast.encode(TEXTS, device=torch.device("cpu", 0)), fast.encode(TEXTS))
    assert len(native) == 3


def test_progress_bar(fast, capsys, caplog):
    fast.encode(TEXTS, batch_size=7, show_progress_bar=False)
    fast.encode(TEXTS)
    assert "Batches" not in capsys.readouterr().err
    fast.encode(TEXTS, batch_size=7, show_progress_bar=True)
    assert f"Batches: 100%|██████████| {-(-len(TEXTS) // 7)}/{-(-len(TEXTS) // 7)}" in capsys.readouterr().err
    with caplog.at_level(logging.INFO, SentenceTransformer.__module__):
        fast.encode(TEXTS)
    assert "Batches: 100%" in capsys.readouterr().err


def test_results_can_be_trained_on_and_the_model_is_in_evaluation_mode(folder):
    fast = fastsal.SentenceEncoder(str(folder), device="cpu")
    expected = fast.encode(TEXTS, convert_to_tensor=True)
    for part in (fast, fast[0], fast[0].model.encoder):
        part.train()
        embeddings = fast.encode(TEXTS, convert_to_tensor=True)
        assert torch.equal(embeddings, expected)  # no dropout
        assert not any(module.training for module in fast.modules())
    assert not embeddings.requires_grad
    head = torch.nn.Linear(WIDTH, 2)
    head(embeddings).sum().backward()
    assert head.weight.grad.abs().sum() > 0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("arguments", [{}, {"convert_to_tensor": True}, {"precision": "float32"}])
def test_half_precision_models(folder, dtype, arguments):
    reference, fast = (
        c(str(folder), device="cpu", model_kwargs={"dtype": dtype})
        for c in (SentenceTransformer, fastsal.SentenceEncoder)
    )
    actual = fast.encode(TEXTS, batch_size=1, **arguments)
    expected = reference.encode(TEXTS, batch_size=1, **arguments)
    assert type(actual) is type(expected)
    assert actual.dtype == expected.dtype
    error = np.abs(np.float32(actual) - np.float32(expected)) if isinstance(actual, np.ndarray) else (actual - expected)
    assert float(np.abs(np.asarray(torch.as_tensor(error).float())).max()) < 0.1


def test_half_precision_model_computed_in_float32(folder):
    fast = fastsal.SentenceEncoder(str(folder), dtype="float32", device="cpu", model_kwargs={"dtype": torch.bfloat16})
    assert fast.encode(TEXTS).dtype == np.float32
    assert fast.encode(TEXTS, convert_to_tensor=True).dtype == torch.bfloat16


def test_not_finite_embeddings_are_counted(folder):
    fast = fastsal.SentenceEncoder(str(folder), device="cpu")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fast.encode(TEXTS)
    word = fast.tokenizer.convert_tokens_to_ids(fast.tokenizer.tokenize("guitar")[0])
    with torch.no_grad():
        fast[0].model.embeddings.word_embeddings.weight[word] = float("nan")
    count = sum("guitar" in text for text in TEXTS)
    for arguments in ({}, {"convert_to_numpy": False}, {"convert_to_tensor": True}, {"processing_kwargs": {}}):
        with pytest.warns(RuntimeWarning, match=f"{count} of {len(TEXTS)} embeddings contain NaN") as caught:
            fast.encode(TEXTS, **arguments)
        assert len(caught) == 1


@pytest.mark.parametrize("length", [2, 3, 5, MAX_POSITIONS])
def test_max_seq_length(folder, native, length):
    reference, fast = SentenceTransformer(str(folder), device="cpu"), fastsal.SentenceEncoder(str(folder), device="cpu")
    reference.max_seq_length = fast.max_seq_length = length
    texts = [*TEXTS, " ".join(["the old cat"] * 40)]
    assert_same(fast.encode(texts), reference.encode(texts, batch_size=1))
    assert_same(fast.encode(texts, prompt="a b c"), reference.encode(texts, batch_size=1, prompt="a b c"))
    assert len(native) == 2


@pytest.mark.parametrize("length", [0, 1])
def test_absurd_max_seq_length_truncates_nothing(folder, length):
    reference, fast = SentenceTransformer(str(folder), device="cpu"), fastsal.SentenceEncoder(str(folder), device="cpu")
    reference.max_seq_length = fast.max_seq_length = length
    assert_same(fast.encode(TEXTS[:3]), reference.encode(TEXTS[:3], batch_size=1))


def test_max_seq_length_none(folder):
    fast = fastsal.SentenceEncoder(str(folder), device="cpu")
    fast.max_seq_length = None
    with pytest.raises(TypeError):
        fast.encode(TEXTS)


def test_texts_longer_than_the_model(folder):
    fast = fastsal.SentenceEncoder(str(folder), device="cpu")
    fast.max_seq_length = 2 * MAX_POSITIONS
    assert fast.encode(TEXTS[:5]).shape == (5, WIDTH)
    message = rf"inputs\[1\] has 62 tokens, but the model has positions for {MAX_POSITIONS} only"
    with pytest.raises(IndexError, match=message):
        fast.encode(["cat", " ".join(["dog"] * 60), "cat"])
    assert fast.encode(TEXTS[:5]).shape == (5, WIDTH)


@pytest.fixture
def small_windows(monkeypatch):
    """Windows and batches so small that a few texts need many of them."""
    monkeypatch.setattr(fastsal.engine.encode_loop, "FIRST_WINDOW", 2)
    monkeypatch.setattr(fastsal.engine.encode_loop, "LAST_WINDOW", 9)
    monkeypatch.setattr(fastsal.engine.encode_loop, "TOKEN_BUDGET", 30)
    monkeypatch.setattr(tokenization, "_TEXTS_PER_CALL", 4)


def test_windows_do_not_change_a_bit(fast, small_windows, monkeypatch, capsys):
    texts = TEXTS * 5
    embeddings = fast.encode(texts, show_progress_bar=True)
    assert "Batches: 100%|██████████| 4/4" in capsys.readouterr().err
    monkeypatch.undo()
    np.testing.assert_array_equal(embeddings, fast.encode(texts))
    monkeypatch.setattr(fastsal.engine.encode_loop, "WINDOW_CHARACTERS", 1)
    np.testing.assert_array_equal(embeddings, fast.encode(texts))


@settings(max_examples=40, deadline=None)
@given(texts=st.lists(st.text(alphabet="abcdt é😀.[]\n", max_size=90), min_size=1, max_size=12), data=st.data())
def test_batch_order_and_size_do_not_change_a_bit(fast, texts, data):
    embeddings = fast.encode(texts, batch_size=data.draw(st.integers(1, 8)))
    order = data.draw(st.permutations(range(len(texts))))
    shuffled = fast.encode([texts[index] for index in order])
    np.testing.assert_array_equal(shuffled, embeddings[order])
    index = data.draw(st.integers(0, len(texts) - 1))
    np.testing.assert_array_equal(fast.encode(texts[index]), embeddings[index])


@pytest.mark.parametrize("error", [ValueError("broken"), KeyboardInterrupt()], ids=["error", "interrupt"])
@pytest.mark.parametrize("where", ["tokenize", "compute"])
def test_errors_in_the_middle_leave_no_thread_behind(fast, small_windows, monkeypatch, error, where):
    target = fastsal.engine.encode_loop if where == "compute" else fastsal.sentence_transformers.sentence_encoder
    name = "pack" if where == "compute" else "make_tokenize"
    original: Callable = getattr(target, name)
    calls = []

    def breaking(function: Callable, *args):
        calls.append(args)
        if len(calls) == 3:
            raise error
        return function(*args)

    def broken(*args):
        return breaking(original, *args) if where == "compute" else partial(breaking, original(*args))

    monkeypatch.setattr(target, name, broken)
    with pytest.raises(type(error)):
        fast.encode(TEXTS * 3)
    assert not [thread for thread in threading.enumerate() if "fastsal" in thread.name]
    monkeypatch.undo()
    assert fast.encode(TEXTS).shape == (len(TEXTS), WIDTH)


def test_tokens_of_few_windows_are_held(fast, small_windows, monkeypatch):
    make, pack = fastsal.sentence_transformers.sentence_encoder.make_tokenize, fastsal.engine.encode_loop.pack
    held, most = 0, 0

    def counting_make(*args):
        tokenize = make(*args)

        def count_and_tokenize(texts):
            nonlocal held, most
            held += len(texts)
            most = max(most, held)
            return tokenize(texts)

        return count_and_tokenize

    def counting_pack(tokens, rows):
        nonlocal held
        held -= len(rows)
        return pack(tokens, rows)

    monkeypatch.setattr(fastsal.sentence_transformers.sentence_encoder, "make_tokenize", counting_make)
    monkeypatch.setattr(fastsal.engine.encode_loop, "pack", counting_pack)
    fast.encode(TEXTS * 20)
    assert held == 0
    assert most <= 2 * fastsal.engine.encode_loop.LAST_WINDOW + 2


def test_threads_share_a_model(folder):
    """B91: 16 threads, lists of different lengths, encode beside the tokenizer's padding and truncation calls."""
    fast = fastsal.SentenceEncoder(str(folder), device="cpu")
    lists = [(TEXTS * 2)[start : start + 1 + start % 7] for start in range(16)]
    prompts = [None, "the cat: ", "", "a b"]
    serial = [fast.encode(texts, prompt=prompts[index % 4]) for index, texts in enumerate(lists)]
    tokens = fast.encode(lists[3], output_value="token_embeddings")

    def work(index: int) -> None:
        for _ in range(20):
            embeddings = fast.encode(lists[index], prompt=prompts[index % 4])
            np.testing.assert_array_equal(embeddings, serial[index])
            if index % 4 == 3:  # sets padding, in sentence-transformers' own code
                for one, other in zip(fast.encode(lists[3], output_value="token_embeddings"), tokens, strict=True):
                    assert torch.equal(one, other)

    with ThreadPoolExecutor(16) as threads:
        for result in [threads.submit(work, index) for index in range(16)]:
            result.result()


@pytest.mark.parametrize("card", [False, True], ids=["files", "files and card"])
def test_a_model_computes_while_it_is_saved(folder, tmp_path, card):
    fast = fastsal.SentenceEncoder(str(folder), device="cpu")
    features = {"input_ids": torch.tensor([[2, 3, 4, 5], [2, 3, 4, 0]]),
                "attention_mask": torch.tensor([[1, 1, 1, 1], [1, 1, 1, 0]])}  # fmt: skip

    def compute() -> tuple[np.ndarray, Tensor]:
        with torch.no_grad():
            return fast.encode(TEXTS), fast[0].model(**features).last_hidden_state

    embeddings, states = compute()
    assert not states[1, 3].any()  # zeros where masked: the kernels' result, not the reference's
    saved = threading.Event()

    def save() -> None:
        try:
            for _ in range(10):
                fast.save(str(tmp_path / "saved"), create_model_card=card)
        finally:
            saved.set()

    with ThreadPoolExecutor(1) as thread:
        saving = thread.submit(save)
        while not saved.is_set():
            now_embeddings, now_states = compute()
            assert np.array_equal(now_embeddings, embeddings)
            assert torch.equal(now_states, states)
        saving.result()
    assert (tmp_path / "saved" / "README.md").exists() == card


def test_threads_change_max_seq_length(folder):
    fast = fastsal.SentenceEncoder(str(folder), device="cpu")
    expected = {}
    for length in (4, 7, 30):
        fast.max_seq_length = length
        expected[length] = fast.encode(TEXTS)

    def work(index: int) -> None:
        for turn in range(20):
            fast.max_seq_length = (4, 7, 30)[(index + turn) % 3]
            embeddings = fast.encode(TEXTS)
            assert any(np.array_equal(embeddings, other) for other in expected.values())

    with ThreadPoolExecutor(16) as threads:
        for result in [threads.submit(work, index) for index in range(16)]:
            result.result()


def test_thread_counts_stay_and_do_not_change_a_bit(fast):
    """B95"""
    expected, interop = fast.encode(TEXTS), torch.get_num_interop_threads()
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            np.testing.assert_array_equal(fast.encode(TEXTS), expected)
            assert (torch.get_num_threads(), torch.get_num_interop_threads()) == (count, interop)
    finally:
        torch.set_num_threads(1)


def test_a_pool_of_processes(tmp_path):
    checkpoint = bert_checkpoint(tmp_path / "checkpoint")
    dense = Dense(WIDTH, 8)
    folder = model_folder(tmp_path / "model", checkpoint, Pooling(WIDTH, "mean"), dense)
    fast = fastsal.SentenceEncoder(str(folder), device="cpu")
    texts, others = TEXTS * 2, [f"{text} dog" for text in TEXTS * 2]
    expected, other_expected = fast.encode(texts), fast.encode(others)
    pool = fast.start_multi_process_pool(["cpu", "cpu"])
    try:
        for chunk_size in (None, 1, 7):
            assert_same(fast.encode(texts, pool=pool, chunk_size=chunk_size), expected)
        assert_same(fast.encode("cat", pool=pool), fast.encode("cat"))
        with pytest.raises(ValueError, match=r"chunk_size|must not be zero"):
            fast.encode(texts, pool=pool, chunk_size=0)
        with pytest.raises(TypeError, match=r"inputs\[2\]"):
            fast.encode(["a", "b", None], pool=pool, chunk_size=1)
        # B56: the queues do not tell two callers apart
        with ThreadPoolExecutor(2) as threads:
            one = threads.submit(fast.encode, texts, pool=pool, chunk_size=7)
            other = threads.submit(fast.encode, others, pool=pool, chunk_size=1)
            assert_same(one.result(), expected)
            assert_same(other.result(), other_expected)
        # B96: a worker that dies is reported; sentence-transformers waits for it before 6.2
        if hasattr(SentenceTransformer, "_get_worker_result"):
            for process in pool["processes"]:
                process.kill()
                process.join()
            assert all(process.exitcode == -signal.SIGKILL for process in pool["processes"])
            with pytest.raises(RuntimeError, match="died"):
                fast.encode(texts, pool=pool)
    finally:
        fast.stop_multi_process_pool(pool)
