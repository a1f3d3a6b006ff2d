"""The instruction sets of this build that run on this processor."""

from __future__ import annotations

from fastsal import _cpu

INSTRUCTION_SETS = [name for name, runs_here in _cpu.instruction_sets() if runs_here]
