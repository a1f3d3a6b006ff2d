"""Folders: which modules run, in which order, natively or as they are; and what a damaged folder says."""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense, Module, Normalize, Router, Transformer
from sentence_transformers.sentence_transformer.modules import (
    Dropout,
    LayerNorm,
    Pooling,
    WeightedLayerPooling,
    WordWeights,
)
from tiny import TEXTS, WORDS, albert_checkpoint, bert_checkpoint, bert_vocabulary, encoders_of, model_folder
from torch import nn

import fastsal

pytestmark = pytest.mark.usefixtures("one_thread")

WIDTH = 32


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory) -> Path:
    return bert_checkpoint(tmp_path_factory.mktemp("model") / "checkpoint")


@pytest.fixture
def folder(checkpoint, tmp_path) -> Path:
    """A model of every kind of module that runs behind the kernels."""
    torch.manual_seed(0)
    tanh = Dense(WIDTH, 16, bias=False, activation_function=nn.Tanh())
    identity = Dense(16, 24, activation_function=nn.Identity())
    return model_folder(tmp_path / "model", checkpoint, Pooling(WIDTH, "cls"), tanh, identity, Normalize())


def assert_same_embeddings(fast, reference, native: bool = True) -> None:
    assert isinstance(fast._computation(None), str) != native, fast._computation(None)
    # Natively the batch does not matter; the reference's own does.
    embeddings = fast.encode(TEXTS) if native else fast.encode(TEXTS, batch_size=1)
    expected = reference.encode(TEXTS, batch_size=1)
    assert (embeddings.dtype, embeddings.shape) == (expected.dtype, expected.shape)
    np.testing.assert_allclose(embeddings, expected, rtol=0, atol=1e-5)


def test_every_module_runs_in_order(folder):
    """B43"""
    reference, fast = encoders_of(folder)
    assert_same_embeddings(fast, reference)
    assert fast.encode("cat").shape == (24,)
    assert [type(module) for module in fast] == [Transformer, Pooling, Dense, Dense, Normalize]


@pytest.mark.parametrize(
    "behind",
    [
        [Normalize(), Normalize()],
        [LayerNorm(WIDTH)],
        [Dropout(0.5)],
        [Dense(WIDTH, WIDTH, use_residual=True), LayerNorm(WIDTH), Dropout(0.5), Normalize()],
        [Normalize(), Dense(WIDTH, 5)],
        [Dense(WIDTH, 5, module_output_name="elsewhere")],
    ],
    ids=lambda modules: "-".join(type(module).__name__ for module in modules),
)
def test_modules_behind_the_pooling(checkpoint, tmp_path, behind):
    reference, fast = encoders_of(model_folder(tmp_path / "model", checkpoint, Pooling(WIDTH, "mean"), *behind))
    assert_same_embeddings(fast, reference)


def word_weights() -> WordWeights:
    return WordWeights(list(bert_vocabulary()), {word: 0.1 * index for index, word in enumerate(WORDS)})


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: [Dense(WIDTH, 8, module_input_name="token_embeddings"), Pooling(8, "mean")], "Dense"),
        (lambda: [word_weights(), Pooling(WIDTH, "mean")], "WordWeights"),
        (lambda: [Normalize("token_embeddings"), Pooling(WIDTH, "max")], "Normalize"),
        (lambda: [Pooling(WIDTH, "mean"), Normalize("token_embeddings")], "reads 'token_embeddings'"),
        (lambda: [Pooling(WIDTH, "mean"), AddLength()], "AddLength"),
        (lambda: [WidePooling(WIDTH, "mean")], "WidePooling"),
    ],
    ids=[
        "dense before pooling",
        "word weights",
        "token normalize",
        "normalize of tokens behind",
        "unknown",
        "subclass",
    ],
)
def test_orders_that_are_not_understood_run_in_the_reference(checkpoint, make, reason):
    torch.manual_seed(0)
    modules = make()
    reference = SentenceTransformer(modules=[Transformer(str(checkpoint)), *modules], device="cpu")
    fast = fastsal.accelerate(SentenceTransformer(modules=[Transformer(str(checkpoint)), *modules], device="cpu"))
    assert type(fast) is fastsal.SentenceEncoder
    assert reason in fast._computation(None)
    assert_same_embeddings(fast, reference, native=False)
    assert fast[0].model.fastsal_status().last_fallback is None  # the encoder inside runs on the kernels


class AddLength(Module):
    """Needs more than sentence embeddings."""

    def forward(self, features):
        features["sentence_embedding"] = features["sentence_embedding"] + features["attention_mask"].sum(
            1, keepdim=True
        )
        return features

    def save(self, output_path, *args, **kwargs):
        pass


class WidePooling(Pooling):
    def forward(self, features, **kwargs):
        features = super().forward(features, **kwargs)
        features["sentence_embedding"] = 2 * features["sentence_embedding"]
        return features


def test_weighted_layers(checkpoint):
    models = []
    for _ in range(2):
        transformer = Transformer(str(checkpoint), config_kwargs={"output_hidden_states": True})
        modules = [transformer, WeightedLayerPooling(WIDTH, num_hidden_layers=2, layer_start=1), Pooling(WIDTH, "mean")]
        models.append(SentenceTransformer(modules=modules, device="cpu"))
    reference, fast = models[0], fastsal.accelerate(models[1])
    assert_same_embeddings(fast, reference, native=False)


def test_routes(checkpoint):
    models = []
    for _ in range(2):
        torch.manual_seed(0)
        routes = {
            name: [Transformer(str(checkpoint)), Pooling(WIDTH, mode), Dense(WIDTH, 8)]
            for name, mode in (("query", "cls"), ("document", "mean"))
        }
        models.append(SentenceTransformer(modules=[Router(routes, default_route="document")], device="cpu"))
    reference, fast = models[0], fastsal.accelerate(models[1])
    assert "Router" in fast._computation(None)
    for encode in ("encode_query", "encode_document", "encode"):
        actual, expected = (getattr(model, encode)(TEXTS, batch_size=1) for model in (fast, reference))
        np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    "part",
    [
        lambda model: model,
        lambda model: model[0],
        lambda model: model[1],
        lambda model: model[2],
        lambda model: model[0].model.encoder.layer[1].output,
    ],
    ids=["model", "transformer", "pooling", "dense", "layer"],
)
def test_hooks_are_called(folder, part):
    _, fast = encoders_of(folder)
    expected = fast.encode(TEXTS)
    calls = []
    handle = part(fast).register_forward_hook(lambda *args: calls.append(args))
    np.testing.assert_allclose(fast.encode(TEXTS, batch_size=1), expected, rtol=0, atol=1e-5)
    assert calls
    handle.remove()
    calls.clear()
    np.testing.assert_array_equal(fast.encode(TEXTS), expected)
    assert not calls


def test_replaced_methods_are_called(folder):
    _, fast = encoders_of(folder)
    expected = fast.encode(TEXTS)
    pool = fast[1].forward
    fast[1].forward = lambda features: (
        pool(features) | {"sentence_embedding": torch.ones(len(features["input_ids"]), WIDTH)}
    )
    assert len({embedding.tobytes() for embedding in fast.encode(TEXTS)}) == 1
    del fast[1].forward
    preprocess = fast[0].preprocess
    fast[0].preprocess = lambda texts, **kwargs: preprocess(["cat"] * len(texts), **kwargs)
    np.testing.assert_allclose(fast.encode(TEXTS)[0], fast.encode("cat"), rtol=0, atol=1e-6)
    del fast[0].preprocess
    np.testing.assert_array_equal(fast.encode(TEXTS), expected)


def test_subclasses_with_a_forward_or_preprocess_of_their_own(folder):
    class Doubled(fastsal.SentenceEncoder):
        def forward(self, features, **kwargs):
            features = super().forward(features, **kwargs)
            features["sentence_embedding"] = 2 * features["sentence_embedding"]
            return features

    class Shouting(fastsal.SentenceEncoder):
        def preprocess(self, inputs, prompt=None, **kwargs):
            return super().preprocess([f"{text} cat" for text in inputs], prompt=prompt, **kwargs)

    _, fast = encoders_of(folder)
    expected, with_cat = fast.encode(TEXTS), fast.encode([f"{text} cat" for text in TEXTS])
    fast.__class__ = Doubled
    np.testing.assert_allclose(fast.encode(TEXTS), 2 * expected, rtol=0, atol=1e-5)
    fast.__class__ = Shouting
    np.testing.assert_allclose(fast.encode(TEXTS), with_cat, rtol=0, atol=1e-5)


def rewrite_modules(folder: Path, change) -> None:
    path = folder / "modules.json"
    modules = json.loads(path.read_text())
    change(modules)
    path.write_text(json.dumps(modules))


def test_a_missing_folder_of_a_module_without_files(folder):
    """B44"""
    shutil.rmtree(folder / "4_Normalize")
    assert_same_embeddings(*reversed(encoders_of(folder)))


def test_old_paths_and_types(folder):
    """B44: the first module in a folder of its own, types of older versions."""

    def change(modules):
        modules[0]["path"] = "0_Transformer"
        for module in modules:
            module["type"] = "sentence_transformers.models." + module["type"].rsplit(".", 1)[1]

    expected = SentenceTransformer(str(folder), device="cpu").encode(TEXTS, batch_size=1)
    (folder / "0_Transformer").mkdir()
    for path in [path for path in folder.iterdir() if path.is_file() and path.name != "modules.json"]:
        if path.name != "config_sentence_transformers.json":
            shutil.move(path, folder / "0_Transformer" / path.name)
    rewrite_modules(folder, change)
    reference, fast = encoders_of(folder)
    assert_same_embeddings(fast, reference)
    np.testing.assert_allclose(fast.encode(TEXTS), expected, rtol=0, atol=1e-5)


def test_without_modules_json_mean_pooling_is_assumed(checkpoint, caplog):
    """B45"""
    with caplog.at_level(logging.WARNING, "fastsal"):
        reference, fast = encoders_of(checkpoint)
    assert "no modules.json: mean pooling" in caplog.text
    assert fast[1].pooling_mode == "mean"
    assert_same_embeddings(fast, reference)


@pytest.mark.parametrize("make_checkpoint", [bert_checkpoint, albert_checkpoint], ids=["bert", "albert"])
def test_a_checkpoint_without_pooler(make_checkpoint, tmp_path):
    """B32: what the checkpoint lacks is random, so embeddings must not depend on it."""
    checkpoint = make_checkpoint(tmp_path / "checkpoint")
    weights = load_file(checkpoint / "model.safetensors")
    pooler = [name for name in weights if name.startswith("pooler")]
    assert pooler
    expected = fastsal.SentenceEncoder(str(checkpoint), device="cpu").encode(TEXTS)
    save_file(
        {name: w for name, w in weights.items() if name not in pooler},
        checkpoint / "model.safetensors",
        metadata={"format": "pt"},
    )
    for seed in range(2):
        torch.manual_seed(seed)
        reference, fast = encoders_of(checkpoint)
        assert_same_embeddings(fast, reference)
        np.testing.assert_array_equal(fast.encode(TEXTS), expected)


def test_albert_with_a_wordpiece_vocabulary(tmp_path):
    """B34: tokenizer_class wins over the model type; head size 26."""
    words = bert_checkpoint(tmp_path / "bert")
    checkpoint = albert_checkpoint(
        tmp_path / "albert",
        vocab_size=len(bert_vocabulary()),
        hidden_size=312,
        num_attention_heads=12,
        intermediate_size=400,
        embedding_size=128,
    )
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"):
        (checkpoint / name).unlink(missing_ok=True)
    (checkpoint / "vocab.txt").write_text("\n".join(bert_vocabulary()))
    (checkpoint / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "BertTokenizer"}))
    reference, fast = encoders_of(checkpoint)
    assert type(fast.tokenizer).__name__.startswith("BertTokenizer")
    assert fast[0].model.fastsal_status().backend == "cpu"
    tokens = SentenceTransformer(str(words), device="cpu").preprocess(["the cat"])["input_ids"]
    assert torch.equal(fast.preprocess(["the cat"])["input_ids"], tokens)
    assert "token_type_ids" in fast.preprocess(["the cat"])
    assert_same_embeddings(fast, reference)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def without_vocabulary(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()
    (folder / "vocab.txt").unlink(missing_ok=True)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda f: truncate(f / "model.safetensors"), "model.safetensors is not a whole safetensors file"),
        (lambda f: (f / "model.safetensors").write_bytes(b""), "model.safetensors is not a whole safetensors file"),
        (lambda f: (f / "model.safetensors").unlink(), "no file named model.safetensors"),
        (lambda f: truncate(f / "config.json"), r"config.json(' is not a valid|\b.*is not valid) JSON"),
        (lambda f: (f / "config.json").unlink(), "names a Transformer module, but .* holds no config.json"),
        (lambda f: truncate(f / "tokenizer.json"), "tokenizer.json is not valid JSON"),
        (lambda f: truncate(f / "tokenizer_config.json"), "tokenizer_config.json is not valid JSON"),
        (lambda f: truncate(f / "modules.json"), "modules.json is not valid JSON"),
        (lambda f: (f / "modules.json").write_bytes(b"\xff\xfe"), "modules.json is not valid JSON"),
        (lambda f: truncate(f / "1_Pooling" / "config.json"), r"1_Pooling/config.json is not valid JSON"),
        (lambda f: shutil.rmtree(f / "1_Pooling"), "Pooling module, but .*1_Pooling holds no configuration file"),
        (lambda f: shutil.rmtree(f / "2_Dense"), "Dense module, but .*2_Dense holds no configuration file"),
        (lambda f: truncate(f / "3_Dense" / "model.safetensors"), "3_Dense/model.safetensors is not a whole"),
        (lambda f: (f / "3_Dense" / "model.safetensors").unlink(), "3_Dense holds no weights"),
        (without_vocabulary, "knows 5 special tokens and no word: the vocabulary file is missing"),
    ],
)
def test_damaged_folders(folder, damage, message):
    damage(folder)
    with pytest.raises(OSError, match=message):
        fastsal.SentenceEncoder(str(folder), device="cpu")


def test_half_a_vocabulary(folder, caplog):
    (folder / "tokenizer.json").unlink()
    words = list(bert_vocabulary())
    (folder / "vocab.txt").write_text("\n".join(words[: len(words) // 2]))
    with caplog.at_level(logging.WARNING, "fastsal"):
        fastsal.SentenceEncoder(str(folder), device="cpu")
    assert f"knows {len(words) // 2} tokens, its embedding table {len(words)}" in caplog.text


def test_unknown_module_types_are_refused_by_name(folder):
    rewrite_modules(folder, lambda modules: modules[2].update(type="sentence_transformers.models.Nothing"))
    with pytest.raises(ImportError, match="Nothing"):
        fastsal.SentenceEncoder(str(folder), device="cpu")


def test_no_such_folder(tmp_path):
    with pytest.raises(OSError, match="nothing"):
        fastsal.SentenceEncoder(str(tmp_path / "nothing" / "here"), device="cpu")
    with pytest.raises(OSError, match=r"."):
        fastsal.SentenceEncoder("no-such-model-anywhere", device="cpu")
