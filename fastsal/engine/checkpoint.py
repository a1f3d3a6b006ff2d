"""Tensors from safetensors files, memory-mapped. Nothing in them is executed or unpickled."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open

from fastsal.engine.errors import UnsupportedModelError
from fastsal.engine.json_files import read_json

#: Names in a file's header -> how the numbers are stored. bfloat16, which numpy lacks, is the upper half of a float32.
_STORAGE: dict[str, np.dtype] = {"F32": np.dtype("<f4"), "F16": np.dtype("<f2"), "BF16": np.dtype("<u2")}

#: The same names as those of dtypes.
DTYPES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}


class Checkpoint:
    """The float tensors of a folder: of model.safetensors, or of the shards that its index names.

    Args:
        folder: holds the files.
        dtype: "float32", "float16" or "bfloat16", which all numbers are rounded to where they are stored in more bits;
            None for the dtype of the first float tensor.

    Raises:
        UnsupportedModelError: the folder has weights in another format only.
        OSError: files are missing, truncated or no safetensors files.
    """

    def __init__(self, folder: Path, dtype: str | None = None) -> None:
        self.folder = folder
        self._tensors: dict[str, tuple[Path, Mapping[str, Any], np.memmap]] = {}
        for path in _files(folder):
            self._open(path)
        floats = (DTYPES[entry["dtype"]] for _, entry, _ in self._tensors.values() if entry["dtype"] in DTYPES)
        self.dtype = dtype or next(floats, "float32")

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    @property
    def names(self) -> list[str]:
        return list(self._tensors)

    def array(self, name: str, shape: tuple[int | None, ...]) -> np.ndarray:
        """A tensor as float32, in C order: the mapped file itself where it is stored so.

        Args:
            shape: as it must be; None for any number.

        Raises:
            ValueError: there is no such tensor, or its shape or dtype is another.
        """
        if name not in self._tensors:
            raise ValueError(f"{self.folder}: the weights lack {name!r}; they have {_some(self.names)}")
        path, entry, content = self._tensors[name]
        found = tuple(entry["shape"])
        if len(found) != len(shape) or any(want not in (None, have) for want, have in zip(shape, found, strict=True)):
            wanted = "(" + ", ".join("any" if size is None else str(size) for size in shape) + ")"
            raise ValueError(f"{path}: {name!r} must have shape {wanted}, as the configuration says, it has {found}")
        stored = entry["dtype"]
        if stored not in _STORAGE:
            raise ValueError(f"{path}: {name!r} must be stored in {', '.join(_STORAGE)}, it is in {stored}")
        start, stop = entry["data_offsets"]
        values = content[start:stop].view(_STORAGE[stored]).reshape(found)
        floats = from_bfloat16(values) if stored == "BF16" else values.astype(np.float32, copy=False)
        return floats if DTYPES[stored] == self.dtype else round_to(floats, self.dtype)

    def _open(self, path: Path) -> None:
        try:
            with safe_open(path, framework="np"):  # checks that the file is whole and its offsets are in it
                pass
        except FileNotFoundError:
            raise FileNotFoundError(f"{path} is missing") from None
        except SafetensorError as error:
            raise OSError(f"{path} is not a whole safetensors file ({error}): it is truncated or damaged") from None
        with path.open("rb") as file:
            header_size = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(header_size))
        header.pop("__metadata__", None)
        if not header:
            return
        content = np.memmap(path, np.uint8, mode="r", offset=8 + header_size)
        for name, entry in header.items():
            self._tensors[name] = (path, entry, content)


def from_bfloat16(bits: np.ndarray) -> np.ndarray:
    """bfloat16 numbers, given as uint16, as float32."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def round_to(values: np.ndarray, dtype: str) -> np.ndarray:
    """float32 numbers rounded, to the nearest and ties to even, to what "float16" or "bfloat16" can hold; still
    float32. With "float32" as they are."""
    if dtype == "float16":
        with np.errstate(over="ignore"):  # to infinity, as in torch
            return values.astype(np.float16).astype(np.float32)
    if dtype == "bfloat16":
        bits = np.ascontiguousarray(values).view(np.uint32)
        rounded = bits + (0x7FFF + ((bits >> 16) & 1))
        rounded = np.where(np.isnan(values), bits | 0x400000, rounded)  # a NaN must not become an infinity
        return (rounded & np.uint32(0xFFFF0000)).view(np.float32)
    return values


def _files(folder: Path) -> list[Path]:
    whole, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
    if whole.is_file():
        return [whole]
    if index.is_file():
        names = read_json(index).get("weight_map")
        if not isinstance(names, dict) or not all(isinstance(name, str) for name in names.values()):
            raise OSError(f"{index} must have a 'weight_map' from tensors to files")
        if outside := [name for name in names.values() if Path(name).name != name]:
            raise OSError(f"{index} must name files of its own folder, it names {outside[0]!r}")
        return [folder / name for name in dict.fromkeys(names.values())]
    others = sorted(path.name for suffix in ("*.bin", "*.h5", "*.msgpack", "*.pt") for path in folder.glob(suffix))
    if others:
        raise UnsupportedModelError(f"{folder} has its weights in {others[0]}, not in a safetensors file")
    raise FileNotFoundError(f"{whole} is missing")


def _some(names: list[str]) -> str:
    shown = [repr(name) for name in names[:5]] + ["..."] * (len(names) > 5)
    return ", ".join(shown) or "none"
