"""transformers' registry of what a model class can record (hidden states, attentions)."""

from __future__ import annotations

import importlib
from typing import Any


def register_recorders(model_class: Any) -> None:
    """Make ``output_hidden_states`` and ``output_attentions`` work in the reference forward of `model_class`.

    transformers looks up what it can record by the name of the instance's class, in a registry that it fills when a
    model is constructed. A model whose class was changed, or that was unpickled, would silently record nothing.
    """
    for module_name in ("transformers.utils.output_capturing", "transformers.utils.generic"):  # newer, older
        try:
            registry = importlib.import_module(module_name)._CAN_RECORD_REGISTRY
        except (ImportError, AttributeError):
            continue
        # the newer registry's own __setitem__ wants an instance
        dict.setdefault(registry, str(model_class), model_class._can_record_outputs)
        return
