"""The numbers that a node counts while it works: ``monitoring`` reads them, nothing else does.

An event costs an addition or two, whether anybody looks or not; the time of a request is taken only where
metrics.listeners is set. The number of counters is bounded by what the node has anyway: topics, APIs, results. Nothing
that a client can name makes one.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import Final

_WINDOW_S: Final = 60.0
"""Quantiles are of the last one to two windows."""
TIMES_MS: Final = tuple(round(0.05 * 1.3**step, 3) for step in range(60))
"""Upper bounds of the buckets of request times: 50 microseconds to four minutes, 30 % apart."""
PHASE_SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class Histogram:
    """Counts by upper bounds, which are inclusive; the last count is of what is above all of them."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value


class TopicCounts:
    """One topic's, or those of all topics that were here. Appends count where they are led."""

    __slots__ = (
        "bytes_in",
        "bytes_out",
        "duplicates",
        "failed_fetches",
        "failed_produces",
        "fenced",
        "fetches",
        "gaps",
        "markers",
        "messages_in",
        "partitions",
        "produces",
        "replication_bytes_in",
        "replication_bytes_out",
    )

    def __init__(self) -> None:
        self.partitions = 0
        """Partitions that are open here now."""
        self.messages_in = self.bytes_in = self.bytes_out = 0
        self.replication_bytes_in = self.replication_bytes_out = 0
        self.produces = self.failed_produces = self.fetches = self.failed_fetches = 0
        self.duplicates = 0
        """Batches that were here already, and were acknowledged as the first copy."""
        self.fenced = 0
        """Batches of a producer's earlier epoch, refused."""
        self.gaps = 0
        """Batches whose sequence does not follow the last one, refused."""
        self.markers = 0

    def add(self, other: TopicCounts) -> None:
        for name in self.__slots__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


class CountedTopics:
    """The counts of the topics with partitions here, by name."""

    def __init__(self) -> None:
        self._topics: dict[str, TopicCounts] = {}
        self.former = TopicCounts()
        """The sums of the topics that were here."""

    def opened(self, topic: str) -> TopicCounts:
        """A partition of a topic is opened: the counts of its topic."""
        counts = self._topics.get(topic)
        if counts is None:
            counts = self._topics[topic] = TopicCounts()
        counts.partitions += 1
        return counts

    def closed(self, topic: str) -> None:
        """A partition of a topic is no more here. Without partitions here the topic has no counts of its own."""
        counts = self._topics[topic]
        counts.partitions -= 1
        if not counts.partitions:
            self.former.add(self._topics.pop(topic))

    def __iter__(self) -> Iterator[tuple[str, TopicCounts]]:
        return iter(list(self._topics.items()))


class _Answered:
    """Requests of one version of an API. ``earlier``: the buckets of the window before."""

    __slots__ = ("buckets", "count", "earlier", "total_ms")

    def __init__(self) -> None:
        self.count = 0
        self.total_ms = 0.0
        self.buckets = [0] * (len(TIMES_MS) + 1)
        self.earlier = [0] * (len(TIMES_MS) + 1)


class RequestCounts:
    """Requests that clients and nodes have sent, by API and version, and how long their answers took.

    ``stopwatch``: seconds since any moment.
    """

    def __init__(self, stopwatch: Callable[[], float]) -> None:
        self.stopwatch = stopwatch
        self._answered: dict[tuple[int, int], _Answered] = {}
        self._since = stopwatch()

    def answered(self, api_key: int, version: int, begun: float) -> None:
        """A request that has begun at ``begun``, by the stopwatch, has its answer."""
        milliseconds = (self.stopwatch() - begun) * 1000
        answered = self._answered.get((api_key, version))
        if answered is None:
            answered = self._answered[api_key, version] = _Answered()
        answered.count += 1
        answered.total_ms += milliseconds
        answered.buckets[bisect_left(TIMES_MS, milliseconds)] += 1

    def by_version(self) -> list[tuple[tuple[int, int], int]]:
        """How many, by API key and version."""
        return [(key, answered.count) for key, answered in sorted(self._answered.items())]

    def by_api(self) -> list[tuple[int, int, float]]:
        """API keys, how many, and their milliseconds in all."""
        return [
            (api_key, sum(version.count for version in versions), sum(version.total_ms for version in versions))
            for api_key, versions in self._versions()
        ]

    def quantiles(self, wanted: Sequence[float]) -> Iterator[tuple[int, float, float]]:
        """API key, quantile and milliseconds, of the last minute or two."""
        for api_key, versions in self._versions():
            windows = [window for version in versions for window in (version.buckets, version.earlier)]
            counts = [sum(bucket) for bucket in zip(*windows, strict=True)]
            if any(counts):
                yield from ((api_key, quantile, _quantile(counts, quantile)) for quantile in wanted)
        now = self.stopwatch()
        if now - self._since >= _WINDOW_S:
            self._since = now
            for version in self._answered.values():
                version.earlier, version.buckets = version.buckets, [0] * len(version.buckets)

    def _versions(self) -> Iterator[tuple[int, list[_Answered]]]:
        by_key = groupby(sorted(self._answered), key=lambda key: key[0])
        return ((api_key, [self._answered[key] for key in keys]) for api_key, keys in by_key)


def _quantile(counts: Sequence[int], quantile: float) -> float:
    """The upper bound of the bucket in which the quantile is."""
    rank, seen = quantile * sum(counts), 0
    for bound, count in zip(TIMES_MS, counts, strict=False):
        seen += count
        if count and seen >= rank:
            return bound
    return TIMES_MS[-1]


class ChannelCounts:
    """Requests of this node to controllers, and their answers."""

    __slots__ = ("bytes_in", "bytes_out", "requests", "responses")

    def __init__(self) -> None:
        self.requests = self.responses = self.bytes_out = self.bytes_in = 0


class TransactionCounts:
    """The work of the transaction coordinators of this broker, since it has started."""

    def __init__(self) -> None:
        self.results = dict.fromkeys(("commit", "abort", "timeout", "fenced"), 0)
        """Transactions by how they ended: an ``abort`` is their client's own."""
        self.phases = {phase: Histogram(PHASE_SECONDS) for phase in ("prepare", "markers", "complete")}
        """Durations of the ends of transactions, in seconds: until the decision is replicated; until each partition has
        its marker; until that is replicated, too."""
        self.fenced = 0
        """Requests of an earlier instance or epoch, refused."""
