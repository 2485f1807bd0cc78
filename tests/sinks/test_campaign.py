"""A few kills of the sinks' campaign; ``make target-kills`` runs 300 for each sink."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.sinks.campaign import run_campaign
from tests.sinks.hooks import HOOKS

pytestmark = [pytest.mark.spark, pytest.mark.long]


@pytest.mark.parametrize("kind", HOOKS)
def test_killed_stream_writes_every_row_once(kind: str, tmp_path: Path) -> None:
    report = run_campaign(kind, 4, 7, tmp_path, None)
    assert report.wrong == []
    assert report.kills.total() >= 4
