"""fastsal: fast, exact sentence embeddings for BERT- and ALBERT-family models.

The public names are imported at their first use, so that `import fastsal` and the command line's help need no torch.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fastsal.backends import BackendError, backends
    from fastsal.coverage import NotCoveredError
    from fastsal.models import FastAlbertModel, FastBertModel, accelerate, restore
    from fastsal.paper_models import SALBERT, SBERT
    from fastsal.sentence_encoder import SentenceEncoder
    from fastsal.verify import verify

__all__ = [
    "SALBERT",
    "SBERT",
    "BackendError",
    "FastAlbertModel",
    "FastBertModel",
    "NotCoveredError",
    "SentenceEncoder",
    "accelerate",
    "backends",
    "restore",
    "verify",
]

_HOMES = {
    "SALBERT": "fastsal.paper_models",
    "SBERT": "fastsal.paper_models",
    "BackendError": "fastsal.backends",
    "FastAlbertModel": "fastsal.models",
    "FastBertModel": "fastsal.models",
    "NotCoveredError": "fastsal.coverage",
    "SentenceEncoder": "fastsal.sentence_encoder",
    "accelerate": "fastsal.models",
    "backends": "fastsal.backends",
    "restore": "fastsal.models",
    "verify": "fastsal.verify",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


class _Package(ModuleType):
    """Keeps the functions `backends` and `verify`: importing a submodule would bind its module under the same name."""

    def __setattr__(self, name: str, value: Any) -> None:
        if not (name in _HOMES and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
