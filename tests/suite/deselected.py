"""Test files of which ``-m`` selects nothing are not imported: every worker of a run collects all others."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

from _pytest.mark.expression import Expression

_LINE: Final = re.compile(r"^pytestmark\b.*$", re.MULTILINE)
_MARK: Final = re.compile(r"pytest\.mark\.(\w+)")
_PARAMETERS: Final = ("pytest.param(", "parametrize")


def is_deselected(path: Path, expression: str) -> bool:
    """Whether, by the marks of the file itself, the expression selects none of its tests."""
    if not expression or path.suffix != ".py" or not path.name.startswith("test_"):
        return False
    marks = _marks(path)
    return bool(marks) and _excludes(expression, marks)


def _marks(path: Path) -> frozenset[str]:
    """Those that the first line of ``pytestmark`` names: all of them, or fewer."""
    found = _LINE.search(path.read_text(encoding="utf-8"))
    if found is None or any(word in found[0] for word in _PARAMETERS):
        return frozenset()
    return frozenset(_MARK.findall(found[0]))


@cache
def _excludes(expression: str, marks: frozenset[str]) -> bool:
    """Whether the expression is false for these marks, whatever others a test has."""
    if "(" in expression.replace(" (", ""):
        return False  # Marks with arguments.
    compiled = Expression.compile(expression)
    return not any(
        compiled.evaluate(lambda name, /, **_: name in marks or name in others)  # noqa: B023 - called at once.
        for others in _subsets(frozenset(re.findall(r"\w+", expression)))
    )


def _subsets(names: frozenset[str]) -> Iterator[tuple[str, ...]]:
    return itertools.chain.from_iterable(itertools.combinations(names, count) for count in range(len(names) + 1))
