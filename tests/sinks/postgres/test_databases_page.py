"""Claims about docs/databases.md: its program, its declaration and its GRANT statements, as they stand."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

import psycopg
import pytest
from pyspark.sql import SparkSession

from einmal.declare.pipeline import parse
from einmal.pipeline import events
from einmal.pipeline.errors import PipelineError
from einmal.spark import write
from tests.sinks.postgres.rig import Rig
from tests.sinks.postgres.server import PASSWORD
from tests.spark.topics import create, fill
from tests.suite.shared import unique

pytestmark = [pytest.mark.spark, pytest.mark.slow]

PAGE: Final = Path(__file__).parents[3] / "docs" / "databases.md"
_BLOCK: Final = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_URL: Final = "postgresql://loader@db.example.com:5432/shop"


def blocks(language: str) -> list[str]:
    section = PAGE.read_text().partition("\n## PostgreSQL\n")[2].partition("\n## ")[0]
    return [text for found, text in _BLOCK.findall(section) if found == language]


@pytest.fixture
def page(rig: Rig, bootstrap: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """What the page calls the reader's own, and what it is here."""
    topic = unique("orders")
    create(bootstrap, topic)
    fill(bootstrap, topic, range(12))
    monkeypatch.setenv("POSTGRES_PASSWORD", PASSWORD)
    return {
        "subscribe": topic,
        "checkpoints/orders": str(tmp_path / "checkpoint"),
        "127.0.0.1:9092": bootstrap,
        _URL: rig.server.url_of(rig.database),
        '"subscribe", "orders"': f'"subscribe", "{topic}"',
        'subscribe = "orders"': f'subscribe = "{topic}"',
        "    .start()": "    .trigger(availableNow=True)\n    .start()",
        "orders-to-postgres": unique("orders-to-postgres"),
    }


def _own(text: str, page: dict[str, str]) -> str:
    for theirs, ours in page.items():
        text = text.replace(theirs, ours) if theirs != "subscribe" else text
    return text


def test_the_program_of_the_page_upserts_the_last_value_of_every_key(
    page: dict[str, str], rig: Rig, spark: SparkSession
) -> None:
    (program,) = blocks("python")
    variables: dict[str, Any] = {}
    exec(compile(_own(program, page), str(PAGE), "exec"), variables)
    variables["query"].awaitTermination()
    # Keys are k0 to k4, values the numbers; each key is in one partition.
    assert rig.rows("SELECT id, state FROM orders ORDER BY id") == [
        ("k0", "10"), ("k1", "11"), ("k2", "7"), ("k3", "8"), ("k4", "9"),
    ]  # fmt: skip
    _, statement = blocks("sql")
    ((_, _, records, _, end),) = rig.rows(statement)
    assert records == 12 and sum(end[0][page["subscribe"]].values()) == 12
    assert rig.staging() == []


def test_the_declaration_of_the_page_is_one() -> None:
    (declaration,) = blocks("toml")
    declared = parse(declaration, {"POSTGRES_PASSWORD": PASSWORD}, {})
    (sink,) = declared.sinks
    assert (sink.kind, sink.options["mode"], sink.options["key"]) == ("postgres", "upsert", "id")
    assert PASSWORD not in repr(declared)


def test_the_permissions_of_the_page_suffice_for_append_and_less_does_not(rig: Rig) -> None:
    role = f"loader_{rig.database}"
    statements, _ = blocks("sql")
    for each in (
        f"CREATE ROLE {role} LOGIN PASSWORD '{PASSWORD}'",
        "REVOKE ALL ON SCHEMA public FROM PUBLIC",
        "CREATE SCHEMA sales",
        "CREATE TABLE sales.orders (id bigint)",
    ):
        rig.rows(each)
    with_role = rig.sink(None, user=role)
    ((what, hint),) = with_role.problems("p", None)
    assert "may not create tables in schema public" in what and hint.startswith("GRANT USAGE, CREATE ON SCHEMA public")
    ((what, hint),) = rig.sink(None, schema="einmal").problems("p", None)
    assert (what, hint) == ("schema einmal does not exist", "CREATE SCHEMA einmal AUTHORIZATION admin")
    rig.rows("CREATE SCHEMA einmal")
    # The table of the records, made by somebody else.
    assert rig.sink(None, schema="einmal").problems("p", None) == []
    granted = statements.replace("loader", role).replace("DATABASE shop", f"DATABASE {rig.database}")
    options = rig.options(None, schema="einmal", table="sales.orders", user=role)

    def save() -> None:
        write(rig.spark.range(5)).format("postgres").options(**options).save()

    for each in granted.split(";")[:-2]:
        rig.rows(each)
    with pytest.raises(Exception, match="insufficient_privilege|permission denied"):
        save()
    rig.rows(granted.split(";")[-2])
    save()
    assert rig.rows("SELECT count(*) FROM sales.orders") == [(5,)]
    url = rig.server.url_of(rig.database)
    with psycopg.connect(url, user=role, password=PASSWORD) as connection, pytest.raises(psycopg.Error) as caught:
        connection.execute("SELECT * FROM sales.orders")
    assert isinstance(caught.value, psycopg.errors.InsufficientPrivilege)


@pytest.mark.long
def test_the_events_of_a_batch_are_those_of_every_sink(rig: Rig) -> None:
    heard: list[events.Event] = []
    write(rig.spark.range(5)).format("postgres").options(**rig.options()).listener(heard.append).save()
    kinds = [type(each).__name__ for each in heard if not isinstance(each, events.PartitionWritten)]
    assert kinds == ["NameTaken", "OutputWritten", "BatchWritten", "TransactionEnded"]


@pytest.mark.long
def test_a_write_without_a_name_leaves_nothing_behind(rig: Rig) -> None:
    rig.rows("CREATE TABLE numbers (id bigint CHECK (id < 3))")
    write(rig.spark.range(3)).format("postgres").options(**rig.options()).save()
    with pytest.raises(PipelineError, match="check_violation"):
        write(rig.spark.range(5)).format("postgres").options(**rig.options()).save()
    assert rig.rows("SELECT id FROM numbers ORDER BY id") == [(0,), (1,), (2,)]
    assert rig.rows("SELECT * FROM einmal_commits") == []
    assert rig.staging() == []
