"""From the start of a process to the vector of one sentence, warm cache: seconds and peak memory, beside the rivals."""

from __future__ import annotations

import importlib.util
import json
import shutil
import statistics
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import start_up
from peers import _exported

ROUNDS = 3


#: Starts the command of its arguments. A process of its own, small, as a child's peak memory is at least what the
#: process that forks it has.
LAUNCHER = """
import os, subprocess, sys, time
start = time.perf_counter()
process = subprocess.Popen(sys.argv[1:], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
output = process.stdout.read()
_, status, usage = os.wait4(process.pid, 0)
print(time.perf_counter() - start, usage.ru_maxrss / 1024)
sys.stdout.flush()
sys.stdout.buffer.write(output)
sys.exit(status != 0)
"""


def run(command: list[str]) -> tuple[float, float, str]:
    """Seconds, peak memory in MB, and output of a process."""
    launch = [sys.executable, "-S", "-c", LAUNCHER, *command]
    figures, _, output = subprocess.run(launch, capture_output=True, text=True, check=True).stdout.partition("\n")
    seconds, megabytes = map(float, figures.split())
    return seconds, megabytes, output


def engine_command(name: str, folder: str, onnx_file: Path) -> list[str]:
    return [sys.executable, start_up.__file__, name, folder, str(onnx_file)]


@pytest.mark.parametrize("subject", ["minilm"], indirect=True)
def test_start_up(benchmark, subject, subject_folder, tmp_path_factory, table):
    folder = subject.folder
    place = tmp_path_factory.mktemp("exported")
    commands, exported = {}, place / "model.onnx"
    for name, (_, packages) in start_up.ENGINES.items():
        if all(importlib.util.find_spec(package) for package in packages):
            if packages and not exported.exists():
                shutil.move(_exported(subject, subject_folder), exported)
                for path in folder.glob("*.json"):
                    shutil.copy(path, place)
            commands[name] = engine_command(name, str(folder), exported)
    commands["fastsal.TextEncoder, SALBERT-mini"] = engine_command("fastsal.TextEncoder", "salbert-mini", exported)
    (place / "one.txt").write_text(start_up.SENTENCE + "\n")
    encode = [str(Path(sys.executable).with_name("fastsal")), "encode", str(place / "one.txt"), "-o"]
    commands["fastsal encode"] = [*encode, str(place / "one.npy"), "-m", str(folder)]

    expected = subject.reference.encode(start_up.SENTENCE)
    figures: dict[str, list[tuple[float, float]]] = {name: [] for name in commands}

    def take_turns() -> None:
        for name, command in commands.items():
            seconds, megabytes, output = run(command)
            figures[name].append((seconds, megabytes))
            if "SALBERT" not in name:
                vector = np.load(place / "one.npy")[0] if name == "fastsal encode" else json.loads(output)
                assert np.abs(np.array(vector) - expected).max() < 1e-4, name

    take_turns()  # fills the disk's cache
    for measured in figures.values():
        measured.clear()
    benchmark.pedantic(take_turns, rounds=ROUNDS)
    file_size = (folder / "model.safetensors").stat().st_size / 2**20
    table.append(f"one sentence from the start of a process, MiniLM ({file_size:.0f} MB), median of {ROUNDS}")
    for name, measured in figures.items():
        if measured:
            seconds, megabytes = (statistics.median(values) for values in zip(*measured, strict=True))
            table.append(f"{name:36} {seconds:6.2f} s  {megabytes:5.0f} MB")
            benchmark.extra_info[name] = {"seconds": seconds, "peak_mb": megabytes}
