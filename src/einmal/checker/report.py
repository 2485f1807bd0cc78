"""Figures of a history beside its anomalies: how far readers lagged behind, how often each value was consumed.

The worst real-time lag of a poll is the age of the oldest acknowledged value that its process had not read of that key
by then: a log that is up to date has a small one, a stale view a growing one.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from dataclasses import dataclass

from einmal.checker.history import Anomaly, History, Key, OpOutcome, Value
from einmal.checker.index import Index
from einmal.checker.log import find_allowed, find_anomalies


@dataclass(frozen=True, slots=True)
class HistoryReport:
    """``allowed``: shown, and no anomaly in a log. ``consumed``: so many values were read so often by groups' members.

    ``worst_realtime_lag`` in seconds. ``causes``: of unknown outcomes, by how many.
    """

    anomalies: tuple[Anomaly, ...]
    allowed: tuple[Anomaly, ...]
    worst_realtime_lag: float
    consumed: dict[int, int]
    causes: dict[str, int]


def report_on(history: History) -> HistoryReport:
    index = Index(history)
    causes = Counter(op.cause or "unknown" for op in history.ops if op.sends and op.outcome is OpOutcome.INFO)
    return HistoryReport(
        anomalies=tuple(find_anomalies(history)),
        allowed=tuple(find_allowed(history)),
        worst_realtime_lag=worst_realtime_lag(index),
        consumed=consume_counts(history),
        causes=dict(sorted(causes.items())),
    )


def consume_counts(history: History) -> dict[int, int]:
    """How many values were consumed once, twice, ... by members of consumer groups."""
    counts: Counter[tuple[Key, Value]] = Counter(
        (poll.key, value)
        for op in history.ops
        if op.subscribed and op.outcome is OpOutcome.OK
        for poll in op.polls
        for _, value in poll.records
    )
    return dict(sorted(Counter(counts.values()).items()))


def worst_realtime_lag(index: Index) -> float:
    """Return the worst lag of all polls; 0 where every reader had everything."""
    acknowledged: dict[Key, list[tuple[int, float]]] = defaultdict(list)
    for op in index.history.ops:
        for send in op.sends:
            offset = index.offset_of(send.key, send.value)
            if op.outcome is OpOutcome.OK and op.ended is not None and offset is not None:
                acknowledged[send.key].append((offset, op.ended))
    oldest = {key: _oldest_from(sorted(writes)) for key, writes in acknowledged.items()}
    positions: dict[tuple[int, Key], int] = {}
    worst = 0.0
    for op in index.history.ops:
        for poll in op.polls:
            reader = (op.process, poll.key)
            positions[reader] = max(positions.get(reader, -1), *(offset for offset, _ in poll.records), -1)
            offsets, ends = oldest.get(poll.key, ([], []))
            following = bisect_right(offsets, positions[reader])
            if following < len(ends):
                worst = max(worst, op.began - ends[following])
    return worst


def _oldest_from(writes: list[tuple[int, float]]) -> tuple[list[int], list[float]]:
    """Offsets, and for each the earliest end of its own and all later writes."""
    ends = [end for _, end in writes]
    for i in range(len(ends) - 2, -1, -1):
        ends[i] = min(ends[i], ends[i + 1])
    return [offset for offset, _ in writes], ends
