from __future__ import annotations

from typing import Any

import psycopg
import pytest

from einmal.ingest.postgresql.outbox import template_problem
from einmal.ingest.source import SourceRefused
from einmal.types import Header
from tests.ingest.postgresql.capture import Captured, options
from tests.sinks.postgres.server import PostgresServer

Client = psycopg.Connection[Any]
TABLE = "CREATE TABLE outbox (id uuid PRIMARY KEY, aggregatetype text, aggregateid text, type text, payload {payload})"
ID = "0b0a7c4e-0000-4000-8000-000000000001"


@pytest.mark.system
@pytest.mark.parametrize(
    ("payload", "text", "value"),
    [
        ("jsonb", '{"total": 5}', b'{"total": 5}'),
        ("bytea", "\\x00ff", b"\x00\xff"),
        ("text", "é", "é".encode()),
        ("text", None, None),
    ],
)
def test_an_inserted_row_is_an_event_and_its_deletion_is_none(
    client: Client, server: PostgresServer, database: str, payload: str, text: str | None, value: bytes | None
) -> None:
    captured = Captured(options(server, database, outbox__tables="public.outbox"))
    client.execute(TABLE.format(payload=payload))
    client.execute("CREATE TABLE orders (id int PRIMARY KEY)")
    insert = "INSERT INTO outbox VALUES (%s, %s, %s, %s, %s)"
    client.execute(insert, (ID, "order", "7", "OrderPlaced", text))
    (snapshot,) = captured.drain()
    with client.transaction():
        client.execute("INSERT INTO orders VALUES (7)")
        client.execute(insert, (ID.replace("1", "2"), "order", "7", "OrderPaid", text))
        client.execute("DELETE FROM outbox")
    (streamed,) = captured.drain()
    assert [each.topic for each in streamed.records] == ["shop.public.orders", "outbox.event.order"]
    events = [*snapshot.records, streamed.records[1]]
    assert [(each.topic, each.key, each.value) for each in events] == [("outbox.event.order", b"7", value)] * 2
    assert events[0].headers == (Header("id", ID.encode()), Header("type", b"OrderPlaced"))
    client.execute("TRUNCATE outbox")
    assert captured.changes() == []


@pytest.mark.system
def test_an_updated_row_of_an_outbox_is_reported_and_no_event(
    client: Client, server: PostgresServer, database: str
) -> None:
    captured = Captured(options(server, database, outbox__tables="public.outbox"))
    client.execute(TABLE.format(payload="text"))
    client.execute("INSERT INTO outbox VALUES (%s, 'a/ b', NULL, NULL, 'x')", (ID,))
    (snapshot,) = captured.drain()
    assert [(each.topic, each.key) for each in snapshot.records] == [("outbox.event.a__b", None)]
    client.execute("INSERT INTO outbox SELECT gen_random_uuid() FROM generate_series(1, 1999)")
    captured.drain()
    before = len(captured.notices)
    client.execute("UPDATE outbox SET payload = 'y'")
    assert captured.changes() == []
    # Once, however many rows.
    assert ["public.outbox was updated (2,000 rows)" in each.text for each in captured.notices[before:]] == [True]


@pytest.mark.system
def test_a_table_that_is_no_outbox_is_refused(client: Client, server: PostgresServer, database: str) -> None:
    captured = Captured(options(server, database, outbox__tables="public.t"))
    client.execute("CREATE TABLE t (id int PRIMARY KEY, type text)")
    with pytest.raises(SourceRefused, match="has no column aggregatetype, aggregateid, payload; it has id, type") as no:
        captured.drain()
    assert "leave the table out of the outbox tables" in no.value.hint
    past = Captured(options(server, database))
    past.drain()
    client.execute("INSERT INTO t VALUES (1, 'x')")
    assert [(each.table, each.key) for each in past.changes()] == [("t", {"id": 1})]


@pytest.mark.parametrize("template", ["outbox.event.{aggregatetype}", "x{aggregatetype}.events", "events"])
def test_a_template_with_a_prefix_or_without_a_variable_is_accepted(template: str) -> None:
    assert template_problem(template) is None


@pytest.mark.parametrize("template", ["", "{aggregatetype}", "__{aggregatetype}", "a b{aggregatetype}", "a b"])
def test_a_template_that_lets_an_event_choose_any_topic_is_not(template: str) -> None:
    assert template_problem(template)
