"""The API reference is made of docstrings: every public name has one, which tells its parameters, fields and errors."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
import textwrap

import pytest

import fastsal
import fastsal.evaluation
import fastsal.pooling
from fastsal.measure.benchmark import BenchReport
from fastsal.measure.verify import VerificationReport
from fastsal.modules.preparation import EncoderStatus

MODULES = (fastsal, fastsal.evaluation, fastsal.pooling)

#: What public functions return without being public names themselves.
RESULTS = (EncoderStatus, VerificationReport, BenchReport)


def public_objects():
    found = {f"{module.__name__}.{name}": getattr(module, name) for module in MODULES for name in module.__all__}
    found |= {f"{result.__module__}.{result.__name__}": result for result in RESULTS}
    return {name: value for name, value in found.items() if inspect.isclass(value) or inspect.isroutine(value)}


def public_routines():
    """Functions, and the methods that the public classes define or override themselves."""
    for name, value in public_objects().items():
        if not inspect.isclass(value):
            yield name, value
            continue
        for cls in value.__mro__:
            if cls.__module__.startswith("fastsal."):
                for attribute, member in vars(cls).items():
                    member = inspect.unwrap(getattr(member, "__func__", member))
                    ours = inspect.isfunction(member) and member.__module__.startswith("fastsal.")
                    if ours and not attribute.startswith("_"):
                        yield f"{name}.{attribute}", member


OBJECTS, ROUTINES = public_objects(), dict(public_routines())


def documentation(routine) -> str:
    return inspect.cleandoc(routine.__doc__ or "")


def refers_elsewhere(text: str) -> bool:
    """Whether it says whose arguments and errors are meant: of a function named in backquotes."""
    return re.search(r"\b(arguments and errors as in|errors as|[Aa]s) `[\w.]+`", text) is not None


@pytest.mark.parametrize("name", OBJECTS)
def test_every_public_name_has_a_docstring(name):
    value = OBJECTS[name]
    text = vars(value).get("__doc__") if inspect.isclass(value) else value.__doc__
    assert text, f"{name} has no docstring"
    assert not text.startswith(f"{name.rpartition('.')[2]}("), f"{name} has the docstring that dataclass makes"
    if dataclasses.is_dataclass(value):
        missing = [f.name for f in dataclasses.fields(value) if not re.search(rf"\b{f.name}\b", text)]
        assert not missing, f"the docstring of {name} does not tell what {missing} are"


@pytest.mark.parametrize("name", ROUTINES)
def test_every_routine_tells_its_parameters(name):
    text = documentation(ROUTINES[name])
    assert text, f"{name} has no docstring"
    parameters = [p for p in inspect.signature(ROUTINES[name]).parameters if p not in ("self", "cls", "args", "kwargs")]
    missing = [parameter for parameter in parameters if not re.search(rf"\b{parameter}\b", text)]
    assert not missing or refers_elsewhere(text), f"the docstring of {name} does not name {missing}"


@pytest.mark.parametrize("name", ROUTINES)
def test_every_routine_tells_what_it_raises(name):
    tree = ast.parse(textwrap.dedent(inspect.getsource(ROUTINES[name])))
    calls = [node.exc for node in ast.walk(tree) if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call)]
    raised = {call.func.id for call in calls if isinstance(call.func, ast.Name)}
    text = documentation(ROUTINES[name])
    assert all(error in text for error in raised) or refers_elsewhere(text), f"{name} raises {raised}"
