"""Claims about examples/orders_and_shipments, by its README's own commands."""

from __future__ import annotations

import json
from datetime import datetime, timedelta

import pytest
from examples.orders_and_shipments.generate import Shop

from tests.examples.readme import ROOT, Reader, records_printed
from tests.spark.topics import values

pytestmark = [pytest.mark.spark, pytest.mark.long]

EXAMPLE = ROOT / "examples" / "orders_and_shipments"
HOUR = timedelta(hours=1)
DELAY = timedelta(minutes=10)


def test_every_order_is_answered_once_by_a_pipeline_that_is_killed(reader: Reader) -> None:
    reader.follow(EXAMPLE / "README.md", kill_in="pipeline.toml")
    shipped = values(reader.bootstrap, "orders-shipped")
    overdue = values(reader.bootstrap, "orders-overdue")
    in_time, too_late = expected(Shop(1))
    assert sorted(map(answer_of, shipped)) == in_time
    assert sorted(answer_of(value)[0] for value in overdue) == too_late
    assert len(shipped) + len(overdue) == records_printed(EXAMPLE / "README.md", "pipeline.toml")
    assert (reader.folder / "build/examples/orders.svg").read_text() == (EXAMPLE / "result.svg").read_text()


def answer_of(value: str) -> tuple[int, datetime | None]:
    told = json.loads(value)
    at = told.get("shipped_at")
    return told["order_id"], None if at is None else datetime.fromisoformat(at)


def expected(shop: Shop) -> tuple[list[tuple[int, datetime]], list[int]]:
    """Orders with the time of their shipment, and those for which none can come any more."""
    shipments = {event.order_id: event.at for event in shop.shipments}
    in_time, too_late = [], []
    watermark = min(max(event.at for event in events) for events in (shop.orders, shop.shipments)) - DELAY
    for order in shop.orders:
        shipped_at = shipments.get(order.order_id)
        if shipped_at is not None and shipped_at <= order.at + HOUR:
            in_time.append((order.order_id, shipped_at))
        elif order.at + HOUR < watermark:
            too_late.append(order.order_id)
    return sorted(in_time), sorted(too_late)
