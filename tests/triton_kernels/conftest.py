"""The Triton kernels' tests; they need the package, which only Linux on x86-64 gets."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

if importlib.util.find_spec("triton"):
    collect_ignore_glob: list[str] = []

    import interpreter_shim

    interpreter_shim.install()
else:
    collect_ignore_glob = ["test_*.py"]
