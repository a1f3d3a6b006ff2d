"""fastsal: fast, exact sentence embeddings for BERT- and ALBERT-family models.

The public names are imported at their first use: `import fastsal`, `TextEncoder` and the command line's help need no
torch. Layers, each of which imports only from those below it (see CONTRIBUTING.md):

    cli, demo                  the command line
    measure                    verify, evaluation, benchmarks
    sentence_transformers      SentenceEncoder, SBERT, SALBERT
    modules                    drop-in Hugging Face modules
    backends                   who can compute an encoder here
    engine                     texts to vectors on numpy and the kernels, without torch
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fastsal.backends import BackendError, backends
    from fastsal.engine.text_encoder import TextEncoder
    from fastsal.measure.verify import verify
    from fastsal.modules.coverage import NotCoveredError
    from fastsal.modules.encoders import FastAlbertModel, FastBertModel
    from fastsal.sentence_transformers.acceleration import accelerate, prepare, restore
    from fastsal.sentence_transformers.paper_models import SALBERT, SBERT
    from fastsal.sentence_transformers.sentence_encoder import SentenceEncoder

__all__ = [
    "SALBERT",
    "SBERT",
    "BackendError",
    "FastAlbertModel",
    "FastBertModel",
    "NotCoveredError",
    "SentenceEncoder",
    "TextEncoder",
    "accelerate",
    "backends",
    "prepare",
    "restore",
    "verify",
]

_HOMES = {
    "SALBERT": "fastsal.sentence_transformers.paper_models",
    "SBERT": "fastsal.sentence_transformers.paper_models",
    "BackendError": "fastsal.backends",
    "FastAlbertModel": "fastsal.modules.encoders",
    "FastBertModel": "fastsal.modules.encoders",
    "NotCoveredError": "fastsal.modules.coverage",
    "SentenceEncoder": "fastsal.sentence_transformers.sentence_encoder",
    "TextEncoder": "fastsal.engine.text_encoder",
    "accelerate": "fastsal.sentence_transformers.acceleration",
    "backends": "fastsal.backends",
    "prepare": "fastsal.sentence_transformers.acceleration",
    "restore": "fastsal.sentence_transformers.acceleration",
    "verify": "fastsal.measure.verify",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = importlib.import_module(_HOMES[name])
    value = home if name == "backends" else getattr(home, name)  # a package that can be called
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
