"""The demo itself, on its real input: four kills, nothing lost, nothing twice, and a control run that repeats."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.spark
@pytest.mark.slow
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
    assert report["verdict"] == "exactly-once"
    assert (report["lost"], report["duplicated"], report["replayed_batches"]) == (0, 0, 1)
    assert report["input_records"] >= 100_000
    assert report["kills"] >= 3
    assert report["control_duplicated"] > 0
    assert "<svg" in (tmp_path / "report.html").read_text()
