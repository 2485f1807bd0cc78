"""Expressions of clients mean what the standard library's mean, and take bounded time."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from einmal.wire.regular_expression import RegularExpression, Unsupported

_ATOMS = st.sampled_from(["a", "b", ".", "[ab]", "[^a]", "[a-c]", r"\d", r"\w", r"\.", "(a|b)", "(?:ab)", "-"])
_QUANTIFIERS = st.sampled_from(["", "*", "+", "?", "{2}", "{1,}", "{0,2}"])
_EXPRESSIONS = st.lists(st.tuples(_ATOMS, _QUANTIFIERS).map("".join), max_size=5).map("".join)


@given(st.lists(_EXPRESSIONS, min_size=1, max_size=3).map("|".join), st.text("abc1.-", max_size=8))
def test_an_expression_means_what_the_standard_librarys_means(expression: str, text: str) -> None:
    assert RegularExpression(expression).matches(text) == (re.fullmatch(expression, text, re.ASCII) is not None)


@pytest.mark.parametrize(
    ("expression", "text", "matches"),
    [
        ("orders-.*", "orders-1", True),
        ("orders-.*", "my-orders-1", False),
        ("^orders$", "orders", True),
        ("a\\$", "a$", True),
        ("[]a]", "]", True),
        ("[a-]", "-", True),
        ("((a{2}){3})?b", "aaaaaab", True),
        ("((a{2}){3})?b", "aaaab", False),
        ("", "", True),
        ("", "a", False),
    ],
)
def test_expressions_match_the_whole_text(expression: str, text: str, matches: bool) -> None:
    assert RegularExpression(expression).matches(text) == matches


@pytest.mark.parametrize(
    "expression",
    ["(", ")", "a)", "[", "[a", "*", "a**", "a{", "a{x}", "a{2,1}", "a{1001}", "\\", "\\1", "\\pL", "(?=a)", "(?i)a"]
    + ["[b-a]", "a^b", "[[:alpha:]]", "(" * 60 + ")" * 60, "a" * 600, "((a{100}){100}){100}"],
)
def test_what_is_not_supported_is_refused(expression: str) -> None:
    with pytest.raises(Unsupported):
        RegularExpression(expression)


def test_an_expression_that_keeps_the_standard_librarys_busy_for_ever_takes_milliseconds() -> None:
    since = time.process_time()
    assert not RegularExpression("(a*)*" * 20 + "b").matches("a" * 200)
    assert time.process_time() - since < 2
