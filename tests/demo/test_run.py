"""The demo itself, on its real input: four kills, nothing lost, nothing twice, and a control run that repeats.

``test_secrets`` runs it on a small one.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import pytest

from einmal.demo.pipeline_names import AFTER_END_TXN, CONTROL, EXACTLY_ONCE
from einmal.demo.run import Demo
from einmal.evidence.environment import run_environment


def check(report: dict[str, Any]) -> None:
    """What every run of the demo shows, whatever its input."""
    assert report["verdict"] == "exactly-once"
    assert (report["lost"], report["duplicated"], report["replayed_batches"]) == (0, 0, 1)
    assert report["kills"] == 4
    assert report["killed"] == ["leader of sentences", "transaction coordinator", "Spark driver", "Spark driver"]
    assert report["control_duplicated"] > 0


@pytest.mark.spark
@pytest.mark.long
def test_the_demo_shows_exactly_once_and_its_control_does_not(tmp_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-m", "einmal", "demo", "--output", str(tmp_path), "--format", "json"],
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert run.returncode == 0, run.stderr[-3_000:]
    report = json.loads(run.stdout)
    assert report == json.loads((tmp_path / "report.json").read_text())
    check(report)
    assert report["input_records"] >= 100_000
    assert "<svg" in (tmp_path / "report.html").read_text()


class _Stage:
    def begin(self, name: str, text: str, total: int | None) -> None:
        pass

    def advance(self, name: str, done: int, text: str | None = None) -> None:
        pass


class _Driver:
    """Reports its arguments, in this order."""

    def __init__(self, *at_kill_point: str) -> None:
        self.events = [{"query": query, "event": "AtKillPoint", "batch_id": 2} for query in at_kill_point]
        self.is_killed = False

    def next_event(self) -> dict[str, Any]:
        assert self.events, "nothing more can come from queries that stand still"
        return self.events.pop(0)

    def kill(self) -> None:
        self.is_killed = True


def test_a_driver_is_killed_as_soon_as_both_queries_stand_still(tmp_path: Path) -> None:
    driver = _Driver(CONTROL, EXACTLY_ONCE)
    Demo(tmp_path, "text", ["a"], _Stage(), run_environment([], {}))._follow_to_kill_point(
        cast(Any, driver), AFTER_END_TXN
    )
    assert driver.is_killed
