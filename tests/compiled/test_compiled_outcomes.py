"""Compiled modules do what their sources do, on random and on hostile input."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from einmal.compiled import PURE, ROOT, is_compiled
from tests.compiled.outcomes import SCENARIOS, outcomes

pytestmark = pytest.mark.skipif(not is_compiled(), reason="this process runs no compiled modules (make setup)")


def interpreted_outcomes(seed: int) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.compiled.outcomes", str(seed)],
        # Not as a program that a test starts (tests/started), from which hypothesis is hidden.
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), PURE: "1"},
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=180,
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("seed", range(2))
def test_compiled_modules_do_what_their_sources_do(seed: int) -> None:
    _compare(seed)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(100, 150))
def test_compiled_modules_do_what_their_sources_do_for_many_seeds(seed: int) -> None:
    _compare(seed)


def _compare(seed: int) -> None:
    compiled, interpreted = outcomes(seed), interpreted_outcomes(seed)
    assert compiled.keys() == interpreted.keys() == SCENARIOS.keys()
    for name, found in compiled.items():
        different = [pair for pair in zip(found, interpreted[name], strict=True) if pair[0] != pair[1]]
        assert not different, f"{name}: the first of {len(different)}: {different[0]}"
