"""Claims about sessions that lose their workers, their queries or their JVM: one program has one of its own for all."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.suite.shared import shared, unique

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.long]


@dataclass(frozen=True)
class Life:
    seen: dict[str, Any]
    errors: str


@pytest.fixture(scope="module")
def life() -> Life:
    """What the program has seen, and its stderr, which is that of its JVM and its workers, too."""
    arguments = [shared("einmal").bootstrap, unique("ended")]
    program = [sys.executable, "-W", "ignore", "-m", "tests.spark.programs.one_life", *arguments]
    ended = subprocess.run(program, capture_output=True, text=True, timeout=400)
    assert ended.returncode == 0, ended.stderr
    return Life(json.loads(ended.stdout.splitlines()[-1]), ended.stderr)


def test_a_session_that_has_lost_the_lookup_of_sources_finds_ours_once_it_is_registered(life: Life) -> None:
    """Spark looks once per JVM, and takes the death of the worker that looks for "there are none"."""
    assert life.seen["found"] == {"killed": False, "again": False, "registered": True}


def test_queries_that_are_stopped_in_the_middle_of_a_batch_print_nothing(life: Life) -> None:
    assert "Traceback" not in life.errors
    is_used, folder = life.seen["sockets"]
    assert is_used == "true"
    assert not Path(folder).exists()


def test_the_ingester_stops_when_spark_has_ended(life: Life) -> None:
    assert len(life.seen["ends"]) == 2, life.errors
    for text in life.seen["ends"]:
        assert text.startswith("Spark has ended: "), text
        assert "\nhint: start " in text
