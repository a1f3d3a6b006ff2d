"""YAML to dataclasses, strictly: a key that is unknown, missing or of the wrong type is named with its place."""

from __future__ import annotations

import types
import typing
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar

import yaml

T = TypeVar("T")


class SettingsError(ValueError):
    """Settings that cannot be used; the message names the file and the key."""


def read_settings(path: str | Path, cls: type[T]) -> T:
    """The dataclass `cls` from a YAML file.

    Raises:
        SettingsError: the file is no YAML mapping, or a key is unknown, missing or has a value of another type.
        OSError: the file cannot be read.
    """
    try:
        content = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise SettingsError(f"{path}: not valid YAML: {error}") from error
    return from_mapping(cls, content, str(path))


def from_mapping(cls: type[T], content: Any, place: str) -> T:
    """The dataclass `cls`, and the dataclasses in it, from what YAML gives; `place` begins the messages."""
    if not isinstance(content, Mapping):
        raise SettingsError(f"{place}: expected keys with values, got {content!r}")
    known = {field.name: field for field in fields(cls)}
    for key in content:
        if key not in known:
            raise SettingsError(f"{place}: unknown key {key!r}; there are {', '.join(known)}")
    hints = typing.get_type_hints(cls)
    values = {}
    for name, field in known.items():
        if name in content:
            values[name] = _convert(hints[name], content[name], f"{place}: {name}")
        elif field.default is MISSING and field.default_factory is MISSING:
            raise SettingsError(f"{place}: the key {name!r} is missing")
    try:
        return cls(**values)
    except ValueError as error:
        raise SettingsError(f"{place}: {error}") from None


def _convert(kind: Any, value: Any, place: str) -> Any:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return value
    if origin in (typing.Union, types.UnionType):
        if value is None and type(None) in arguments:
            return None
        (kind,) = (argument for argument in arguments if argument is not type(None))
        return _convert(kind, value, place)
    if is_dataclass(kind):
        return from_mapping(kind, value, place)
    if origin is tuple:
        if not isinstance(value, list):
            raise SettingsError(f"{place}: expected a list, got {value!r}")
        return tuple(_convert(arguments[0], item, f"{place}[{index}]") for index, item in enumerate(value))
    if origin is dict:
        if not isinstance(value, Mapping):
            raise SettingsError(f"{place}: expected keys with values, got {value!r}")
        return {str(key): _convert(arguments[1], item, f"{place}: {key}") for key, item in value.items()}
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        hint = " (YAML reads 1e-5 as text, 1.0e-5 as a number)" if kind is float and isinstance(value, str) else ""
        raise SettingsError(f"{place}: expected {kind.__name__}, got {value!r}{hint}")
    return value
