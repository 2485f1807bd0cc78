from __future__ import annotations

import json
from typing import Any

import pytest

from einmal.ingest.postgresql.lsn import Lsn, end_of_records
from einmal.ingest.postgresql.pgoutput import BeginTransaction, RelationColumn
from einmal.ingest.postgresql.position import DatabaseSnapshot, StreamPosition, decode_position, parse_snapshot
from einmal.ingest.postgresql.tables import KnownKey, known_key
from einmal.ingest.source import SourceRefused

SNAPSHOT = DatabaseSnapshot(Lsn(1_000), 100, 110, frozenset({100, 105}))


SEGMENT, PAGE = 1 << 24, 8192


def transaction(xid: int, final_lsn: int = 500) -> BeginTransaction:
    return BeginTransaction(Lsn(final_lsn), 0, xid % (1 << 32))


def test_a_transaction_lies_before_the_position_if_its_commit_record_starts_before_it() -> None:
    position = StreamPosition(Lsn(500), 1)
    assert position.is_past(transaction(1, 499))
    assert not position.is_past(transaction(1, 500))


@pytest.mark.parametrize(("xid", "seen"), [(99, True), (100, False), (101, True), (105, False), (109, True)])
def test_a_snapshot_sees_what_had_ended(xid: int, seen: bool) -> None:
    assert SNAPSHOT.sees(transaction(xid)) is seen
    assert StreamPosition(Lsn(0), 1, SNAPSHOT).is_past(transaction(xid)) is seen


@pytest.mark.parametrize("xid", [110, 111, 2**31])
def test_a_snapshot_does_not_see_later_transactions(xid: int) -> None:
    assert not SNAPSHOT.sees(transaction(xid))


@pytest.mark.parametrize("epochs", [1, 2, 77])
def test_ids_are_compared_across_their_wraparound(epochs: int) -> None:
    wrap = epochs << 32
    snapshot = DatabaseSnapshot(Lsn(1_000), wrap - 5, wrap + 5, frozenset({wrap - 5, wrap + 1}))
    seen = {offset: snapshot.sees(transaction(wrap + offset)) for offset in (-9, -5, -4, 0, 1, 4, 5, 9)}
    assert seen == {-9: True, -5: False, -4: True, 0: True, 1: False, 4: True, 5: False, 9: False}


def test_a_commit_behind_the_snapshot_is_not_seen_whatever_its_id_is() -> None:
    assert not SNAPSHOT.sees(transaction(99, 1_000))


def test_the_snapshot_is_forgotten_once_the_stream_has_passed_it() -> None:
    position = StreamPosition(Lsn(400), 1, SNAPSHOT)
    assert position.moved(Lsn(999)) == StreamPosition(Lsn(999), 1, SNAPSHOT)
    assert position.moved(Lsn(1_000)) == StreamPosition(Lsn(1_000), 1)


@pytest.mark.parametrize("position", [StreamPosition(Lsn(2**40 + 5), 3), StreamPosition(Lsn(7), 1, SNAPSHOT)])
def test_a_position_survives_its_encoding(position: StreamPosition) -> None:
    assert decode_position(position.encode()) == position


def test_a_snapshot_is_read_as_the_server_prints_it() -> None:
    assert parse_snapshot("100:110:100,105", Lsn(1_000)) == SNAPSHOT
    assert parse_snapshot("7:7:", Lsn(1)) == DatabaseSnapshot(Lsn(1), 7, 7, frozenset())


@pytest.mark.parametrize(
    "position",
    [
        {},
        {"lsn": "0/1"},
        {"lsn": 5, "timeline": 1},
        {"lsn": "0/1", "timeline": "1"},
        {"lsn": "0/1", "timeline": True},
        {"lsn": "0/1", "timeline": 1, "snapshot": []},
        {"lsn": "0/1", "timeline": 1, "snapshot": {"lsn": "0/1", "xmin": 1, "xmax": 1, "running": 5}},
        {"lsn": "0/1", "timeline": 1, "snapshot": {"lsn": "0/1", "xmin": -1, "xmax": 1, "running": []}},
        {"lsn": "0/1", "timeline": 1, "snapshot": {"lsn": "0/1", "xmin": 1, "xmax": 1, "running": ["x"]}},
    ],
)
def test_a_position_of_something_else_is_no_position(position: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="not an? "):
        decode_position(position)


def test_keys_of_tables_are_part_of_the_position_and_older_positions_have_none() -> None:
    known = {7: KnownKey("names", "types", (0, 2), ("id", "line")), 9: KnownKey("", "", (), ())}
    position = StreamPosition(Lsn(500), 1, SNAPSHOT, known)
    assert decode_position(json.loads(json.dumps(position.encode()))) == position
    assert decode_position({"lsn": "0/1F4", "timeline": 1}).keys == {}
    assert position.moved(Lsn(2_000)).keys == known


@pytest.mark.parametrize(
    "keys",
    [
        [],
        {"x": [[], [], []]},
        {"7": ["", "", [0], []]},
        {"7": ["", "", [0], [1]]},
        {"7": ["", 5, [0], ["id"]]},
        {"7": ["", "", [-1], ["id"]]},
        {"7": [["id"], [23], [0]]},
        {"7": 1},
    ],
)
def test_keys_that_no_release_has_recorded_are_refused(keys: Any) -> None:
    with pytest.raises(ValueError, match="not keys"):
        decode_position({"lsn": "0/1F4", "timeline": 1, "keys": keys})


def test_a_position_does_not_grow_with_the_columns_of_tables() -> None:
    columns = [RelationColumn(f"a_column_with_a_long_name_{number}", 25, -1, True) for number in range(60)]
    one = known_key(columns, [columns[7].name])
    position = StreamPosition(Lsn(500), 1, None, dict.fromkeys(range(16_384, 17_384), one))
    assert len(json.dumps(position.encode())) < 100_000
    assert one != known_key([columns[1], columns[0], *columns[2:]], [columns[7].name])
    assert one.types == known_key([columns[0]._replace(name="x"), *columns[1:]], [columns[7].name]).types
    assert one.types != known_key([columns[0]._replace(type_id=20), *columns[1:]], [columns[7].name]).types


def test_a_position_with_too_many_keys_is_refused_with_ways_to_have_fewer() -> None:
    position = StreamPosition(Lsn(500), 1, None, {number: KnownKey("", "", (0,), ("id",)) for number in range(20_000)})
    with pytest.raises(SourceRefused, match="20000 tables whose keys the log lacks") as refused:
        position.encode()
    assert "message.key.columns" in refused.value.hint


@pytest.mark.parametrize(
    ("end", "records"),
    [
        (5 * SEGMENT + 3 * PAGE + 24, 5 * SEGMENT + 3 * PAGE),
        (5 * SEGMENT + 40, 5 * SEGMENT),
        (5 * SEGMENT + 3 * PAGE + 32, 5 * SEGMENT + 3 * PAGE + 32),
        (5 * SEGMENT + 48, 5 * SEGMENT + 48),
        (5 * SEGMENT + 3 * PAGE, 5 * SEGMENT + 3 * PAGE),
    ],
)
def test_the_header_of_a_page_without_records_is_not_waited_for(end: int, records: int) -> None:
    assert end_of_records(Lsn(end), SEGMENT, PAGE) == records
