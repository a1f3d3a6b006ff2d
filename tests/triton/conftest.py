"""The Triton kernels' tests; they need the package, which only Linux on x86-64 gets."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

collect_ignore_glob = [] if importlib.util.find_spec("triton") else ["test_*.py"]
sys.path.insert(0, str(Path(__file__).parent))

if importlib.util.find_spec("triton"):
    from triton.runtime import interpreter

    _patch_lang_tensor = interpreter._patch_lang_tensor

    def _patch_with_index(tensor: Any, scope: Any) -> None:
        """Triton 3.6's interpreter takes int() of arrays of one element, which NumPy 2.4 refuses."""
        _patch_lang_tensor(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: self.handle.data.item())

    interpreter._patch_lang_tensor = _patch_with_index
