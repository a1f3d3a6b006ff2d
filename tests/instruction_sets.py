"""The instruction sets of this build that run on this processor, the models of those that it lacks among them."""

from __future__ import annotations

from fastsal import _cpu

_SETS = [each for each in _cpu.instruction_sets() if each.runs_here]

#: Fastest first; those that are chosen by themselves, then the models.
INSTRUCTION_SETS = [each.name for each in _SETS]
CHOSEN_INSTRUCTION_SETS = [each.name for each in _SETS if not each.model]
