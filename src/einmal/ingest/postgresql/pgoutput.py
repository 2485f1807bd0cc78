"""Messages of pgoutput, PostgreSQL's own output plugin for logical decoding, version 1 of its protocol. Pure.

Bytes come from a server, or from anybody who answers at its address: every count and length is checked against the
bytes that are there before anything is allocated by it. Integers are big-endian; strings end with a zero byte.
Source: "Logical Replication Message Formats" in PostgreSQL's manual. Streamed and prepared transactions belong to
versions 2 and 3, which are not asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum, auto
from struct import Struct
from types import MappingProxyType
from typing import Final, NamedTuple

from einmal.ingest.postgresql.lsn import Lsn


class MalformedMessage(Exception):
    """Bytes that are no message of pgoutput in version 1."""


class Unchanged(Enum):
    """The value of a column stored out of line (TOAST) that an update did not touch: not in the message."""

    UNCHANGED = auto()


UNCHANGED: Final = Unchanged.UNCHANGED

Value = str | bytes | None | Unchanged
"""Value of a column: in its type's text format, in its binary format, NULL, or not sent."""
Values = tuple[Value, ...]
"""In the order of the relation's columns."""


class BeginTransaction(NamedTuple):
    """``final_lsn``: of the commit record. ``commit_time_us``: since 2000-01-01 UTC. ``xid``: 32 bits, of the top-level
    transaction."""

    final_lsn: Lsn
    commit_time_us: int
    xid: int


class CommitTransaction(NamedTuple):
    """``end_lsn``: behind the commit record."""

    commit_lsn: Lsn
    end_lsn: Lsn
    commit_time_us: int


class ReplicationOrigin(NamedTuple):
    """Where the transaction was replicated from; ``commit_lsn`` is a position there."""

    commit_lsn: Lsn
    name: str


class RelationColumn(NamedTuple):
    """``in_identity``: part of the replica identity. ``type_id``: the OID of its type."""

    name: str
    type_id: int
    type_modifier: int
    in_identity: bool


class RelationMessage(NamedTuple):
    """A table as it was when the following changes of it were made. ``replica_identity``: "d" default, "n" nothing,
    "f" full, "i" index."""

    relation_id: int
    schema: str
    table: str
    replica_identity: str
    columns: tuple[RelationColumn, ...]


class TypeMessage(NamedTuple):
    """The name of a type that is not built in."""

    type_id: int
    schema: str
    name: str


class InsertedRow(NamedTuple):
    relation_id: int
    new: Values


class UpdatedRow(NamedTuple):
    """``key``: the old values of the replica identity (NULL elsewhere), if one of them changed. ``old``: the whole old
    row, of tables with replica identity full."""

    relation_id: int
    key: Values | None
    old: Values | None
    new: Values


class DeletedRow(NamedTuple):
    """``key`` or ``old``, as for UpdatedRow."""

    relation_id: int
    key: Values | None
    old: Values | None


class TruncatedTables(NamedTuple):
    relation_ids: tuple[int, ...]
    cascade: bool
    restart_identity: bool


class EmittedMessage(NamedTuple):
    """From pg_logical_emit_message."""

    transactional: bool
    lsn: Lsn
    prefix: str
    content: bytes


DecodedMessage = (
    BeginTransaction
    | CommitTransaction
    | ReplicationOrigin
    | RelationMessage
    | TypeMessage
    | InsertedRow
    | UpdatedRow
    | DeletedRow
    | TruncatedTables
    | EmittedMessage
)

_NULL: Final = ord("n")
_UNCHANGED: Final = ord("u")
_TEXT: Final = ord("t")
_BINARY: Final = ord("b")
_U8: Final = Struct(">B")
_I16: Final = Struct(">h")
_I32: Final = Struct(">i")
_U32: Final = Struct(">I")
_U64: Final = Struct(">Q")
_I64: Final = Struct(">q")


class _Reader:
    __slots__ = ("data", "position")

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.position = 1

    def number(self, kind: Struct) -> int:
        start, self.position = self.position, self.position + kind.size
        if self.position > len(self.data):
            raise MalformedMessage(f"{kind.size} bytes expected at {start} of {len(self.data)}")
        (value,) = kind.unpack_from(self.data, start)
        return int(value)

    def count(self, kind: Struct, size_min: int) -> int:
        """Read the number of elements that have at least ``size_min`` bytes each: no more than there can be."""
        count = self.number(kind)
        if not 0 <= count * size_min <= len(self.data) - self.position:
            raise MalformedMessage(f"{count} elements announced at {self.position} of {len(self.data)}")
        return count

    def bytes(self, length: int) -> bytes:
        start, self.position = self.position, self.position + length
        return self.data[start : self.position]

    def string(self) -> str:
        end = self.data.find(b"\x00", self.position)
        if end < 0:
            raise MalformedMessage(f"no end of the string at {self.position}")
        start, self.position = self.position, end + 1
        return _text(self.data[start:end])

    def tag(self) -> str:
        return chr(self.number(_U8))

    def lsn(self) -> Lsn:
        return Lsn(self.number(_U64))

    def values(self) -> Values:
        # The hot path of a stream: one pass without calls. A length of fewer than four bytes ends behind the data, too.
        data, end = self.data, len(self.data)
        values: list[Value] = []
        count, position = self.count(_I16, 1), self.position
        for _ in range(count):
            tag = data[position] if position < end else 0
            position += 1
            if tag == _NULL:
                values.append(None)
                continue
            if tag == _UNCHANGED:
                values.append(UNCHANGED)
                continue
            if tag not in (_TEXT, _BINARY):
                raise MalformedMessage(f"unknown kind of value {tag} at {position - 1} of {end}")
            start = position + 4
            position = start + int.from_bytes(data[position:start], "big")
            if position > end:
                raise MalformedMessage(f"a value is announced from {start} to {position} of {end}")
            values.append(_text(data[start:position]) if tag == _TEXT else data[start:position])
        self.position = position
        return tuple(values)


def decode_message(data: bytes) -> DecodedMessage:
    """One message, with its tag. Raises MalformedMessage."""
    tag = data[:1]
    decode = _DECODERS.get(tag)
    if decode is None:
        raise MalformedMessage(f"unknown message {tag!r}")
    reader = _Reader(data)
    message = decode(reader)
    if reader.position != len(data):
        raise MalformedMessage(f"{type(message).__name__} ends at {reader.position} of {len(data)} bytes")
    return message


def _begin(reader: _Reader) -> BeginTransaction:
    return BeginTransaction(reader.lsn(), reader.number(_I64), reader.number(_U32))


def _commit(reader: _Reader) -> CommitTransaction:
    if flags := reader.number(_U8):
        raise MalformedMessage(f"unknown flags of a commit: {flags}")
    return CommitTransaction(reader.lsn(), reader.lsn(), reader.number(_I64))


def _origin(reader: _Reader) -> ReplicationOrigin:
    return ReplicationOrigin(reader.lsn(), reader.string())


def _relation(reader: _Reader) -> RelationMessage:
    relation_id, schema, table, identity = reader.number(_U32), reader.string(), reader.string(), reader.tag()
    if identity not in "dnfi":
        raise MalformedMessage(f"unknown replica identity {identity!r}")
    # An empty name stands for pg_catalog.
    columns = tuple([_column(reader) for _ in range(reader.count(_I16, 10))])
    return RelationMessage(relation_id, schema or "pg_catalog", table, identity, columns)


def _column(reader: _Reader) -> RelationColumn:
    flags = reader.number(_U8)
    return RelationColumn(reader.string(), reader.number(_U32), reader.number(_I32), bool(flags & 1))


def _type(reader: _Reader) -> TypeMessage:
    return TypeMessage(reader.number(_U32), reader.string() or "pg_catalog", reader.string())


def _insert(reader: _Reader) -> InsertedRow:
    relation_id = reader.number(_U32)
    _expect(reader, "N")
    return InsertedRow(relation_id, reader.values())


def _update(reader: _Reader) -> UpdatedRow:
    relation_id, tag = reader.number(_U32), reader.tag()
    key = old = None
    if tag == "K":
        key = reader.values()
    elif tag == "O":
        old = reader.values()
    if tag in "KO":
        tag = reader.tag()
    if tag != "N":
        raise MalformedMessage(f"unknown part of an update {tag!r}")
    return UpdatedRow(relation_id, key, old, reader.values())


def _delete(reader: _Reader) -> DeletedRow:
    relation_id, tag = reader.number(_U32), reader.tag()
    if tag not in "KO":
        raise MalformedMessage(f"unknown part of a delete {tag!r}")
    values = reader.values()
    return DeletedRow(relation_id, values, None) if tag == "K" else DeletedRow(relation_id, None, values)


def _truncate(reader: _Reader) -> TruncatedTables:
    count, start = reader.number(_I32), reader.position + 1
    if not 0 <= count <= (len(reader.data) - start) // 4:
        raise MalformedMessage(f"{count} tables announced in {len(reader.data)} bytes")
    options = reader.number(_U8)
    relation_ids = tuple([reader.number(_U32) for _ in range(count)])
    return TruncatedTables(relation_ids, cascade=bool(options & 1), restart_identity=bool(options & 2))


def _message(reader: _Reader) -> EmittedMessage:
    flags = reader.number(_U8)
    lsn, prefix = reader.lsn(), reader.string()
    return EmittedMessage(bool(flags & 1), lsn, prefix, reader.bytes(reader.count(_I32, 1)))


def _expect(reader: _Reader, tag: str) -> None:
    actual_tag = reader.tag()
    if actual_tag != tag:
        raise MalformedMessage(f"{tag!r} expected, not {actual_tag!r}")


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise MalformedMessage(f"text is not UTF-8: {error}") from error


_DECODERS: Final[Mapping[bytes, Callable[[_Reader], DecodedMessage]]] = MappingProxyType(
    {
        b"B": _begin,
        b"C": _commit,
        b"O": _origin,
        b"R": _relation,
        b"Y": _type,
        b"I": _insert,
        b"U": _update,
        b"D": _delete,
        b"T": _truncate,
        b"M": _message,
    }
)
