"""Claims about examples/payments, by its README's own commands."""

from __future__ import annotations

import json

import pytest
from examples.payments.check import alert_of, expected
from examples.payments.generate import Stream

from tests.examples.readme import ROOT, Reader, records_printed
from tests.spark.topics import values

pytestmark = [pytest.mark.spark, pytest.mark.long]

EXAMPLE = ROOT / "examples" / "payments"


def test_a_killed_pipeline_evaluates_every_window_once(reader: Reader) -> None:
    reader.follow(EXAMPLE / "README.md", kill_in="pipeline.py")
    alerts = values(reader.bootstrap, "payment-alerts")
    assert sorted(filter(None, (alert_of(json.loads(alert)) for alert in alerts))) == expected(Stream(1).payments)
    assert len(alerts) == records_printed(EXAMPLE / "README.md", "pipeline.py")
    assert (reader.folder / "build/examples/payments.svg").read_text() == (EXAMPLE / "result.svg").read_text()
