"""The tokenizer of a model folder, as transformers makes it from tokenizer.json and tokenizer_config.json.

transformers does not take tokenizer.json as it is: BertTokenizer and AlbertTokenizer keep its vocabulary and build the
rest from their own settings. So what they build is built here too (transformers 5; the tests compare the two).
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers, processors

from fastsal.engine.errors import UnsupportedModelError
from fastsal.engine.json_files import read_json, read_json_if_there

#: Named special tokens, and those that a class has where its files name none.
_NAMED = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_BERT_TOKENS = {
    "unk_token": "[UNK]",
    "sep_token": "[SEP]",
    "pad_token": "[PAD]",
    "cls_token": "[CLS]",
    "mask_token": "[MASK]",
}
_ALBERT_TOKENS = {
    **_BERT_TOKENS,
    "bos_token": "[CLS]",
    "eos_token": "[SEP]",
    "unk_token": "<unk>",
    "pad_token": "<pad>",
}

#: The class of a folder whose files name none.
_CLASS_OF_MODEL = {"bert": "BertTokenizer", "albert": "AlbertTokenizer"}

_LARGE = int(1e20)  # transformers' bound from which on a length means no limit


@dataclass(frozen=True)
class LoadedTokenizer:
    """A folder's tokenizer.

    Attributes:
        tokenizer: without padding and truncation.
        max_length: tokens of a text as its files say, or None.
        truncation_side: "right" or "left".
        passes_types: its token types reach the model.
        special_ids: of the special tokens that its files name.
    """

    tokenizer: Tokenizer
    max_length: int | None
    truncation_side: str
    passes_types: bool
    special_ids: frozenset[int]

    def truncated_to(self, max_length: int) -> Tokenizer:
        """A tokenizer of one's own that cuts texts to `max_length` tokens. The vocabulary is shared."""
        own = shared_copy(self.tokenizer)
        own.enable_truncation(max_length, strategy="longest_first", direction=self.truncation_side)
        return own


def shared_copy(tokenizer: Tokenizer) -> Tokenizer:
    """A Tokenizer with the parts of `tokenizer`, whose memory it shares, and truncation and padding of its own."""
    copy = Tokenizer(tokenizer.model)
    for part in ("normalizer", "pre_tokenizer", "post_processor"):
        if (value := getattr(tokenizer, part)) is not None:
            setattr(copy, part, value)
    copy.add_tokens([token for _, token in sorted(tokenizer.get_added_tokens_decoder().items())])
    copy.encode_special_tokens = tokenizer.encode_special_tokens
    return copy


def load_tokenizer(folder: Path, model_type: str, vocab_size: int, lowercase: bool) -> LoadedTokenizer:
    """Read the tokenizer of `folder`.

    Args:
        model_type: of config.json, for folders that name no class.
        vocab_size: rows of the model's word table.
        lowercase: sentence-transformers' ``do_lower_case``: texts are lowercased first.

    Raises:
        UnsupportedModelError: a tokenizer of another class, with code of its own, or without tokenizer.json.
        OSError: a file is damaged, or the vocabulary is empty.
        ValueError: the vocabulary is larger than the table.
    """
    path = folder / "tokenizer.json"
    config = read_json_if_there(folder / "tokenizer_config.json")
    class_name = config.get("tokenizer_class") or read_json_if_there(folder / "config.json").get("tokenizer_class")
    class_name = str(class_name or _CLASS_OF_MODEL[model_type]).removesuffix("Fast")
    if not path.is_file():
        if not (folder / "vocab.txt").is_file() and not (folder / "spiece.model").is_file():
            raise FileNotFoundError(f"{path} is missing")
        raise UnsupportedModelError(f"{folder} has no tokenizer.json")
    if config.get("auto_map"):
        raise UnsupportedModelError(f"{folder / 'tokenizer_config.json'} names a tokenizer with code of its own")
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises nothing more precise
        raise OSError(f"{path} is not a tokenizer's file ({error}): it is truncated or damaged") from None
    tokenizer.no_padding()
    tokenizer.no_truncation()

    if "added_tokens_decoder" not in config:  # then older files count
        config = {**config, **read_json_if_there(folder / "special_tokens_map.json")}
    names = {key: _content(config[key]) for key in _NAMED if config.get(key) is not None}
    if class_name == "BertTokenizer":
        names = {**_BERT_TOKENS, **names}
        _build_bert(path, tokenizer, config, names)
    elif class_name == "AlbertTokenizer":
        names = {**_ALBERT_TOKENS, **names}
        _build_albert(path, tokenizer, config)
    elif class_name not in ("TokenizersBackend", "PreTrainedTokenizer"):
        raise UnsupportedModelError(f"the tokenizer of {folder} is a {class_name}")
    elif config.get("add_bos_token") is not None or config.get("add_eos_token") is not None:
        raise UnsupportedModelError(f"the tokenizer of {folder} is told which tokens to add around a text")
    special_ids = _add_special_tokens(path, tokenizer, config, names)
    if lowercase and not _lowercases(tokenizer.normalizer):
        first = normalizers.Lowercase()
        known = tokenizer.normalizer
        tokenizer.normalizer = normalizers.Sequence([first] if known is None else [first, known])
    tokenizer.encode_special_tokens = bool(config.get("split_special_tokens", False))

    known_tokens = tokenizer.get_vocab_size()
    if known_tokens <= len(special_ids):
        raise OSError(f"{path} knows {known_tokens} special tokens and no word: the vocabulary is missing or empty")
    if known_tokens > vocab_size:
        raise ValueError(
            f"{path} has a vocabulary of {known_tokens} tokens, the embedding table only {vocab_size} rows"
        )
    inputs = config.get("model_input_names")
    passes_types = "token_type_ids" in inputs if inputs else class_name == "BertTokenizer"
    max_length = config.get("model_max_length")
    return LoadedTokenizer(
        tokenizer=tokenizer,
        max_length=int(max_length) if max_length is not None and max_length < _LARGE else None,
        truncation_side=config.get("truncation_side", "right"),
        passes_types=passes_types,
        special_ids=special_ids,
    )


def _build_bert(path: Path, tokenizer: Tokenizer, config: Mapping[str, Any], names: Mapping[str, str]) -> None:
    model: Any = tokenizer.model
    if not isinstance(model, models.WordPiece):
        raise UnsupportedModelError(f"{path}: the model of a BertTokenizer is a {type(model).__name__}")
    found = (model.unk_token, model.continuing_subword_prefix, model.max_input_chars_per_word)
    if found != (names["unk_token"], "##", 100):
        raise UnsupportedModelError(f"{path}: the WordPiece model has settings of its own, {found}")
    tokenizer.normalizer = normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=config.get("tokenize_chinese_chars", True),
        strip_accents=config.get("strip_accents"),
        lowercase=config.get("do_lower_case", True),
    )
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    first, last = names["cls_token"], names["sep_token"]
    ids = [(token, tokenizer.token_to_id(token)) for token in (first, last)]
    if any(index is None for _, index in ids):
        raise ValueError(f"{path} lacks {first!r} or {last!r}, which stand around every text")
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{first}:0 $A:0 {last}:0", pair=f"{first}:0 $A:0 {last}:0 $B:1 {last}:1", special_tokens=ids
    )


def _build_albert(path: Path, tokenizer: Tokenizer, config: Mapping[str, Any]) -> None:
    model = read_json(path).get("model", {})
    found = (model.get("type"), model.get("unk_id"), model.get("byte_fallback", False))
    if found != ("Unigram", 1, False):
        raise UnsupportedModelError(f"{path}: the model of an AlbertTokenizer has settings of its own, {found}")
    steps: list[Any] = [normalizers.Replace("``", '"'), normalizers.Replace("''", '"')]
    if not config.get("keep_accents", False):
        steps += [normalizers.NFKD(), normalizers.StripAccents()]
    if config.get("do_lower_case", True):
        steps.append(normalizers.Lowercase())
    if (table := _character_table(tokenizer.normalizer)) is not None:
        steps.append(normalizers.Precompiled(table))
    tokenizer.normalizer = normalizers.Sequence(steps)
    scheme = "always" if config.get("add_prefix_space", True) else "never"
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(replacement="▁", prepend_scheme=scheme)]
    )
    if tokenizer.post_processor is None:
        raise UnsupportedModelError(f"{path} does not say which tokens stand around a text")


def _character_table(normalizer: Any) -> bytes | None:
    """SentencePiece's table of replaced characters, where a normalizer has one."""
    tables = (part["precompiled_charsmap"] for part in _parts(normalizer) if part.get("type") == "Precompiled")
    return next(map(base64.b64decode, tables), None)


def _add_special_tokens(
    path: Path, tokenizer: Tokenizer, config: Mapping[str, Any], names: Mapping[str, str]
) -> frozenset[int]:
    """Make the named tokens special where the file has not, and return their ids."""
    in_file = tokenizer.get_added_tokens_decoder()
    for index, token in (config.get("added_tokens_decoder") or {}).items():
        known = in_file.get(int(index))
        if known is None or any(getattr(known, key, value) != value for key, value in token.items()):
            raise UnsupportedModelError(f"{path} and tokenizer_config.json disagree about the token {token!r}")
    extra = config.get("additional_special_tokens") or config.get("extra_special_tokens") or ()
    if not isinstance(extra, (list, tuple)):
        raise UnsupportedModelError(f"the tokenizer of {path.parent} has special tokens of its own kinds")
    special = list(dict.fromkeys([*names.values(), *map(_content, extra)]))
    added = {token.content for token in in_file.values()}
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in special if t not in added])
    return frozenset(index for token in special if (index := tokenizer.token_to_id(token)) is not None)


def _content(token: Any) -> str:
    return str(token["content"] if isinstance(token, Mapping) else token)


def _lowercases(normalizer: Any) -> bool:
    return any(part.get("type") == "Lowercase" for part in _parts(normalizer))


def _parts(normalizer: Any) -> list[dict[str, Any]]:
    """The steps of a normalizer, as tokenizer.json has them."""
    state = {} if normalizer is None else json.loads(normalizer.__getstate__())
    return state.get("normalizers", [state])
