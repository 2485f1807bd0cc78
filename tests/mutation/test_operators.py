"""Claims about mutations: which locations of a module they change, and that a mutant differs there only."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from tools.python_source import parse

from tests.mutation.operators import mutate, mutations
from tests.mutation.run import MACHINES, Fate, Machine, all_mutants, run_tests, sample


def changes(source: str) -> set[tuple[str, str]]:
    return {(each.before, each.after) for each in mutations(source)}


@pytest.mark.parametrize(
    ("source", "before", "after"),
    [
        ("x = a < b", "a < b", "a <= b"),
        ("x = a is None", "a is None", "a is not None"),
        ("x = a in b", "a in b", "a not in b"),
        ("x = 5", "5", "6"),
        ("x = 5", "5", "4"),
        ("x = True", "True", "False"),
        ("x = a and b", "a and b", "a or b"),
        ("x = not a", "not a", "a"),
        ("x = a + b", "a + b", "a - b"),
        ("if a:\n    b()", "a", "not a"),
        ("def f():\n    return a", "return a", "return None"),
        ("f(a)", "f(a)", "pass"),
        ("a.b = c", "a.b = c", "pass"),
        ("a += 1", "a += 1", "pass"),
        ("if a < b:\n    raise C", "raise C", "pass"),
    ],
)
def test_an_operator_changes_what_it_is_for(source: str, before: str, after: str) -> None:
    assert (before, after) in changes(source)


@pytest.mark.parametrize(
    "source",
    [
        "assert a < 5",
        '"""Docstring."""',
        "x: Literal[5]",
        "def f(a: Literal[5]) -> Literal[6]: ...",
        "import a",
        "x = f'{a + 1}'",
        "def f():\n    return None",
        "def __repr__(self):\n    return a < b",
        "if TYPE_CHECKING:\n    x = 5",
    ],
)
def test_what_no_test_can_see_is_left_alone(source: str) -> None:
    assert changes(source) == set()


def test_a_mutant_differs_at_one_location() -> None:
    source = "def window(a, b):\n    if a - b < 5 and not b:\n        return a\n    return b\n"
    original = ast.unparse(parse(source))
    found = mutations(source)
    mutants = [ast.unparse(mutate(source, each.number)) for each in found]
    assert len(set(mutants)) == len(found) == 9
    assert original not in mutants
    for each, mutant in zip(found, mutants, strict=True):
        differing = [
            number
            for number, (one, other) in enumerate(zip(original.split("\n"), mutant.split("\n"), strict=True), start=1)
            if one != other
        ]
        assert differing == [each.line]


def test_every_machine_has_modules_and_tests() -> None:
    for machine in MACHINES:
        assert machine.sources(), machine.name
        assert machine.test_files(), machine.name


@pytest.mark.parametrize(
    ("module", "fate"), [("client/cores/pacing.py", Fate.CAUGHT), ("client/cores/producer_batch.py", Fate.SURVIVED)]
)
def test_a_mutant_survives_the_tests_of_another_module(
    module: str, fate: Fate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Of processes that tests start.
    monkeypatch.delenv("PYTHONPATH", raising=False)
    machine = Machine("pacing", (module,), ("tests/client/cores/test_pacing.py",))
    mutant = next(each for each in all_mutants([machine]) if each.mutation.operator == "result")
    assert run_tests(machine, mutant, 60, str(tmp_path)) is fate


def test_a_seed_is_a_sample() -> None:
    assert sample(MACHINES[:1], 5, 1) == sample(MACHINES[:1], 5, 1) != sample(MACHINES[:1], 5, 2)
