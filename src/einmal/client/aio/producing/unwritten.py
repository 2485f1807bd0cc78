"""Counts and logs the records that a producer has given up: nobody has to await their futures."""

from __future__ import annotations

from collections import Counter
from typing import Final

from einmal.client.errors import KafkaError
from einmal.event_log import EventLog
from einmal.seams import Clock

_EVERY_MS: Final = 60_000
_TOPICS_MAX: Final = 5
_log = EventLog("einmal.client")


class UnwrittenRecords:
    """One line for the first records, then one a minute, and one at each flush and at the end for those since."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._counts: Counter[str] = Counter()
        self._error: KafkaError | None = None
        self._logged_ms: int | None = None

    def add(self, topic: str, count: int, error: KafkaError) -> None:
        """``count`` records of a topic got this error instead of an offset."""
        self._counts[topic] += count
        self._error = self._error or error
        now = self._clock.now().monotonic_ms
        if self._logged_ms is None or now - self._logged_ms >= _EVERY_MS:
            self._logged_ms = now
            self.log()

    def log(self) -> None:
        """Log what was not logged yet."""
        if self._error is None:
            return
        counted = self._counts.most_common()
        what = ", ".join(f"{count:,} of topic {topic}" for topic, count in counted[:_TOPICS_MAX])
        if rest := counted[_TOPICS_MAX:]:
            what += f", {sum(count for _, count in rest):,} of {len(rest):,} other topics"
        sentence = "Records without an acknowledgement: %(counts)s. The first error: %(error)s"
        _log.warning("records_unacknowledged", sentence, counts=what, error=self._error)
        self._counts.clear()
        self._error = None
