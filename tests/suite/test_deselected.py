"""Claims about the files that a run with ``-m`` does not import."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.suite.deselected import is_deselected

FAST = "not (spark or interop or system or slow or long)"
SPARK = "pytestmark = pytest.mark.spark\n"
TWO = "pytestmark = [pytest.mark.interop, pytest.mark.slow]\n"
VARIANTS = "pytestmark = pytest.mark.parametrize('x', [1, pytest.param(2, marks=pytest.mark.slow)])\n"


@pytest.mark.parametrize(
    ("text", "expression", "expected"),
    [
        (SPARK, FAST, True),
        (TWO, FAST, True),
        (TWO, "not slow", True),
        (SPARK, "not long", False),
        (SPARK, "long", False),
        (SPARK, "spark", False),
        (SPARK, "spark and not long", False),
        (SPARK, "", False),
        (SPARK, "time_limit(5)", False),
        (VARIANTS, FAST, False),
        ("@pytest.mark.slow\ndef test_it(): ...\n", FAST, False),
        ("pytestmark = pytest.mark.time_limit(300)\n", FAST, False),
    ],
)
def test_a_file_is_left_out_only_if_none_of_its_tests_can_be_selected(
    tmp_path: Path, text: str, expression: str, expected: bool
) -> None:
    path = tmp_path / "test_it.py"
    path.write_text(text)
    assert is_deselected(path, expression) is expected


def test_what_is_no_test_file_is_not_left_out(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(SPARK)
    assert not is_deselected(tmp_path / "conftest.py", FAST)
