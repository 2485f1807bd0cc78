"""Claims about examples/outbox, by its README's own commands."""

from __future__ import annotations

import json
import sqlite3

import pytest
from examples.outbox.shop import order_of

from tests.examples.readme import ROOT, Reader
from tests.spark.topics import records, values

pytestmark = [pytest.mark.system, pytest.mark.long]

EXAMPLE = ROOT / "examples" / "outbox"


def test_every_order_has_one_event_however_often_shop_and_relay_are_killed(reader: Reader) -> None:
    reader.follow(EXAMPLE / "README.md")
    expected = [number for number in range(1, 3_001) if number % 10]
    with sqlite3.connect(reader.folder / "build/examples/shop.db") as database:
        assert [number for (number,) in database.execute("SELECT number FROM orders ORDER BY number")] == expected
        ((last,),) = database.execute("SELECT max(id) FROM outbox").fetchall()
    events = [json.loads(value) for value in values(reader.bootstrap, "shop-orders")]
    assert sorted(event["number"] for event in events) == expected
    assert all((event["customer"], event["cents"]) == order_of(event["number"]) for event in events)
    by_position = [json.loads(record.value or b"") for _, record in records(reader.bootstrap, "shop-outbox-positions")]
    assert by_position == sorted(set(by_position)) and by_position[-1] == last
    kills = json.loads((reader.folder / "build/examples/outbox.json").read_text())["kills"]
    assert {name for _, name in kills} == {"shop", "relay", "at-least-once relay"}
    assert "2,700 events in the outbox, 2,700 and " in (reader.folder / "build/examples/outbox.svg").read_text()
