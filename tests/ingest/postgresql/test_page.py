"""Claims about docs/change-data-capture.md: its statements and its program, as they stand."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Final

import psycopg
import pytest

from einmal.client import Admin, NewTopic
from einmal.declare.pipeline import parse
from einmal.ingest.declaration import declared
from einmal.ingest.postgresql import PostgresSource
from einmal.ingest.postgresql.options import NAMES
from einmal.schemas.debezium_format import DELETED
from tests.ingest.postgresql import messages
from tests.ingest.postgresql.capture import PUBLICATION
from tests.ingest.postgresql.test_changes import TABLE, insert, records, transaction
from tests.ingest.sources import committed
from tests.interop.einmal_broker import EinmalBroker
from tests.sinks.postgres.server import PASSWORD, PostgresServer

PAGE: Final = Path(__file__).parents[3] / "docs" / "change-data-capture.md"
_BLOCK: Final = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(language: str) -> list[str]:
    return [text for found, text in _BLOCK.findall(PAGE.read_text()) if found == language]


@pytest.mark.system
@pytest.mark.slow
def test_the_program_of_the_page_ingests_what_its_publication_has(
    client: psycopg.Connection[Any],
    server: PostgresServer,
    database: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    grants, outbox = blocks("sql")
    client.execute(f"DROP PUBLICATION {PUBLICATION}")
    client.execute("CREATE TABLE orders (id int PRIMARY KEY)")
    client.execute("CREATE TABLE customers (id int PRIMARY KEY)")
    client.execute(grants.replace("'secret'", f"'{PASSWORD}'"))
    client.execute(outbox)
    client.execute("INSERT INTO orders VALUES (1)")
    client.execute("INSERT INTO outbox VALUES (gen_random_uuid(), 'order', '1', 'OrderPlaced', '{}')")
    broker = EinmalBroker(tmp_path / "broker")
    broker.start()
    try:
        with Admin({"bootstrap.servers": broker.bootstrap}) as admin:
            admin.create_topics([NewTopic(f"shop.public.{name}", num_partitions=1) for name in ("orders", "customers")])
        monkeypatch.setenv("POSTGRES_PASSWORD", PASSWORD)
        (program,) = blocks("python")
        program = program.replace("127.0.0.1:9092", broker.bootstrap).replace(".run()", ".run(available_now=True)")
        program = program.replace("db.example.com:5432/shop", f"127.0.0.1:{server.port}/{database}")
        exec(compile(program, str(PAGE), "exec"), {})
        client.execute("INSERT INTO orders VALUES (2)")
        exec(compile(program, str(PAGE), "exec"), {})
        (values,) = committed(broker.bootstrap, "shop.public.orders", 1)
    finally:
        broker.stop()
    assert [(json.loads(each)["op"], json.loads(each)["after"]) for each in values] == [
        ("r", {"id": 1}),
        ("c", {"id": 2}),
    ]


def test_the_declarations_of_the_page_are_valid() -> None:
    ingester, pipeline = blocks("toml")
    variables = {"POSTGRES_PASSWORD": PASSWORD}
    found = declared(ingester, variables, lambda path: "")
    assert found["shop"].kind == "postgresql"
    assert isinstance(found["shop"].source(), PostgresSource)
    (sink,) = parse(pipeline, variables, {}).sinks
    assert (sink.kind, sink.options["delete"]) == ("postgres", DELETED)


def test_the_page_lists_every_option() -> None:
    (table,) = re.findall(r"^\| option .*?\n\n", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    names = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    assert sorted(re.findall(r"`(.*?)`", " ".join(names))) == sorted(NAMES)


def test_a_record_has_the_documented_fields() -> None:
    (record,), _ = records(transaction(10, messages.relation(TABLE), insert(1)))
    value = json.loads(record.value or b"")
    (table,) = re.findall(r"^\| field .*?\n\n", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    rows = dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", table, re.MULTILINE))
    assert set(rows) == set(value)
    for part in ("source", "transaction"):
        for name in value[part]:
            assert f"`{name}`" in rows[part]
