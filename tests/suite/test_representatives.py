"""Claims about variants that are left to the long run: which ones does not depend on the order in which tests run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TEXT = """
import pytest

@pytest.mark.representatives(2)
@pytest.mark.parametrize("x", [pytest.param(0, marks=pytest.mark.long), 1, 2, 3, 4])
def test_some(x): ...

@pytest.mark.parametrize("x", [1, 2, 3])
def test_all(x): ...
"""


@pytest.mark.parametrize("seed", [1, 2])
def test_the_first_variants_are_in_every_run_and_the_others_in_the_long_one(tmp_path: Path, seed: int) -> None:
    (tmp_path / "test_it.py").write_text(TEXT)
    assert collected(tmp_path, seed, "not long") == [
        *(f"test_it.py::test_all[{x}]" for x in (1, 2, 3)),
        *(f"test_it.py::test_some[{x}]" for x in (1, 2)),
    ]
    assert collected(tmp_path, seed, "long") == [f"test_it.py::test_some[{x}]" for x in (0, 3, 4)]


def collected(directory: Path, seed: int, expression: str) -> list[str]:
    options = ["-p", "tests.suite.representatives", f"--randomly-seed={seed}", "-m", expression]
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--collect-only", "--rootdir", str(directory), *options, "."],
        cwd=directory,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    return sorted(line for line in run.stdout.splitlines() if "::" in line)
