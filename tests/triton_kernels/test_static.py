"""Every kernel through the compiler for each architecture, in processes of their own: here the interpreter runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fastsal.engine.pooling import POOLING_MODES

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "triton_static.py"

HEAD_SIZES = (8, 16, 32, 48, 64, 80, 96, 112, 128, 160, 192, 256)

KERNELS = {
    "embed", "embed_map", "qkv_attention", "attention_16", "attention_32", "attention_64", "linear_qkv",
    "linear_residual", "linear_up", "linear_down", "project_norm", "residual_norm", "bias_activation", "normalize",
    *(f"{kernel}_{mode}" for kernel in ("pool", "conv_pool") for mode in POOLING_MODES),
}  # fmt: skip


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """Rows of the report for the arguments, compiled once per session."""
    folder = tmp_path_factory.mktemp("triton")
    environment = {**os.environ, "TRITON_CACHE_DIR": str(folder / "cache")}

    def run(*arguments: str) -> list[dict]:
        file = folder / "report.json"
        command = [sys.executable, BENCHMARK, "--json", file, *arguments]
        result = subprocess.run(command, capture_output=True, text=True, env=environment)
        assert result.returncode == 0, result.stdout + result.stderr
        return json.loads(file.read_text())

    return run


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_every_kernel_compiles_at_the_models_shapes(report, arch):
    """The exit code says: no spills, shared memory within bounds, matrix instructions where it multiplies."""
    rows = report(
        "--arch", arch, "--model", "albert-base", "minilm", "--tokens", "32768",
        "--dtype", "float16", "bfloat16",
    )  # fmt: skip
    assert {row["kernel"] for row in rows} == KERNELS
    assert {row["dtype"] for row in rows} == {"float16", "bfloat16"}
    for row in rows:
        assert row["bytes"] > 0
        assert row["floor_microseconds"] > 0
        assert row["programs"] >= 1
        if row["operations"] and arch == "sm_90":
            fewer_rows = row["kernel"] in ("attention_16", "attention_32")  # than the 64 of a wgmma
            assert row["matrix_instructions"]["mma.sync" if fewer_rows else "wgmma.mma_async"] > 0


def test_no_size_of_heads_spills(report):
    """Also in float32, a user's default, whose tiles take twice the registers."""
    rows = report("--arch", "sm_90", "--model", "heads", "--tokens", "32768", "--dtype", "float32", "bfloat16")
    assert {row["model"] for row in rows if row["dtype"] == "float32"} == {f"heads-{size}" for size in HEAD_SIZES}
    assert all(row["spilled"] == 0 for row in rows)


def test_a_whole_model_in_float32(report):
    report("--arch", "sm_90", "--model", "albert-base", "--tokens", "32768", "--dtype", "float32")


def test_few_tokens_and_sizes_of_one(report):
    """Integers of 1 become constants, those that 16 does not divide lose their alignment."""
    report("--arch", "sm_90", "--model", "albert-base", "one-head-of-26", "--dtype", "bfloat16", "--tokens", "1", "16")


def test_the_roofline_of_a_layer(tmp_path):
    """Every launch has an estimate no smaller than its floor, and something that bounds it."""
    file = tmp_path / "roofline.json"
    command = [sys.executable, BENCHMARK.with_name("triton_roofline.py"), "--model", "minilm", "--json", file]
    environment = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path / "cache")}
    subprocess.run(command, check=True, env=environment, capture_output=True)
    (rows,) = json.loads(file.read_text()).values()
    assert [row["kernel"] for row in rows] == [
        "attention_32", "linear_qkv", "linear_residual", "linear_up", "linear_down", "residual_norm",
    ]  # fmt: skip
    for row in rows:
        assert 0 < row["floor"] <= row["estimate"] < 10 * row["floor"]
        assert row["bound"]


def test_a_kernel_that_spills_fails_the_report(report, tmp_path):
    program = (
        f"import sys; sys.path.insert(0, {str(BENCHMARK.parent)!r})\n"
        "import triton_static, dataclasses\n"
        "real = triton_static.compile_launch\n"
        "triton_static.compile_launch = lambda *a: dataclasses.replace(real(*a), spilled=8)\n"
        "rows = triton_static.compile_all('sm_90', 'albert-base', 'bfloat16', 16)\n"
        "assert all(row.problems == ['8 bytes of stack per thread'] for row in rows), rows\n"
    )
    environment = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path)}
    subprocess.run([sys.executable, "-c", program], check=True, env=environment)
