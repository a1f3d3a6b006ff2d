"""Programs in processes of their own, for tests of forks, signals and memory."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest


def run_python(code, timeout=60):
    """Lines printed by `code` in a process of its own; a hang is a failure, and leaves no process behind."""
    tests = Path(__file__).parent
    paths = os.pathsep.join([str(tests), str(tests.parent), os.environ.get("PYTHONPATH", "")])
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": paths},
        start_new_session=True,
    )
    try:
        output, errors = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)  # forked children too
        process.communicate()
        pytest.fail(f"no end after {timeout} s")
    assert process.returncode == 0, errors
    return output.splitlines()
