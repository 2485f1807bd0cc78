"""Thousands of cases in one test: pytest spends more on a test than a case of a table or a schema costs.

Every process of a run collects all tests before its first, so that each test costs as often as there are processes.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any

_Test = Callable[..., None]


def each_case(names: str | Sequence[str], cases: Iterable[Any]) -> Callable[[_Test], _Test]:
    """As ``pytest.mark.parametrize``, but one test, which ends with the first case that fails and names it. Fixtures
    are the same in all cases."""
    words = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
    given = [dict(zip(words, case if len(words) > 1 else (case,), strict=True)) for case in cases]
    assert given, "no case"

    def decorate(test: _Test) -> _Test:
        @functools.wraps(test)
        def in_all_cases(**fixtures: Any) -> None:
            for case in given:
                try:
                    test(**case, **fixtures)
                except BaseException as error:
                    error.add_note(f"with {case}")
                    raise

        signature = inspect.signature(test)
        others = [each for name, each in signature.parameters.items() if name not in words]
        in_all_cases.__signature__ = signature.replace(parameters=others)  # type: ignore[attr-defined]
        return in_all_cases

    return decorate
