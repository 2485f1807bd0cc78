"""Claims about the moments at which the demo's driver stands still."""

from __future__ import annotations

import io
import json
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest

from einmal.demo import pipeline
from einmal.demo.pipeline import Orders, Watcher
from einmal.demo.pipeline_names import AFTER_END_TXN, CONTROL, EXACTLY_ONCE
from einmal.pipeline import events

ORDERS = Orders("", "", 1, AFTER_END_TXN, kill_batch_id=2, wait_batch_id=1)


class Stood(Exception):
    pass


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[[], list[str]]:
    def stand_still() -> None:
        raise Stood

    monkeypatch.setattr(pipeline, "stand_still", stand_still)
    return lambda: [json.loads(line)["event"] for line in capsys.readouterr().out.splitlines()]


def test_the_control_query_stands_before_the_other_begins_its_last_batch(told: Callable[[], Any]) -> None:
    control_stands = threading.Event()
    control = Watcher(CONTROL, ORDERS, control_stands)
    counted = Watcher(EXACTLY_ONCE, ORDERS, control_stands)
    counted(events.BatchStarted(1, None, None))
    with pytest.raises(Stood):
        control(events.BatchWritten(2, 1))
    assert control_stands.is_set()
    counted(events.BatchStarted(2, None, None))
    with pytest.raises(Stood):
        counted(events.TransactionEnded(2, True))
    assert told() == [
        "BatchStarted",
        "BatchWritten",
        "AtKillPoint",
        "BatchStarted",
        "TransactionEnded",
        "AtKillPoint",
    ]


def test_it_waits_for_a_line_before_the_configured_end_txn(
    told: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    orders = io.StringIO("\n")
    monkeypatch.setattr(sys, "stdin", orders)
    watcher = Watcher(EXACTLY_ONCE, ORDERS, threading.Event())
    watcher(events.BatchWritten(0, 1))
    assert orders.tell() == 0
    watcher(events.BatchWritten(1, 1))
    assert orders.tell() == 1
    assert told() == ["BatchWritten", "BatchWritten", "BeforeEndTxn"]
