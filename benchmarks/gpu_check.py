"""Checks, tunes and measures the Triton backend on a GPU; ``benchmarks/gpu_check.sh FOLDER`` runs it.

In this order: a launch of each kernel, checked; the tests, file by file; candidates for every launch configuration;
whole models beside Hugging Face; the measured configuration beside the shipped one; a profile; torch.compile. Each row
is in FOLDER/rows.jsonl as soon as it is known, and a row that fails or hangs costs itself only. FOLDER gets
gpu_check.json, gpu_check.md, the configuration that was measured (h200.json), and logs. Exits with 1 if a row or a test
failed.

With ``--configuration FILE`` only the checks run, and the models with FILE beside the shipped configuration: a minute.
``--rehearse`` needs no GPU and measures nothing: all rows, with tiny models and without a launch, and no tests.
``--compile`` needs none either: it compiles what the checks and the tuning launch, into TRITON_CACHE_DIR. That folder,
under the same path, saves the GPU's machine the time.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path

import torch
from gpu_configuration import dumps, measured_configuration
from gpu_report import markdown
from gpu_rows import LOST, PARTS, RowFile

from fastsal.kernels.triton.tuning import tuning_for

ROOT = Path(__file__).parents[1]

#: Seconds from the start until which each step may run. Compiling goes on beside checks and tests.
SMOKE_END, TESTS_END, SWEEP_END, END = 45, 120, 205, 355
VERIFY_END = 60

#: Test files at a time: compiling takes the time, not the GPU.
TEST_FILES_AT_ONCE = 6

#: They test the compiler, or this, and need no GPU.
NO_GPU_TESTS = {"test_static.py", "test_gpu_check.py"}


class Check:
    """One run: its folder, its start and what is known so far."""

    def __init__(self, folder: Path, rehearses: bool, configuration: Path | None) -> None:
        self.folder, self.rehearses, self.configuration = folder, rehearses, configuration
        self.file = RowFile(folder)
        self.file.path.unlink(missing_ok=True)
        self.worker = ROOT / "benchmarks" / "gpu_rows.py"
        self.start = time.monotonic()
        self.tests: dict[str, str] = {}
        self.name = "h200" if rehearses else tuning_for(torch.device("cuda", 0)).name
        self.about = {
            "rehearsal": rehearses,
            "gpu": None if rehearses else torch.cuda.get_device_name(),
            "date": time.strftime("%Y-%m-%d"),
            "python": platform.python_version(),
            **{package: version(package) for package in ("torch", "triton", "transformers", "sentence-transformers")},
        }

    def left(self, end: float) -> float:
        return self.start + end - time.monotonic()

    def rows(self, *parts: str, end: float) -> None:
        """Run the rows of `parts`, in new processes where one is lost, until `end`."""
        command = [sys.executable, str(self.worker), str(self.folder), "--parts", *parts]
        if self.configuration is not None:
            command += ["--configuration", str(self.configuration)]
        if self.rehearses:
            command.append("--rehearse")
        status = LOST
        while status != 0 and self.left(end) > 5:
            before = len(self.file.lines())
            with (self.folder / "rows.log").open("a", encoding="utf-8") as log:
                process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
                reason = self._watch(process, end)
            status = process.returncode
            underway = self.file.underway()
            if underway is not None:
                reason = reason or f"the process ended with {status}"
                self.file.append(row=underway["row"], part=underway["part"], state="failed", error=reason)
            elif status not in (0, LOST) and len(self.file.lines()) == before:  # it does not even come to a row
                self.file.append(row=f"start {' '.join(parts)}", part=parts[0], state="failed", error="see rows.log")
                return

    def _watch(self, process: subprocess.Popen, end: float) -> str | None:
        """Wait for a process; why it was ended, if it was: its row took too long, or the time is over."""
        row, since = None, time.monotonic()
        while True:
            try:
                process.wait(timeout=0.5)
            except subprocess.TimeoutExpired:
                pass
            else:
                return None
            underway = self.file.underway()
            if underway is None or underway["row"] != row:
                row, since = underway and underway["row"], time.monotonic()
            if underway is not None and time.monotonic() - since > underway["limit"]:
                reason = f"took more than {underway['limit']} s"
            elif self.left(end) < 0:
                reason = "the time was over"
            else:
                continue
            process.kill()
            process.wait()
            return reason

    def run_tests(self, end: float) -> None:
        """Every test file in a process of its own, which its first failure ends."""
        files = sorted((ROOT / "tests" / "triton_kernels").glob("test_*.py"))
        with ThreadPoolExecutor(TEST_FILES_AT_ONCE) as threads:
            chosen = [file for file in files if file.name not in NO_GPU_TESTS]
            for file, outcome in zip(chosen, threads.map(lambda file: self._test(file, end), chosen), strict=True):
                self.tests[file.name] = outcome

    def _test(self, file: Path, end: float) -> str:
        command = [sys.executable, "-m", "pytest", "-v", "-x", "--tb=short", "-p", "no:cacheprovider", str(file)]
        log = self.folder / f"{file.stem}.log"
        with log.open("w", encoding="utf-8") as output:
            try:
                status = subprocess.run(
                    command, stdout=output, stderr=subprocess.STDOUT, timeout=max(self.left(end), 1), cwd=ROOT
                ).returncode
            except subprocess.TimeoutExpired:
                status = None
        return test_outcome(status, log.read_text(encoding="utf-8"))

    def save(self) -> bool:
        """Write what is known; whether all is well."""
        ended = self.file.ended()
        report = {**self.about, "tests": self.tests, "rows": list(ended.values())}
        (self.folder / "gpu_check.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
        (self.folder / "gpu_check.md").write_text(markdown(report), encoding="utf-8")
        failed = [name for name, line in ended.items() if line["state"] == "failed"]
        wrong = [name for name, outcome in self.tests.items() if not outcome.startswith("passed")]
        return not failed and not wrong

    def write_configuration(self) -> None:
        """What the sweep found, as a file for configs/."""
        about = self.about
        measured = f"{about['date']} on {about['gpu']}, torch {about['torch']}, Triton {about['triton']}"
        content = measured_configuration(self.file.ended(), self.name, measured)
        (self.folder / f"{self.name}.json").write_text(dumps(content), encoding="utf-8")


def test_outcome(status: int | None, log: str) -> str:
    """A line about a test file, from pytest's exit status (None: out of time) and its verbose output."""
    passed = len(re.findall(r" PASSED", log))
    if status == 0:
        return f"passed: {passed}"
    failed = re.findall(r"^(\S+::.*?) (?:FAILED|ERROR)", log, re.MULTILINE)
    if status is None:
        underway = re.findall(r"^(\S+::\S+)\s*$", log, re.MULTILINE)
        return f"out of time after {passed} passed, in {underway[-1] if underway else 'collecting'}"
    return f"failed after {passed} passed: {failed[0] if failed else f'exit status {status}, see the log'}"


def compile_ahead(folder: Path, parts: tuple[str, ...], processes: int) -> list[subprocess.Popen]:
    """Start as many processes that compile what the rows of `parts` launch."""
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    log = (folder / "compile.log").open("w", encoding="utf-8")
    command = [sys.executable, str(ROOT / "benchmarks" / "gpu_rows.py"), str(folder), "--parts", *parts, "--compile"]
    return [
        subprocess.Popen([*command, f"{i}/{processes}"], env=environment, stdout=log, stderr=subprocess.STDOUT)
        for i in range(processes)
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where everything is written")
    parser.add_argument("--configuration", type=Path, help="verify this file in place of measuring")
    parser.add_argument("--rehearse", action="store_true", help="launch nothing; needs no GPU")
    parser.add_argument("--compile", action="store_true", help="only compile, into TRITON_CACHE_DIR; needs no GPU")
    chosen = parser.parse_args()
    if chosen.compile:
        processes = compile_ahead(chosen.folder, ("smoke", "sweep"), os.cpu_count() or 1)
        return max(process.wait() for process in processes)
    if chosen.rehearse == torch.cuda.is_available():
        parser.error("there is a GPU: leave --rehearse out" if chosen.rehearse else "torch finds no GPU: --rehearse")

    check = Check(chosen.folder, chosen.rehearse, chosen.configuration)
    if chosen.configuration is not None:
        check.rows("smoke", "verify", end=VERIFY_END)
    else:
        compiling = []
        if not chosen.rehearse:
            compiling = compile_ahead(chosen.folder, ("sweep",), max((os.cpu_count() or 2) - 6, 1))
        check.rows("smoke", end=SMOKE_END)
        check.save()
        if not chosen.rehearse:
            check.run_tests(end=TESTS_END)
            check.save()
        for process in compiling:
            process.kill()  # what is missing compiles when it is launched
            process.wait()
        check.rows("sweep", end=SWEEP_END)
        check.write_configuration()
        check.save()
        check.rows(*PARTS[PARTS.index("encoder") :], end=END)
    well = check.save()
    print((chosen.folder / "gpu_check.md").read_text(encoding="utf-8"))
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main())
