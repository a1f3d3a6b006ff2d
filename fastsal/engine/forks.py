"""Whether this process was forked from one that had imported fastsal.

Only the thread that forks exists in the child. Libraries that share work out to threads of theirs (torch's OpenMP, the
tokenizers library) wait there for ever for threads that they think they have.
"""

from __future__ import annotations

import os

_forked = False


def is_forked() -> bool:
    return _forked


def _note_fork() -> None:
    global _forked
    _forked = True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_note_fork)
