"""What `encode` takes: texts in order, checked; and the warning about what it returns."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from numbers import Number
from typing import Any

import numpy as np


def as_ordered(inputs: Any) -> Any:
    """`inputs` with a pandas Series as a list.

    Raises:
        TypeError: it is None, a number or bytes.
        ValueError: it has no order or no length (set, generator).
    """
    if isinstance(inputs, (str, list)):
        return inputs
    pandas = sys.modules.get("pandas")
    if pandas is not None and isinstance(inputs, (pandas.Series, pandas.Index)):
        return inputs.tolist()
    if inputs is None or isinstance(inputs, (Number, bytes)):
        raise TypeError(f"inputs must be a text or a list of texts, got {type(inputs).__name__}: {inputs!r}")
    if isinstance(inputs, (set, frozenset, Iterator)):
        raise ValueError(
            f"inputs must be a text or a list of texts, got a {type(inputs).__name__}: pass list(...) of it"
        )
    return inputs


def as_list(inputs: Any) -> list:
    if isinstance(inputs, list):
        return inputs
    return inputs.tolist() if isinstance(inputs, np.ndarray) else list(inputs)


def check_rows(rows: Sequence[Any], is_singular: bool) -> bool:
    """Whether all rows are texts, and not none; anything else may be a pair or a dict.

    Raises:
        TypeError: a row is None, a number or bytes.
    """
    only_texts = bool(rows)
    for index, row in enumerate(rows):
        if not isinstance(row, str):
            only_texts = False
            if row is None or isinstance(row, (Number, bytes)) or type(row).__name__ in ("NAType", "NaTType"):
                name = "inputs" if is_singular else f"inputs[{index}]"
                raise TypeError(f"{name} must be a text (str), got {type(row).__name__}: {row!r}")
    return only_texts


@contextmanager
def surrogates_named(rows: Sequence[Any], is_singular: bool, prompt: str | None = None) -> Iterator[None]:
    """Let the error of a tokenizer name the first text with a lone surrogate, also inside a pair or a dict; to look for
    one before costs more."""
    try:
        yield
    except (TypeError, UnicodeEncodeError) as error:
        named = (("inputs" if is_singular else f"inputs[{index}]", row) for index, row in enumerate(rows))
        for name, row in chain([("prompt", prompt)], named):
            check_surrogates(name, row, error)
        raise


def check_surrogates(name: str, row: Any, cause: Exception | None = None) -> None:
    """Raise a TypeError that names the text in `row`, a text, a pair or a dict, that holds half of a surrogate pair."""
    if isinstance(row, Mapping):
        for key, value in row.items():
            check_surrogates(f"{name}[{key!r}]", value, cause)
    elif isinstance(row, (list, tuple)):
        for index, value in enumerate(row):
            check_surrogates(f"{name}[{index}]", value, cause)
    elif isinstance(row, str):
        try:
            row.encode("utf-8")
        except UnicodeEncodeError:
            raise TypeError(f"{name} must be a text, got one with half of a surrogate pair: {row!r}") from cause


def warn_if_not_finite(num_bad: int, num_rows: int, stacklevel: int) -> None:
    """Warn of rows with NaN or infinity; `stacklevel` as for `warnings.warn`, counted from the caller."""
    if num_bad:
        message = f"{num_bad} of {num_rows} embeddings contain NaN or infinity"
        warnings.warn(message, RuntimeWarning, stacklevel=stacklevel + 1)


def count_not_finite(rows: np.ndarray) -> int:
    """How many of (N, D) rows hold NaN or infinity. In pieces: the intermediate results are as large as the rows."""
    pieces = (np.isfinite(rows[start : start + 4096]) for start in range(0, len(rows), 4096))
    return sum(0 if piece.all() else int((~piece).any(axis=-1).sum()) for piece in pieces)


def resolve_prompt(
    prompt: str | None, prompt_name: str | None, prompts: Mapping[str, str], default_name: str | None
) -> str | None:
    """The text to put in front: `prompt`, or that of the name, or the default one's, or None.

    Raises:
        ValueError: `prompt_name` is not in `prompts`.
    """
    if prompt is not None:
        return prompt
    if prompt_name is not None and prompt_name not in prompts:
        raise ValueError(f"prompt_name must be one of the model's {list(prompts)}, got {prompt_name!r}")
    name = default_name if prompt_name is None else prompt_name
    return None if name is None else prompts.get(name)
