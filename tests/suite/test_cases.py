"""Many cases in one test: all of them run, and the one that fails is named."""

from __future__ import annotations

import inspect

import pytest

from tests.suite.cases import each_case


def test_every_case_is_run_with_the_same_fixtures() -> None:
    seen: list[tuple[int, str, str]] = []

    @each_case("number, word", [(1, "a"), (2, "b")])
    def test(number: int, word: str, fixture: str) -> None:
        seen.append((number, word, fixture))

    assert list(inspect.signature(test).parameters) == ["fixture"]
    test(fixture="x")
    assert seen == [(1, "a", "x"), (2, "b", "x")]


def test_the_case_that_fails_is_named() -> None:
    @each_case("number", [1, 2])
    def test(number: int) -> None:
        assert number == 1

    with pytest.raises(AssertionError) as failed:
        test()
    assert failed.value.__notes__ == ["with {'number': 2}"]


def test_no_case_is_a_mistake() -> None:
    with pytest.raises(AssertionError, match="no case"):
        each_case("number", [])
