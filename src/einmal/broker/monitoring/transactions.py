"""Samples of the transactions that are coordinated on this broker."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

from einmal.broker.monitoring.page import Page, labels
from einmal.broker.monitoring.parts import Monitored
from einmal.transactions.states import TransactionState

_AGES: Final = ((10, "under 10 s"), (60, "10 s to 1 min"), (300, "1 to 5 min"), (900, "5 to 15 min"))
_OLDEST: Final = "over 15 min"


def add_transactions(page: Page, node: Monitored) -> Iterator[None]:
    counts = node.transactions.counts
    for result, count in counts.results.items():
        page.add("einmal_txn_total", count, labels(result=result))
    for phase, histogram in counts.phases.items():
        page.add_histogram("einmal_txn_phase_seconds", histogram, "phase", phase)
    page.add("einmal_producer_fenced_total", counts.fenced, labels(cause="coordinator"))
    states = dict.fromkeys(TransactionState, 0)
    ages: Counter[str] = Counter()
    oldest_ms = 0
    now_ms = node.clock.now().monotonic_ms
    for runtime in node.transactions.runtimes():
        for transaction in () if runtime.shard is None else list(runtime.shard.transactions.values()):
            states[transaction.state] += 1
            if transaction.state is TransactionState.ONGOING:
                age_ms = max(0, now_ms - (transaction.started_at or now_ms))
                oldest_ms = max(oldest_ms, age_ms)
                ages[_class_of(age_ms / 1000)] += 1
            yield
    for state, count in states.items():
        page.add("einmal_txn_ids", count, labels(state=state.name.lower()))
    for age in (*(name for _seconds, name in _AGES), _OLDEST):
        page.add("einmal_txn_open_by_age", ages[age], labels(age=age))
    page.add("einmal_txn_oldest_open_seconds", oldest_ms / 1000)


def _class_of(seconds: float) -> str:
    return next((name for below, name in _AGES if seconds < below), _OLDEST)
