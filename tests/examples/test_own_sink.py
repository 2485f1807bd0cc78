"""Claims about examples/own_sink, by its README's own commands. Its sink passes the battery, too."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.examples.readme import ROOT, SET_UP, Reader

pytestmark = [pytest.mark.spark, pytest.mark.long]

EXAMPLE = ROOT / "examples" / "own_sink"


def test_batch_that_is_written_again_is_there_once(tmp_path: Path) -> None:
    reader = Reader(tmp_path, "no broker")
    reader.follow(EXAMPLE / "README.md", set_up=SET_UP[:2])
    squares = reader.folder / "build" / "examples" / "squares"
    manifest = json.loads((squares / "manifest.json").read_text())
    rows = [json.loads(line) for each in manifest["files"] for line in (squares / each).read_text().splitlines()]
    assert sorted(row["id"] for row in rows) == list(range(1_000, 2_000))
    assert all(row["square"] == row["id"] ** 2 for row in rows)
