"""JSON objects from a model's files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def read_json(path: Path, expected: Any = dict) -> Any:
    """The object (or with `expected` list, the array) in a JSON file.

    Raises:
        OSError: the file is missing, is no valid JSON, or holds something else; the message names it.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise FileNotFoundError(f"{path} is missing") from None
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise OSError(f"{path} is not valid JSON ({error}): it is truncated or damaged") from None
    if not isinstance(content, expected):
        raise OSError(f"{path} must hold a JSON {_NAMES[expected]}, it holds a {type(content).__name__}")
    return content


def read_json_if_there(path: Path) -> dict[str, Any]:
    """As `read_json`, and an empty object where there is no such file."""
    return read_json(path) if path.is_file() else {}


_NAMES = {dict: "object", list: "array"}
