"""Where fastsal's own model is, and what is wrong with a model's files: the file instead of a place in a parser."""

from __future__ import annotations

import json
from pathlib import Path

from safetensors import SafetensorError, safe_open
from transformers import PreTrainedTokenizerBase

#: Modules without files of their own, which older versions of sentence-transformers saved no folder for.
_WITHOUT_FILES = ("Normalize",)

#: Modules whose folder holds weights.
_WITH_WEIGHTS = ("CNN", "Dense", "LayerNorm", "LSTM")
_WEIGHT_FILES = ("model.safetensors", "pytorch_model.bin")


def default_model_folder() -> Path:
    """SALBERT-mini, which comes with fastsal; its README.md says what it can do."""
    return Path(__file__).parent / "models" / "salbert-mini"


def find_damage(folder: Path) -> str | None:
    """The first damaged or missing file of a sentence-transformers or Hugging Face model folder, if there is one."""
    for path in sorted(folder.rglob("*.json")):
        try:
            json.loads(path.read_text(encoding="utf-8"))
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            return f"{path} is not valid JSON ({error}): it is truncated or damaged"
    for path in sorted(folder.rglob("*.safetensors")):
        try:
            with safe_open(path, framework="pt"):
                pass
        except SafetensorError as error:
            return f"{path} is not a whole safetensors file ({error}): it is truncated or damaged"
    return _find_missing(folder)


def _find_missing(folder: Path) -> str | None:
    modules_file = folder / "modules.json"
    if not modules_file.is_file():
        return None if (folder / "config.json").is_file() else f"{folder / 'config.json'} is missing"
    for module in json.loads(modules_file.read_text(encoding="utf-8")):
        path, name = module.get("path", ""), module.get("type", "").rsplit(".", 1)[-1]
        missing = None
        if name == "Transformer" and not (folder / path / "config.json").is_file():
            missing = "config.json"
        elif not path or name in _WITHOUT_FILES:
            continue
        elif not any((folder / path).glob("*config.json")):
            missing = "configuration file"
        elif name in _WITH_WEIGHTS and not any((folder / path / file).is_file() for file in _WEIGHT_FILES):
            missing = f"weights ({' or '.join(_WEIGHT_FILES)})"
        if missing:
            return f"modules.json names a {name} module, but {folder / path} holds no {missing}"
    return None


def find_vocabulary_gap(tokenizer: PreTrainedTokenizerBase, vocab_size: int) -> tuple[str | None, str | None]:
    """An error and a warning about a tokenizer that knows too few tokens for a table of `vocab_size` embeddings.

    transformers builds an empty tokenizer where the vocabulary file is missing, and every word becomes unknown.
    """
    known = len(tokenizer)
    if known <= len(tokenizer.all_special_tokens):
        return f"its tokenizer knows {known} special tokens and no word: the vocabulary file is missing or empty", None
    if known < 0.9 * vocab_size:
        return None, f"its tokenizer knows {known} tokens, its embedding table {vocab_size}: is the vocabulary whole?"
    return None, None
