"""Whether a loaded encoder's weights came from its files: what it does not find transformers fills at random."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import torch
from safetensors import safe_open
from transformers import PreTrainedModel
from transformers.utils import cached_file

from fastsal.engine.json_files import read_json

_FILES = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json")


def find_missing_weights(encoder: PreTrainedModel) -> str | None:
    """What of `encoder` stands at its random start because the files that it was loaded from do not have it, in words;
    None where all is there, or the files are not known.

    A pooler may be missing: sentence embeddings do without, and most checkpoints have none.
    """
    found = _names_in_files(encoder.name_or_path)
    if found is None:
        return None
    prefix = f"{encoder.base_model_prefix}."
    known = {_today(name).removeprefix(prefix) for name in found}
    own = [name for name, _ in encoder.named_parameters()]
    wanted = [name for name in own if not name.startswith("pooler")]
    missing = [name for name in wanted if name not in known]
    if not missing:
        return None
    unknown = sorted(known.difference(own))
    return (
        f"{len(missing)} of its {len(wanted)} weights are not in the files and would be random ({_some(missing)}); "
        f"unknown in the files: {_some(unknown)}"
    )


def _names_in_files(name_or_path: str | None) -> list[str] | None:
    if not name_or_path:
        return None
    for file in _FILES:
        path = _local_path(name_or_path, file)
        if path is None:
            continue
        if path.name.endswith(".index.json"):
            return list(read_json(path).get("weight_map", ()))
        if path.suffix == ".safetensors":
            with safe_open(path, framework="np") as content:
                return list(content.keys())
        return list(torch.load(path, map_location="meta", weights_only=True))
    return None


def _local_path(name_or_path: str, file: str) -> Path | None:
    """Where the file is, in a folder or in the Hub's cache; nothing is downloaded."""
    try:
        path = cached_file(
            name_or_path,
            file,
            local_files_only=True,
            _raise_exceptions_for_missing_entries=False,
            _raise_exceptions_for_connection_errors=False,
        )
    except OSError:
        return None
    return None if path is None else Path(path)


def _today(name: str) -> str:
    """A parameter's name as transformers renames it from checkpoints converted from TensorFlow."""
    return name.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")


def _some(names: Iterable[str]) -> str:
    names = list(names)
    return ", ".join(map(repr, names[:4])) + (", ..." if len(names) > 4 else "") if names else "none"
