"""benchmarks/gpu_check.sh without a GPU: a rehearsal of every row, what a failure costs, what is made of results."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch
from gpu_check import Check, test_outcome
from gpu_configuration import dumps, measured_configuration
from gpu_encoder import SUBJECTS, Load, operations
from gpu_report import markdown
from gpu_rows import LOST, Row, RowFile, run
from gpu_timing import Clock

from fastsal.kernels.triton.tuning import load, read

ROOT = Path(__file__).parents[2]


test_outcome.__test__ = False  # a function of gpu_check, no test


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU: gpu_check.sh itself can run")
def test_a_rehearsal_runs_every_row_and_writes_a_whole_configuration(tmp_path):
    environment = {**os.environ, "PYTHON": sys.executable, "TRITON_INTERPRET": "0"}
    command = ["bash", ROOT / "benchmarks" / "gpu_check.sh", tmp_path, "--rehearse"]
    result = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert result.returncode == 0, result.stdout + result.stderr + (tmp_path / "rows.log").read_text()
    assert "nothing was launched or measured" in result.stdout
    assert "TFLOP" not in result.stdout
    rows = RowFile(tmp_path).ended()
    assert {line["part"] for line in rows.values()} == {"smoke", "sweep", "encoder", "verify", "profile", "compile"}
    assert all(line["state"] == "done" for line in rows.values())
    tuning = read(tmp_path / "h200.json")
    for count in (1, 100, 10_000):
        for width in (384, 768, 2304, 3072):
            assert tuning.kernels["linear"][0]["microseconds"] > 0
            assert tuning.config("linear", torch.float16, count, width)["BLOCK_M"] >= 16
    assert tuning.config("linear", torch.float32, 10**5, 768) == load("h200").config(
        "linear", torch.float32, 10**5, 768
    )


def test_compiling_ahead_fills_tritons_cache(tmp_path):
    """By the launches' own keys: a second process finds all of it."""
    environment = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path / "cache"), "TRITON_INTERPRET": "0"}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT / "tests"), str(ROOT / "tests" / "triton_kernels")])
    command = [sys.executable, ROOT / "benchmarks" / "gpu_rows.py", tmp_path, "--parts", "smoke", "--compile", "7/100"]
    kernels = []
    for _ in range(2):
        subprocess.run(command, check=True, env=environment)
        kernels.append({path: path.stat().st_mtime_ns for path in (tmp_path / "cache").rglob("*.cubin")})
    assert kernels[0]
    assert kernels[0] == kernels[1]


def row(name: str, measure) -> Row:
    return Row("smoke", name, lambda clock: measure())


def test_a_row_that_fails_costs_itself_only(tmp_path):
    file = RowFile(tmp_path)
    rows = [row("a", lambda: {"seconds": 1.0}), row("b", lambda: {}["missing"]), row("c", lambda: {"seconds": 2.0})]
    assert run(iter(rows), file, Clock(rehearses=True)) == 0
    ended = file.ended()
    assert [ended[name]["state"] for name in "abc"] == ["done", "failed", "done"]
    assert "KeyError: 'missing'" in ended["b"]["error"]
    assert ended["c"]["result"] == {"seconds": 2.0}
    assert run(iter(rows), file, Clock(rehearses=True)) == 0
    assert len(file.lines()) == 6  # what has ended is not run again


def test_a_row_after_which_the_gpu_is_lost_ends_the_process(tmp_path, monkeypatch):
    def lost():
        raise RuntimeError("an illegal memory access was encountered")

    monkeypatch.setattr(torch.cuda, "synchronize", lost)
    file = RowFile(tmp_path)
    assert run(iter([row("a", lost), row("b", dict)]), file, Clock(rehearses=False)) == LOST
    assert list(file.ended()) == ["a"]


WORKER = """
import json, os, sys, time
path = os.path.join(sys.argv[1], "rows.jsonl")
ended = [json.loads(line)["row"] for line in open(path) if "started" not in line] if os.path.exists(path) else []
for name in ("good", "dies", "hangs", "last"):
    if name in ended:
        continue
    with open(path, "a") as file:
        print(json.dumps({"row": name, "part": "smoke", "state": "started", "limit": 1}), file=file, flush=True)
        if name == "dies":
            os._exit(139)
        if name == "hangs":
            time.sleep(60)
        print(json.dumps({"row": name, "part": "smoke", "state": "done", "result": {}}), file=file, flush=True)
"""


def test_a_process_that_dies_or_hangs_costs_its_row_only(tmp_path):
    check = Check(tmp_path, rehearses=True, configuration=None)
    check.worker = tmp_path / "worker.py"
    check.worker.write_text(textwrap.dedent(WORKER))
    check.rows("smoke", end=60)
    ended = check.file.ended()
    assert {name: line["state"] for name, line in ended.items()} == {
        "good": "done", "dies": "failed", "hangs": "failed", "last": "done",
    }  # fmt: skip
    assert ended["dies"]["error"] == "the process ended with 139"
    assert ended["hangs"]["error"] == "took more than 1 s"
    assert not check.save()
    assert "**dies**: the process ended with 139" in (tmp_path / "gpu_check.md").read_text()


def test_a_worker_that_never_starts_is_reported(tmp_path):
    check = Check(tmp_path, rehearses=True, configuration=None)
    check.worker = tmp_path / "worker.py"
    check.worker.write_text("import no_such_module")
    check.rows("smoke", end=60)
    assert check.file.ended()["start smoke"]["state"] == "failed"
    assert not check.save()


@pytest.mark.parametrize(
    ("status", "log", "outcome"),
    [
        (0, "t.py::a PASSED\nt.py::b PASSED\n", "passed: 2"),
        (1, "t.py::a PASSED [ 1%]\nt.py::b[x-1] FAILED [ 2%]\n", "failed after 1 passed: t.py::b[x-1]"),
        (2, "ERROR collecting\n", "failed after 0 passed: exit status 2, see the log"),
        (None, "t.py::a PASSED [ 1%]\nt.py::b \n", "out of time after 1 passed, in t.py::b"),
        (None, "", "out of time after 0 passed, in collecting"),
    ],
)
def test_what_is_said_of_a_test_file(status, log, outcome):
    assert test_outcome(status, log) == outcome


def sweep_lines(cublas_from: int) -> dict[str, dict]:
    """Rows of a sweep in which the second candidate is the faster one, and cuBLAS from so many rows on."""
    small, large = ({"BLOCK_M": size, "BLOCK_N": 64, "BLOCK_K": 64, "GROUP_M": 8} for size in (16, 64))
    ended = {}
    for rows in (64, 4096, 16_384):
        product = {
            "candidates": [{"config": small, "seconds": 2e-4}, {"config": large, "seconds": 1e-4}],
            "cublas": {"seconds": 1e-5 if rows >= cublas_from else 5e-4},
        }
        projection = {**product, "width": 768, "project_norm": [{"config": small, "error": "OutOfResources"}]}
        ended[f"sweep linear 768 {rows}"] = {
            "result": {
                "qkv": {**product, "width": 2304}, "up": {**product, "width": 3072},
                "attention_output": projection, "down": projection,
            }
        }  # fmt: skip
        norm = {"width": 768, "candidates": [{"config": {"BLOCK_M": 2}, "seconds": 1e-6}]}
        ended[f"sweep norm 768 {rows}"] = {"result": {"residual_norm": norm, "bias_activation": norm}}
        fused = [{"tile": 128, "config": {"BLOCK_K": 32}, "seconds": 3e-4 if rows > 64 else 1e-6}]
        ended[f"sweep fused 768 {rows}"] = {"result": {"width": 64, "candidates": fused}}
    for length, tile in ((15, 16), (512, 64)):
        candidates = [{"tile": tile, "config": {"BLOCK_S": tile}, "seconds": 1e-5}]
        ended[f"sweep split 768 {length}"] = {"result": {"width": 64, "rows": 16_384, "candidates": candidates}}
    return ended


def test_a_configuration_follows_the_measurements(tmp_path):
    content = measured_configuration(sweep_lines(cublas_from=16_384), "h200", "today")
    (tmp_path / "new.json").write_text(dumps(content))
    tuning, shipped = read(tmp_path / "new.json"), load("h200")
    assert tuning.measured == "today"
    assert tuning.config("linear", torch.float16, 5, 768)["BLOCK_M"] == 64
    assert tuning.kernels["linear"][0]["microseconds"] == 100.0
    assert tuning.config("project_norm", torch.float16, 5, 768) == shipped.config("project_norm", torch.float16, 5, 768)
    assert tuning.config("attention", torch.bfloat16, 16, 64) == {"BLOCK_S": 16}
    assert tuning.tile_tokens("split", torch.float16, 10**6, 64) == 64
    for stage in ("qkv", "attention_output", "up", "down"):
        assert tuning.choice(stage, torch.float16, 4096, 768) == "triton"
        assert tuning.choice(stage, torch.float16, 10**6, 768) == "cublas"
        assert tuning.choice(stage, torch.float32, 10**6, 768) == shipped.choice(stage, torch.float32, 10**6, 768)
    assert tuning.choice("attention", torch.float16, 64, 64) == "fused"
    assert tuning.choice("attention", torch.float16, 4096, 64) == "split"
    assert tuning.choice("attention", torch.float16, 16, 128) == "split"


def test_where_python_takes_longer_than_the_gpu_graphs_are_kept():
    """cuBLAS would be faster by itself, but no graph could hold it."""
    ended = sweep_lines(cublas_from=64)
    for stages in (ended["sweep linear 768 64"]["result"],):
        for product in stages.values():
            for candidate in product["candidates"]:
                candidate["seconds"] /= 10
    choices = measured_configuration(ended, "h200", "today")["choices"]
    assert [rule["use"] for rule in choices["up"][:2]] == ["triton", "cublas"]
    assert choices["up"][0]["max_rows"] == 64


def test_a_sweep_that_failed_leaves_the_shipped_rules():
    content = measured_configuration({"sweep linear 768 16": {"error": "lost"}}, "h200", "today")
    shipped = load("h200")
    assert (content["kernels"], content["choices"], content["tiles"]) == (
        shipped.kernels, shipped.choices, shipped.tiles,
    )  # fmt: skip
    assert json.loads(dumps(content)) == content


def test_the_table_names_every_figure():
    times = {
        "fastsal": {"seconds": 0.001, "host_seconds": 0.0004},
        "hf_sdpa": {"seconds": 0.004, "host_seconds": 0.003},
    }
    model = {"model": "M", "load": "32 sentences", "dtype": "bfloat16", "operations": 350e9, "times": times}
    up = {"candidates": [{"config": {"BLOCK_M": 64}, "seconds": 1e-5}], "cublas": {"seconds": 2e-5}}
    results = {
        "peak bfloat16": {"operations_per_second": 7e14},
        "copy": {"bytes_per_second": 4e12},
        "encoder M": model,
        "sweep linear 768 16": {"up": up},
        "profile M": {"kernels": [{"kernel": "linear_kernel", "calls": 12, "microseconds": 345.6}]},
    }
    report = {
        "rehearsal": False, "gpu": "GPU", "date": "2000-01-01", "torch": "2", "triton": "3", "python": "3",
        "tests": {"test_a.py": "passed: 3", "test_b.py": "failed after 1 passed: test_b.py::b"},
        "rows": [{"row": name, "state": "done", "result": result} for name, result in results.items()],
    }  # fmt: skip
    text = markdown(report)
    assert "| M | 32 sentences | bfloat16 | fastsal 1.000 (0.400), hf_sdpa 4.000 (3.000) | 50% |" in text
    assert "| up linear 768 16 | {'BLOCK_M': 64} | 10.0 | 20.0 |" in text
    assert "| `linear_kernel` | 12 | 346 |" in text
    assert "**test_b.py**: failed after 1 passed: test_b.py::b" in text
    assert "700 TFLOP/s" in text
    assert "4.00 TB/s" in text


def test_operations_and_lengths():
    lengths = Load("", 16384).lengths()
    assert 14 < lengths.mean() < 16
    assert lengths.min() >= 6
    one = operations(SUBJECTS["ALBERT-base"].config, lengths[:1] * 0 + 12)
    # 12 layers of 7.08 million weights, 0.1 million of the mapping, two operations each, and the scores
    assert one == pytest.approx(2 * 12 * (12 * 7.078e6 + 98304) + 12 * 4 * 768 * 144, rel=1e-3)
