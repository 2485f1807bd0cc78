"""Claims about Arrow rows as records."""

from __future__ import annotations

import pyarrow
import pytest

from einmal.sinks.kafka.arrow_job import prepared_rows

TWICE = 1_698_539_400_000_000
"""The clocks of Berlin show this instant's time twice on 29 October 2023. In microseconds."""


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe"])
def test_timestamps_of_every_zone_are_rounded_down_to_milliseconds(zone: str) -> None:
    times = [TWICE + 999, TWICE + 3_600_000_000, -1, 0, None]
    rows = pyarrow.record_batch({"value": ["v"] * 5, "timestamp": pyarrow.array(times, pyarrow.timestamp("us", zone))})
    found = prepared_rows(rows).column("timestamp").to_pylist()
    assert found == [None if each is None else each // 1_000 for each in times]
