"""``einmal ingest`` and its broker killed with -9, while an application repeats events in logs that are rotated."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

import pytest

from tests.ingest.campaign import NAME, IngestCampaign
from tests.ingest.writers import RotatedLog

pytestmark = [pytest.mark.system, pytest.mark.long]

_KILLS: Final = 5
_SEED: Final = 15


class RepeatedEvents(RotatedLog):
    """The same with events that the application writes again. ``written``: each event once."""

    def line(self) -> str:
        if self.written and self.random.random() < 0.3:
            return self.random.choice(self.written[-300:])
        self.written.append(json.dumps({"id": len(self.written), "text": "x" * self.random.choice((5, 200, 3_000))}))
        return self.written[-1]


class DeduplicationCampaign(IngestCampaign):
    log_writer = RepeatedEvents
    declared = (f"[ingest.{NAME}.deduplicate]", 'key = "value.id"', 'window = "1h"')


def test_each_event_is_written_once_although_the_source_repeats_it_and_whatever_is_killed(tmp_path: Path) -> None:
    report = DeduplicationCampaign(tmp_path, "files", _SEED).run(_KILLS)
    assert report.wrong == [], report
    assert report.records > 50
