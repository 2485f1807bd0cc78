"""The campaign in short, for each source. ``make ingest-kills`` is the whole of it."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from tests.ingest.campaign import SOURCES, IngestCampaign

pytestmark = [pytest.mark.system, pytest.mark.slow]

_KILLS: Final = 3
_SEED: Final = 11


@pytest.mark.parametrize("source", [SOURCES[0], *(pytest.param(each, marks=pytest.mark.long) for each in SOURCES[1:])])
def test_each_line_and_row_is_ingested_once_under_kills(tmp_path: Path, source: str) -> None:
    report = IngestCampaign(tmp_path, source, _SEED).run(_KILLS)
    assert report.wrong == [], report
    assert sum(report.kills.values()) == _KILLS
    assert report.records > 50
