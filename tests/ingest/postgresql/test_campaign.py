"""The campaign in short. ``make cdc-kills`` is the whole of it."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from tests.ingest.postgresql.campaign import CaptureCampaign

pytestmark = [pytest.mark.system, pytest.mark.slow]

_KILLS: Final = 4
_SEED: Final = 9


@pytest.mark.long
def test_each_row_version_arrives_once_in_order_and_in_whole_transactions_under_kills(tmp_path: Path) -> None:
    tmp_path.chmod(0o711)
    report = CaptureCampaign(tmp_path, _SEED, large=2_000).run(_KILLS)
    assert report.wrong == [], report
    assert sum(report.kills.values()) == _KILLS
    assert report.transactions > 100
