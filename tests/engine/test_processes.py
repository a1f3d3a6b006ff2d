"""TextEncoder in processes of its own: what they import, forks, threads that outlive the main one, exits."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.quiet

HEAVY = ("torch", "transformers", "sentence_transformers", "sklearn", "scipy", "pandas")


def run(program: str, **environment: str) -> str:
    """The output of a Python program."""
    finished = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    return finished.stdout


def test_an_encode_imports_nothing_heavy():
    output = run(
        f"""
import sys
import fastsal
model = fastsal.TextEncoder()
print(model.encode(["cat", "dog"]).shape, model.encode_tokens([[2, 3]]).shape, model.info()["architecture"])
print(sorted(set({HEAVY!r}) & set(sys.modules)))
"""
    )
    assert output == "(2, 384) (1, 384) albert\n[]\n"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.parametrize("parallelism", ["", "true", "false"])
def test_forked_children(parallelism):
    """They inherit an encoder that has worked with threads, of ours and of the tokenizers library."""
    output = run(
        """
import os
import numpy as np
import fastsal
model = fastsal.TextEncoder(threads=2)
texts = [f"the {i}th of many sentences" for i in range(700)]
expected = model.encode(texts)
for number in (5, 700, 1):
    child = os.fork()
    if child == 0:
        os._exit(0 if np.array_equal(model.encode(texts[:number]), expected[:number]) else 1)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
""",
        TOKENIZERS_PARALLELISM=parallelism,
    )
    assert output == "0\n0\n0\n"


PROGRAM = """
import atexit, sys, threading, time
import numpy as np
import fastsal
model = fastsal.TextEncoder(threads=2)
texts = [f"the {i}th of many sentences" for i in range(700)]  # more than one window
expected = model.encode(texts)

def work():
    print(np.array_equal(model.encode(texts), expected), flush=True)
"""


def test_encode_in_an_exit_handler():
    assert run(PROGRAM + "atexit.register(work)") == "True\n"


def test_encode_when_the_main_thread_has_ended():
    program = """
def later():
    threading.main_thread().join()
    work()
threading.Thread(target=later).start()
"""
    assert run(PROGRAM + program) == "True\n"


def test_encode_where_no_thread_starts_any_more():
    """As Python 3.12 and later refuse it while they shut down."""
    program = """
def refuse(self):
    raise RuntimeError("can't create new thread at interpreter shutdown")
threading.Thread.start = refuse
work()
"""
    assert run(PROGRAM + program) == "True\n"
