"""Options, the models that are measured one at a time, and the table at the end."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"  # before transformers is imported
os.environ["TOKENIZERS_PARALLELISM"] = "true"

import pytest
import report
from subjects import Subject, make_subject

from fastsal.measure.information import machine_information

_ROWS = pytest.StashKey[list[dict[str, Any]]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--full", action="store_true", help="All length mixes, more texts, more rounds: an hour.")


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_ROWS] = []


def pytest_benchmark_update_machine_info(config: pytest.Config, machine_info: dict[str, Any]) -> None:
    """What report.py says about a run."""
    arguments = list(map(str, config.invocation_params.args))
    if "--benchmark-json" in arguments:  # where the results went is nothing that readers need
        place = arguments.index("--benchmark-json")
        arguments[place : place + 2] = []
    machine_info["fastsal"] = {"command": shlex.join(["pytest", *arguments]), **machine_information()}


@pytest.fixture(scope="session")
def full(pytestconfig: pytest.Config) -> bool:
    return bool(pytestconfig.getoption("--full"))


@pytest.fixture
def results(pytestconfig: pytest.Config) -> list[dict[str, Any]]:
    """Rows of the table at the end: what benchmarks put into `extra_info`."""
    return pytestconfig.stash[_ROWS]


@pytest.fixture(scope="session")
def subject_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("subjects")


@pytest.fixture(scope="module")
def subject(request: pytest.FixtureRequest, subject_folder: Path) -> Subject:
    """The model of the test's parameter; pytest orders the tests so that each is made once."""
    return make_subject(request.param, subject_folder / request.param)


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    if rows := config.stash[_ROWS]:
        terminalreporter.section("throughput and accuracy")
        terminalreporter.write_line(report.markdown_tables(rows))


@pytest.fixture(scope="module")
def table():
    """Rows to print when all are measured."""
    rows: list[str] = []
    yield rows
    print("\n" + "\n".join(rows))
