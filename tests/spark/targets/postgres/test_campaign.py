"""The campaign in short. ``make postgres-kills`` is the whole of it."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from tests.spark.targets.postgres.campaign import Campaign

pytestmark = [pytest.mark.spark, pytest.mark.long]

_KILLS: Final = 6
_SEED: Final = 5


def test_killed_pipelines_leave_what_their_position_demands(tmp_path: Path) -> None:
    report = Campaign(tmp_path, _SEED).run(_KILLS)
    assert report.wrong == [], report
    assert sum(report.kills.values()) == _KILLS
    assert min(report.batches.values()) > 0
