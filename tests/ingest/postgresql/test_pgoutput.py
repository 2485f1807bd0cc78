from __future__ import annotations

import random
import tracemalloc
from struct import pack

import pytest

from einmal.ingest.postgresql.lsn import Lsn, lsn_text, parse_lsn
from einmal.ingest.postgresql.pgoutput import (
    UNCHANGED,
    BeginTransaction,
    CommitTransaction,
    DecodedMessage,
    DeletedRow,
    EmittedMessage,
    InsertedRow,
    MalformedMessage,
    RelationColumn,
    RelationMessage,
    ReplicationOrigin,
    TruncatedTables,
    TypeMessage,
    UpdatedRow,
    decode_message,
)
from tests.ingest.postgresql import messages

TABLE = RelationMessage(
    16384,
    "public",
    "orders",
    "d",
    (RelationColumn("id", messages.INT8, -1, True), RelationColumn("größe", messages.TEXT, 36, False)),
)
SAMPLES: list[tuple[bytes, DecodedMessage]] = [
    (messages.begin(2**63, 2**32 - 1, -5), BeginTransaction(Lsn(2**63), -5, 2**32 - 1)),
    (messages.commit(7, 9, 11), CommitTransaction(Lsn(7), Lsn(9), 11)),
    (messages.origin(3, "elsewhere"), ReplicationOrigin(Lsn(3), "elsewhere")),
    (messages.relation(TABLE), TABLE),
    (messages.type_of(77, "public", "mood"), TypeMessage(77, "public", "mood")),
    (messages.insert(1, ["1", None, "ä", b"\x00"]), InsertedRow(1, ("1", None, "ä", b"\x00"))),
    (messages.update(1, ["1", UNCHANGED]), UpdatedRow(1, None, None, ("1", UNCHANGED))),
    (messages.update(1, ["2"], key=["1"]), UpdatedRow(1, ("1",), None, ("2",))),
    (messages.update(1, ["2"], old=["1"]), UpdatedRow(1, None, ("1",), ("2",))),
    (messages.delete(1, key=["1", None]), DeletedRow(1, ("1", None), None)),
    (messages.delete(1, old=["1", "x"]), DeletedRow(1, None, ("1", "x"))),
    (messages.truncate(1, 2, cascade=True), TruncatedTables((1, 2), cascade=True, restart_identity=False)),
    (messages.truncate(3, restart_identity=True), TruncatedTables((3,), cascade=False, restart_identity=True)),
    (messages.emitted("p", b"\x00c", lsn=5), EmittedMessage(True, Lsn(5), "p", b"\x00c")),
]


@pytest.mark.parametrize(("data", "message"), SAMPLES, ids=lambda each: getattr(type(each), "__name__", ""))
def test_a_message_is_decoded(data: bytes, message: DecodedMessage) -> None:
    assert decode_message(data) == message


@pytest.mark.parametrize(("data", "message"), SAMPLES, ids=lambda each: getattr(type(each), "__name__", ""))
def test_a_cut_or_longer_message_is_malformed(data: bytes, message: DecodedMessage) -> None:
    for length in range(len(data)):
        with pytest.raises(MalformedMessage):
            decode_message(data[:length])
    with pytest.raises(MalformedMessage):
        decode_message(data + b"\x00")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"S",  # A streamed transaction, of version 2.
        b"b",
        pack(">cIch", b"I", 1, b"N", 32767),
        pack(">cIch", b"I", 1, b"N", -1),
        pack(">cIchci", b"I", 1, b"N", 1, b"t", 2**31 - 1),
        pack(">cIchci", b"I", 1, b"N", 1, b"t", -1),
        pack(">cIchc", b"I", 1, b"N", 1, b"x"),
        pack(">cIchcic", b"I", 1, b"N", 1, b"t", 1, b"\xff"),
        pack(">cIch", b"I", 1, b"K", 0),
        pack(">ciB", b"T", 2**31 - 1, 0),
        pack(">ciB", b"T", -1, 0),
        pack(">cBQQq", b"C", 1, 1, 2, 3),
        messages.relation(TABLE._replace(replica_identity="x")),
        messages.relation(TABLE).replace(b"\x00", b"\x01", 99),
    ],
)
def test_counts_lengths_and_tags_that_lie_are_refused_in_bounded_memory(data: bytes) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(MalformedMessage):
            decode_message(data)
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


def test_damaged_messages_are_decoded_or_malformed_and_nothing_else() -> None:
    chance = random.Random(20264)
    outcomes = {True: 0, False: 0}
    for _ in range(50_000):
        damaged = bytearray(chance.choice(SAMPLES)[0])
        for _ in range(chance.randint(1, 3)):
            damaged[chance.randrange(len(damaged))] = chance.choice((0, 1, 0x7F, 0xFF, chance.randrange(256)))
        try:
            decode_message(bytes(damaged))
            outcomes[True] += 1
        except MalformedMessage:
            outcomes[False] += 1
    assert min(outcomes.values()) > 1_000


def test_an_lsn_is_written_as_the_server_writes_it() -> None:
    assert lsn_text(0x16B374D848) == "16/B374D848"
    assert parse_lsn("16/B374D848") == 0x16B374D848
    assert parse_lsn("0/0") == 0
    for text in ("", "16", "16/", "/1", "123456789/0", "0/x", "0/1\n", None, 5):
        with pytest.raises(ValueError, match="not an LSN"):
            parse_lsn(text)
