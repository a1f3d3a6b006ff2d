"""The wheel: built as users build it, and run beside nothing but numpy, tokenizers and safetensors."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest

import fastsal

ROOT = Path(__file__).parents[1]

#: All that `TextEncoder` needs.
COMPANIONS = ("numpy", "tokenizers", "safetensors")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "-qq", "--no-deps", "-w", str(folder)]
    if os.environ.get("CI"):  # as the Makefile has it: what is compiled already serves again
        command.append("--config-settings=cmake.define.FASTSAL_WERROR=ON")
    command.append(str(ROOT))
    subprocess.run(command, check=True, capture_output=True, text=True)
    (path,) = folder.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def site(wheel, tmp_path_factory) -> Path:
    """A folder of packages with the wheel and its companions: as after `pip install --no-deps` of these four."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "pip", "install", "-qq", "--no-deps", "--no-index", "--target", str(folder)]
    subprocess.run([*command, str(wheel)], check=True, capture_output=True, text=True)
    for name in COMPANIONS:
        package = Path(importlib.util.find_spec(name).origin).parent
        (folder / name).symlink_to(package)
        if (libraries := package.with_name(f"{name}.libs")).exists():
            (folder / libraries.name).symlink_to(libraries)
    return folder


def run(site: Path, program: str) -> str:
    """Output of a program that sees these packages and no others."""
    command = [sys.executable, "-S", "-c", program]
    environment = {**os.environ, "PYTHONPATH": str(site)}
    finished = subprocess.run(command, env=environment, cwd=site, capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr
    return finished.stdout


def test_it_encodes_without_torch(site):
    program = """
import importlib.util
assert importlib.util.find_spec("torch") is None
import fastsal
assert fastsal.__file__.startswith(__import__("os").getcwd())
model = fastsal.TextEncoder()
print(*model.encode("The bank opens at nine.").tolist())
"""
    vector = np.array(run(site, program).split(), np.float64).astype(np.float32)
    assert np.array_equal(vector, fastsal.TextEncoder().encode("The bank opens at nine."))


def test_hub_ids_need_one_more_package_and_say_so(site):
    program = """
import fastsal
try:
    fastsal.TextEncoder("owner/model")
except OSError as error:
    print(error)
"""
    assert "needs the package huggingface_hub" in run(site, program)


def test_what_is_in_it(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    assert not [name for name in names if name.endswith((".cpp", ".h", ".pyc"))]
    assert "fastsal/models/salbert-mini/model.safetensors" in names
    assert [name for name in names if name.startswith("fastsal/_cpu.") and name.endswith(".so")]
    assert any(name.startswith("fastsal/kernels/triton/configs/") for name in names)
