"""Streams that no server should send, and the skipping of what was ingested: on messages made by hand."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence

import pytest

from einmal.ingest.postgresql.changes import ChangeStream
from einmal.ingest.postgresql.lsn import Lsn
from einmal.ingest.postgresql.pgoutput import UNCHANGED, MalformedMessage, RelationColumn, RelationMessage
from einmal.ingest.postgresql.position import DatabaseSnapshot, StreamPosition
from einmal.ingest.postgresql.tables import AnnouncedTables, CatalogTable, Routing
from einmal.ingest.postgresql.values import UnreadableValue
from einmal.ingest.source import IngestRecord, SourceRefused
from einmal.schemas.debezium_format import UNAVAILABLE
from tests.ingest.postgresql import messages

ID = RelationColumn("id", messages.INT8, -1, True)
TABLE = RelationMessage(1, "public", "t", "d", (ID, RelationColumn("v", messages.TEXT, -1, False)))
START = StreamPosition(Lsn(0), 1)
ROUTING = Routing(prefix="p")


def tables(routing: Routing = ROUTING) -> AnnouncedTables:
    return AnnouncedTables(routing, lambda relation_id: CatalogTable(("id", "v", "w"), (23, 25, 25), ()))


def records(
    stream: Sequence[bytes], position: StreamPosition = START, known: AnnouncedTables | None = None
) -> tuple[list[IngestRecord], StreamPosition]:
    changes = ChangeStream(known or tables(), position)
    return list(changes.records((Lsn(number), data) for number, data in enumerate(stream))), changes.end


def transaction(lsn: int, *changes: bytes, xid: int = 7) -> list[bytes]:
    """Its commit record has five bytes."""
    return [messages.begin(lsn, xid), *changes, messages.commit(lsn, lsn + 5)]


def insert(number: int) -> bytes:
    return messages.insert(1, [str(number), "v"])


def ids(found: Sequence[IngestRecord]) -> list[int]:
    return [json.loads(each.key or b"")["id"] for each in found]


def test_what_lies_before_the_position_is_skipped_and_the_rest_is_not() -> None:
    stream = [
        *transaction(10, messages.relation(TABLE), insert(1)),
        *transaction(20, insert(2)),
        *transaction(30, insert(3)),
    ]
    found, end = records(stream, StreamPosition(Lsn(15), 1))
    assert ids(found) == [2, 3]
    assert end.lsn == 35


def test_a_stream_that_was_ingested_does_not_move_the_position_back() -> None:
    found, end = records(transaction(10, messages.relation(TABLE), insert(1)), StreamPosition(Lsn(99), 1))
    assert (found, end.lsn) == ([], 99)


def test_transactions_that_the_snapshot_sees_are_skipped_until_the_stream_has_passed_it() -> None:
    position = StreamPosition(Lsn(5), 1, DatabaseSnapshot(Lsn(25), 3, 9, frozenset({5})))
    stream = [
        *transaction(10, messages.relation(TABLE), insert(1), xid=4),
        *transaction(20, insert(2), xid=5),
        *transaction(30, insert(3), xid=8),
    ]
    found, end = records(stream, position)
    assert ids(found) == [2, 3]
    assert end == StreamPosition(Lsn(35), 1)


def test_changes_of_each_kind_are_numbered_and_keyed() -> None:
    other = TABLE._replace(relation_id=2, table="u", replica_identity="f")
    (found, _) = records(
        transaction(
            10,
            messages.relation(TABLE),
            messages.relation(other),
            insert(1),
            messages.update(1, ["1", "w"]),
            messages.update(1, ["2", UNCHANGED], key=["1", None]),
            messages.delete(1, key=["2", None]),
            messages.update(2, ["1", UNCHANGED], old=["1", "v"]),
            messages.delete(2, old=["1", "v"]),
            messages.truncate(1, 2),
        )
    )
    values = [None if each.value is None else json.loads(each.value) for each in found]
    assert [
        None if value is None else (value["source"]["table"], value["op"], value["before"], value["after"])
        for value in values
    ] == [
        ("t", "c", None, {"id": 1, "v": "v"}),
        ("t", "u", None, {"id": 1, "v": "w"}),
        ("t", "d", {"id": 1}, None),
        None,
        ("t", "c", None, {"id": 2, "v": UNAVAILABLE}),
        ("t", "d", {"id": 2}, None),
        None,
        ("u", "u", {"id": 1, "v": "v"}, {"id": 1, "v": "v"}),
        ("u", "d", {"id": 1, "v": "v"}, None),
        ("t", "t", None, None),
        ("u", "t", None, None),
    ]
    # Table u has no primary key here, and so no tombstones.
    assert [each.key for each in found] == [b'{"id":1}'] * 4 + [b'{"id":2}'] * 3 + [None] * 4
    orders = [
        (value["transaction"]["total_order"], value["transaction"]["data_collection_order"])
        for value in values
        if value
    ]
    assert orders == [(1, 1), (2, 2), (3, 3), (4, 4), (5, 5), (6, 1), (7, 2), (8, 6), (9, 3)]
    assert {value["transaction"]["id"] for value in values if value} == {"7:10"}


def test_a_key_that_changes_its_sign_alone_is_another_record_key() -> None:
    table = TABLE._replace(columns=(ID._replace(type_id=701), TABLE.columns[1]))
    changes = (messages.insert(1, ["0", "v"]), messages.update(1, ["-0", "v"], key=["0", None]))
    (found, _) = records(transaction(10, messages.relation(table), *changes))
    assert [(each.key, each.value is None) for each in found] == [
        (b'{"id":0.0}', False),
        (b'{"id":0.0}', False),
        (b'{"id":0.0}', True),
        (b'{"id":-0.0}', False),
    ]


def test_a_table_without_its_declared_key_is_reported_once_until_it_has_it() -> None:
    announced = tables(Routing(prefix="shop", keys={"public.t": (("nr",),)}))
    named = RelationMessage(1, "public", "t", "d", (ID._replace(name="nr"), TABLE.columns[1]))
    kinds = []
    for number, table in enumerate((TABLE, TABLE, named, TABLE)):
        stream = ChangeStream(announced, StreamPosition(Lsn(1), 1))
        sent = transaction(10 * number + 10, messages.relation(table), insert(number))
        list(stream.records((Lsn(1), each) for each in sent))
        kinds.append([each.kind for each in announced.take_notices() if each.kind == "declared key"])
    assert kinds == [["declared key"], [], [], ["declared key"]]


def test_a_value_that_is_in_no_old_row_is_unavailable_and_never_null() -> None:
    # Of a partition with another replica identity than the table that it is published as: what the log lacks is null.
    full = TABLE._replace(relation_id=2, table="u", replica_identity="f")
    (found, _) = records(
        transaction(
            10,
            messages.relation(TABLE),
            messages.relation(full),
            messages.update(1, ["2", UNCHANGED], key=["1", "v"]),
            messages.update(2, ["1", UNCHANGED], old=["1", None]),
        )
    )
    after = [json.loads(each.value)["after"] for each in found if each.value is not None]
    assert after == [None, {"id": 2, "v": "v"}, {"id": 1, "v": UNAVAILABLE}]


def test_a_schema_change_is_described() -> None:
    known = tables()
    now = RelationMessage(
        1, "public", "t", "f", (ID._replace(type_id=messages.TEXT), RelationColumn("w", 20, -1, True))
    )
    records(transaction(10, messages.relation(TABLE)), known=known)
    records(transaction(20, messages.relation(now)), known=known)
    records(transaction(30, messages.relation(now._replace(schema="archive"))), known=known)
    assert [each.text for each in known.take_notices()] == [
        "public.t has changed: column w (type 20) added; column v dropped; column id is (type 25), was (type 20);"
        " replica identity 'f', was 'd'",
        "archive.t has changed: it was public.t: its records go to another topic",
    ]


@pytest.mark.parametrize(
    "stream",
    [
        [insert(1)],
        [messages.begin(1, 1)],
        [messages.begin(1, 1), messages.begin(2, 2)],
        [messages.commit(1, 2)],
        [messages.begin(1, 1), messages.commit(2, 3)],
        [messages.begin(1, 1), messages.commit(1, 1)],
        [*transaction(20), *transaction(10)],
        [*transaction(20), *transaction(20)],
        transaction(1, insert(1)),
        transaction(1, messages.truncate(5)),
        transaction(1, messages.relation(TABLE), messages.insert(1, ["1"])),
        transaction(1, messages.relation(TABLE), messages.update(1, ["1", "v"], key=["1"])),
        transaction(1, messages.emitted("prefix", b"content")),
    ],
)
def test_a_stream_that_is_torn_or_out_of_order_is_malformed(stream: list[bytes]) -> None:
    with pytest.raises(MalformedMessage):
        records(stream)


def test_each_reading_announces_its_tables_anew() -> None:
    known = tables()
    records(transaction(10, messages.relation(TABLE), insert(1)), known=known)
    with pytest.raises(MalformedMessage, match="not announced"):
        records(transaction(20, insert(1)), known=known)


def test_a_repeated_announcement_is_no_schema_change() -> None:
    known = tables()
    wider = TABLE._replace(columns=(*TABLE.columns, RelationColumn("w", messages.TEXT, -1, False)))
    stream = [*transaction(10, messages.relation(TABLE)), *transaction(20, messages.relation(wider))]
    records(stream, known=known)
    assert len(known.take_notices()) == 1
    records(stream, StreamPosition(Lsn(25), 1), known)
    records(transaction(30, messages.relation(wider)), known=known)
    assert known.take_notices() == []


@pytest.mark.parametrize(("kind", "text"), [(20, "1_0"), (20, " 1"), (20, "9" * 30), (16, "x"), (17, "00"), (701, "x")])
def test_a_text_that_its_type_does_not_print_is_unreadable(kind: int, text: str) -> None:
    table = TABLE._replace(columns=(ID._replace(type_id=kind),))
    with pytest.raises(UnreadableValue):
        records(transaction(1, messages.relation(table), messages.insert(1, [text])))


def test_a_key_that_is_not_in_the_log_is_refused() -> None:
    with pytest.raises(UnreadableValue, match="key"):
        records(transaction(1, messages.relation(TABLE), messages.update(1, [UNCHANGED, "v"])))


def test_an_outbox_without_its_columns_is_refused() -> None:
    known = tables(Routing(prefix="p", outbox=frozenset({"public.t"})))
    with pytest.raises(SourceRefused, match="has no column aggregatetype"):
        records(transaction(1, messages.relation(TABLE)), known=known)


def test_shuffled_messages_are_whole_transactions_or_malformed() -> None:
    chance = random.Random(7)
    sound = [part for lsn in (10, 20, 30) for part in transaction(lsn, messages.relation(TABLE), insert(lsn), xid=lsn)]
    accepted = 0
    for _ in range(5_000):
        stream = list(sound)
        for _ in range(chance.randint(1, 3)):
            if chance.random() < 0.5:
                del stream[chance.randrange(len(stream))]
            else:
                first, second = chance.randrange(len(stream)), chance.randrange(len(stream))
                stream[first], stream[second] = stream[second], stream[first]
        try:
            found, end = records(stream)
        except MalformedMessage:
            continue
        accepted += 1
        positions = [json.loads(each.value or b"")["transaction"]["id"] for each in found]
        assert positions == sorted(positions)
        assert end.lsn in (0, 15, 25, 35)
    assert accepted > 50
