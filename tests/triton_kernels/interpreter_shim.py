"""Makes Triton 3.6's interpreter work with NumPy 2.4, which refuses int() of an array of one element."""

from __future__ import annotations

from typing import Any

from triton.runtime import interpreter


def install() -> None:
    """Patch the interpreter once, before a kernel runs."""
    original = interpreter._patch_lang_tensor

    def patch_with_index(tensor: Any, scope: Any) -> None:
        original(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: self.handle.data.item())

    interpreter._patch_lang_tensor = patch_with_index
