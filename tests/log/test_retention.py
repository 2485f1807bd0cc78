from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from einmal.log.config import LogConfig
from einmal.log.retention import expired_segments
from einmal.log.segment import Segment
from einmal.types import Offset


@dataclass
class Summary:
    """A segment as retention sees it."""

    end_offset: int
    size: int = 100
    max_timestamp: int = 1000


def expired(*segments: Summary, wall_ms: int = 1500, start: int = 0, limit: int = 10**9, **settings: int | str) -> int:
    config = LogConfig(**{"retention_ms": -1, "retention_bytes": -1, **settings})  # type: ignore[arg-type]
    found = cast(list[Segment], list(segments))
    return expired_segments(found, config, wall_ms=wall_ms, log_start_offset=Offset(start), limit=Offset(limit))


def test_without_limits_nothing_goes() -> None:
    assert expired(Summary(10), Summary(20)) == 0


def test_a_segment_goes_when_its_latest_record_is_older_than_the_limit() -> None:
    assert expired(Summary(10), Summary(20), wall_ms=2000, retention_ms=1000) == 0
    assert expired(Summary(10), Summary(20, max_timestamp=1001), wall_ms=2001, retention_ms=1000) == 1


def test_a_young_segment_protects_those_after_it() -> None:
    segments = (Summary(10), Summary(20, max_timestamp=9000), Summary(30))
    assert expired(*segments, wall_ms=5000, retention_ms=1000) == 1


def test_records_without_a_timestamp_are_never_too_old() -> None:
    assert expired(Summary(10, max_timestamp=-1), wall_ms=10**15, retention_ms=1) == 0


def test_by_size_only_so_much_goes_that_the_limit_remains() -> None:
    segments = [Summary(10 * number) for number in range(1, 6)]
    assert expired(*segments, retention_bytes=500) == 0
    assert expired(*segments, retention_bytes=401) == 0
    assert expired(*segments, retention_bytes=400) == 1
    assert expired(*segments, retention_bytes=250) == 2


def test_nothing_above_the_limit_goes() -> None:
    assert expired(Summary(10), Summary(20), Summary(30), retention_bytes=0, limit=20) == 2


def test_what_lies_before_the_log_start_goes_also_on_compacted_topics() -> None:
    segments = (Summary(10), Summary(20), Summary(30))
    assert expired(*segments, start=20, cleanup_policy="compact", retention_ms=1, wall_ms=10**9) == 2


def test_an_empty_segment_stays() -> None:
    assert expired(Summary(10), Summary(10, size=0), retention_bytes=0) == 1


def test_compacted_topics_lose_nothing_to_age_or_size() -> None:
    segments = (Summary(10), Summary(20), Summary(30))
    limits = {"retention_ms": 1, "retention_bytes": 0, "wall_ms": 10**9}
    assert expired(*segments, cleanup_policy="compact", **limits) == 0
    assert expired(*segments, cleanup_policy="compact,delete", **limits) == 3
