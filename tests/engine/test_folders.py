"""Folders that are damaged, contradict themselves, or hold what the engine does not compute: refused in words, before
anything is computed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import tiny
import torch
from safetensors.torch import load_file, save_file
from sentence_transformers.base.modules import Dense, Normalize
from sentence_transformers.sentence_transformer.modules import CNN, LayerNorm, Pooling
from transformers.activations import ACT2FN
from transformers.models.albert import AlbertConfig
from transformers.models.bert import BertConfig

import fastsal
from fastsal.engine.architectures.parts import _ACTIVATIONS
from fastsal.engine.errors import UnsupportedModelError


@pytest.fixture(scope="module", params=["bert", "albert"])
def original(request, tmp_path_factory) -> Path:
    """A folder with every kind of module that has files."""
    place = tmp_path_factory.mktemp("model")
    make = {"bert": tiny.bert_checkpoint, "albert": tiny.albert_checkpoint}[request.param]
    behind = [CNN(32, 6, [1, 3]), Pooling(12, "mean"), Dense(12, 8), LayerNorm(8), Normalize()]
    return tiny.model_folder(place / "model", make(place / "checkpoint"), *behind)


@pytest.fixture
def folder(original, tmp_path) -> Path:
    return Path(shutil.copytree(original, tmp_path / "copy"))


def change(path: Path, **entries: object) -> None:
    content = json.loads(path.read_text())
    content.update(entries)
    path.write_text(json.dumps({key: value for key, value in content.items() if value is not None}))


def change_tensor(path: Path, ending: str, new: torch.Tensor | None) -> str:
    """Replace (or with None drop) the first tensor whose name ends so; returns the name."""
    tensors = load_file(path)
    name = next(name for name in tensors if name.endswith(ending))
    del tensors[name]
    save_file(tensors if new is None else {**tensors, name: new}, path)
    return name


def refusal(folder: Path, error: type[Exception]) -> str:
    with pytest.raises(error) as caught:
        fastsal.TextEncoder(folder)
    assert type(caught.value) in (error, FileNotFoundError, UnsupportedModelError)
    return str(caught.value)


def test_it_loads(folder):
    assert fastsal.TextEncoder(folder).encode(["cat"]).shape == (1, 8)


@pytest.mark.parametrize(
    "missing",
    ["config.json", "model.safetensors", "1_CNN/cnn_config.json", "2_Pooling/config.json", "3_Dense/config.json"],
)
def test_a_missing_file_is_named(folder, missing):
    (folder / missing).unlink()
    assert refusal(folder, OSError) == f"{folder / missing} is missing"


@pytest.mark.parametrize("name", ["config.json", "modules.json", "2_Pooling/config.json", "sentence_bert_config.json"])
@pytest.mark.parametrize("content", [b"", b'{"hidden_size": 3', b"\xff\xfe{}", b'"text"', b"[" * 100_000])
def test_damaged_json_is_named(folder, name, content):
    (folder / name).write_bytes(content)
    assert refusal(folder, OSError).startswith(f"{folder / name} ")


@pytest.mark.parametrize("name", ["model.safetensors", "1_CNN/model.safetensors", "4_LayerNorm/model.safetensors"])
@pytest.mark.parametrize("size", [0, 7, 100, -1])
def test_truncated_weights_are_named(folder, name, size):
    path = folder / name
    path.write_bytes(path.read_bytes()[:size])
    assert f"{path} is not a whole safetensors file" in refusal(folder, OSError)


def test_a_foreign_file_in_the_place_of_the_weights(folder):
    (folder / "model.safetensors").write_bytes(b"\x80\x04\x95" + b"pickle" * 100)
    assert "is not a whole safetensors file" in refusal(folder, OSError)


@pytest.mark.parametrize(
    "ending", ["word_embeddings.weight", "query.weight", "LayerNorm.bias", "position_embeddings.weight"]
)
def test_missing_tensors_and_wrong_shapes_are_named(folder, ending):
    path = folder / "model.safetensors"
    name = change_tensor(path, ending, torch.zeros(3, 5))
    message = refusal(folder, ValueError)
    assert f"{path}: '{name}' must have shape (" in message
    assert "it has (3, 5)" in message or "it has [3, 5]" in message
    change_tensor(path, ending, None)
    assert f"the weights lack '{name}'" in refusal(folder, ValueError)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("hidden_size", 33, "hidden_size 33 must be a multiple of num_attention_heads 4"),
        ("hidden_size", 64, "must have shape"),
        ("vocab_size", 9, "must have shape (9, "),
        ("max_position_embeddings", 512, "must have shape (512, "),
        ("intermediate_size", -1, "intermediate_size must be a positive number, it is -1"),
        ("num_hidden_layers", "many", "num_hidden_layers must be a positive number, it is 'many'"),
        ("layer_norm_eps", "small", "layer_norm_eps must be a small positive number, it is 'small'"),
        ("num_attention_heads", True, "num_attention_heads must be a positive number, it is True"),
    ],
)
def test_a_configuration_that_contradicts_the_tensors(folder, key, value, message):
    change(folder / "config.json", **{key: value})
    assert message in refusal(folder, ValueError)


@pytest.mark.parametrize(
    ("path", "entries", "message"),
    [
        ("1_CNN/cnn_config.json", {"out_channels": 7}, "must have shape (7, 32, 1)"),
        ("1_CNN/cnn_config.json", {"stride_sizes": [1]}, "must be positive and as many of each"),
        ("2_Pooling/config.json", {"embedding_dimension": 13}, "embedding_dimension must be 12"),
        ("2_Pooling/config.json", {"pooling_mode": "median"}, "pooling_mode must be some of"),
        ("3_Dense/config.json", {"out_features": 9}, "must have shape (9, 12)"),
        ("sentence_bert_config.json", {"max_seq_length": -3}, "max_seq_length must be a positive number, it is -3"),
    ],
)
def test_a_module_that_contradicts_its_tensors(folder, path, entries, message):
    change(folder / path, **entries)
    text = refusal(folder, ValueError)
    assert message in text
    assert str(folder / Path(path).parent) in text


@pytest.mark.parametrize(
    ("path", "entries", "message"),
    [
        ("config.json", {"model_type": "roberta"}, "the architecture 'roberta'"),
        ("config.json", {"model_type": None}, "the architecture None"),
        ("config.json", {"is_decoder": True}, "is_decoder is True"),
        ("config.json", {"position_embedding_type": "relative_key"}, "position_embedding_type is 'relative_key'"),
        ("config.json", {"auto_map": {"AutoModel": "code.Model"}}, "auto_map is"),
        ("config.json", {"quantization_config": {"bits": 4}}, "quantization_config is"),
        ("config.json", {"hidden_act": "softplus"}, "the activation 'softplus'"),
        ("config.json", {"dtype": "float64"}, "the parameters are to be float64"),
        ("3_Dense/config.json", {"activation_function": "my.Activation"}, "the activation 'my.Activation'"),
        ("3_Dense/config.json", {"module_output_name": "other"}, "reads or writes other features"),
        ("sentence_bert_config.json", {"processing_kwargs": {"text": {"padding": False}}}, "processing_kwargs is"),
        ("sentence_bert_config.json", {"tokenizer_name_or_path": "other"}, "tokenizer_name_or_path is 'other'"),
        ("sentence_bert_config.json", {"transformer_task": "fill-mask"}, "transformer_task is 'fill-mask'"),
        ("config_sentence_transformers.json", {"model_type": "SparseEncoder"}, "is a SparseEncoder"),
    ],
)
def test_what_the_engine_does_not_compute(folder, path, entries, message):
    change(folder / path, **entries)
    text = refusal(folder, UnsupportedModelError)
    assert message in text
    assert text.endswith(": use fastsal.SentenceEncoder, which runs it with torch")


@pytest.mark.parametrize(
    ("module", "message"),
    [
        ({"type": "my_package.Pooling", "path": "2_Pooling"}, "has code of its own"),
        ({"type": "sentence_transformers.models.LSTM", "path": "2_Pooling"}, "LSTM stands where a Pooling"),
        ({"type": "sentence_transformers.models.Pooling", "path": "2_Pooling", "kwargs": ["x"]}, "keyword arguments"),
    ],
)
def test_modules_that_the_engine_does_not_know(folder, module, message):
    modules = json.loads((folder / "modules.json").read_text())
    modules[2] = {**modules[2], **module}
    (folder / "modules.json").write_text(json.dumps(modules))
    assert message in refusal(folder, UnsupportedModelError)


def test_paths_out_of_the_folder_are_refused(folder):
    modules = json.loads((folder / "modules.json").read_text())
    modules[2]["path"] = "../copy/2_Pooling"
    (folder / "modules.json").write_text(json.dumps(modules))
    assert "must name folders inside" in refusal(folder, OSError)
    index = {"weight_map": {"embeddings.word_embeddings.weight": "../copy/model.safetensors"}}
    (folder / "modules.json").unlink()
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert "must name files of its own folder" in refusal(folder, OSError)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": 5}))
    assert "must have a 'weight_map'" in refusal(folder, OSError)


def test_pickled_weights_are_not_read(folder):
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    assert "has its weights in pytorch_model.bin" in refusal(folder, UnsupportedModelError)


def test_weights_that_are_integers(folder):
    path = folder / "model.safetensors"
    name = change_tensor(path, "query.bias", torch.zeros(32, dtype=torch.int32))
    assert f"{path}: '{name}' must be stored in F32, F16, BF16, it is in I32" in refusal(folder, ValueError)


def test_a_folder_that_is_not_there(tmp_path):
    assert refusal(tmp_path / "none", OSError) == f"there is no folder {tmp_path / 'none'}"
    assert "is missing" in refusal(tmp_path, OSError)


def test_hub_ids_come_from_the_cache(original, tmp_path, monkeypatch):
    """Laid out as huggingface_hub lays it out; nothing is downloaded."""
    constants = pytest.importorskip("huggingface_hub.constants")
    for repository in ("models--owner--tiny", "models--sentence-transformers--tiny"):
        snapshot = tmp_path / repository / "snapshots" / "0123456789012345678901234567890123456789"
        shutil.copytree(original, snapshot)
        (tmp_path / repository / "refs").mkdir()
        (tmp_path / repository / "refs" / "main").write_text(snapshot.name)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.chdir(tmp_path)
    expected = fastsal.TextEncoder(original).encode("cat")
    for name in ("owner/tiny", "tiny"):
        assert np.array_equal(fastsal.TextEncoder(name).encode("cat"), expected)
    assert "'owner/other' is no folder, and the Hub does not give it" in refusal(Path("owner/other"), OSError)


def test_defaults_and_activations_are_those_of_transformers(tmp_path):
    """A configuration without an entry means the architecture's default."""
    from fastsal.engine.architectures import ARCHITECTURES
    from fastsal.engine.architectures.parts import Parts

    class Names:
        names = ()

        def __contains__(self, name):
            return False

        def array(self, name, shape):
            return np.zeros(1, np.float32)

    for model_type, config in (("bert", BertConfig()), ("albert", AlbertConfig())):
        spec, _ = ARCHITECTURES[model_type](Parts(tmp_path, {}, Names(), ""))
        assert spec.vocab_size == config.vocab_size
        assert spec.max_positions == config.max_position_embeddings
        assert spec.type_vocab_size == config.type_vocab_size
        assert spec.hidden_size == config.hidden_size
        assert spec.embedding_size == getattr(config, "embedding_size", config.hidden_size)
        assert spec.num_heads == config.num_attention_heads
        assert spec.intermediate_size == config.intermediate_size
        assert len(spec.layer_schedule) == config.num_hidden_layers
        assert len(set(spec.layer_schedule)) == getattr(config, "num_hidden_groups", config.num_hidden_layers)
        assert spec.activation == _ACTIVATIONS[config.hidden_act]
        assert spec.layer_norm_eps == config.layer_norm_eps
    assert set(_ACTIVATIONS) <= set(ACT2FN)
