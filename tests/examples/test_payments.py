"""Claims about examples/payments, by its README's own commands."""

from __future__ import annotations

import json
from collections import defaultdict
from datetime import datetime, timedelta

import pytest
from examples.payments.generate import Payment, Stream

from tests.examples.readme import ROOT, Reader, records_printed
from tests.spark.topics import values

pytestmark = [pytest.mark.spark, pytest.mark.long]

EXAMPLE = ROOT / "examples" / "payments"
TEN_MINUTES = timedelta(minutes=10)


def test_a_killed_pipeline_evaluates_every_window_once(reader: Reader) -> None:
    reader.follow(EXAMPLE / "README.md", kill_in="pipeline.py")
    alerts = values(reader.bootstrap, "payment-alerts")
    assert sorted(map(alert_of, alerts)) == expected(Stream(1).payments)
    assert len(alerts) == records_printed(EXAMPLE / "README.md", "pipeline.py")
    assert (reader.folder / "build/examples/payments.svg").read_text() == (EXAMPLE / "result.svg").read_text()


Alert = tuple[str, str, datetime, int, int]


def alert_of(value: str) -> Alert:
    told = json.loads(value)
    since = datetime.fromisoformat(told["since"])
    return told["card"], told["reason"], since, told["payments"], told["largest"]


def expected(payments: list[Payment]) -> list[Alert]:
    """The rules once more, in plain Python, for the windows that the watermark has passed."""
    windows: dict[tuple[str, datetime], list[int]] = defaultdict(list)
    for payment in payments:
        since = payment.at.replace(minute=payment.at.minute // 10 * 10, second=0)
        windows[payment.card, since].append(payment.cents)
    watermark = max(payment.at for payment in payments) - TEN_MINUTES
    alerts = []
    for (card, since), amounts in windows.items():
        *others, largest = sorted(amounts)
        if since + TEN_MINUTES > watermark:
            continue
        if len(amounts) >= 12:
            alerts.append((card, "many payments", since, len(amounts), largest))
        elif len(amounts) >= 3 and largest > 10 * sum(others) / len(others):
            alerts.append((card, "large amount", since, len(amounts), largest))
    return sorted(alerts)
