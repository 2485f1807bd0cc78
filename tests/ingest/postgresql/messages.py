"""Messages of pgoutput as a server encodes them: what the decoder is tested with."""

from __future__ import annotations

from collections.abc import Sequence
from struct import pack

from einmal.ingest.postgresql.pgoutput import UNCHANGED, RelationMessage, Value

INT8 = 20
TEXT = 25


def begin(final_lsn: int, xid: int, commit_time_us: int = 0) -> bytes:
    return pack(">cQqI", b"B", final_lsn, commit_time_us, xid)


def commit(commit_lsn: int, end_lsn: int, commit_time_us: int = 0) -> bytes:
    return pack(">cBQQq", b"C", 0, commit_lsn, end_lsn, commit_time_us)


def origin(commit_lsn: int, name: str) -> bytes:
    return pack(">cQ", b"O", commit_lsn) + _string(name)


def relation(message: RelationMessage) -> bytes:
    head = pack(">cI", b"R", message.relation_id) + _string(message.schema) + _string(message.table)
    columns = (
        pack(">B", each.in_identity) + _string(each.name) + pack(">Ii", each.type_id, each.type_modifier)
        for each in message.columns
    )
    return head + message.replica_identity.encode() + pack(">h", len(message.columns)) + b"".join(columns)


def type_of(type_id: int, schema: str, name: str) -> bytes:
    return pack(">cI", b"Y", type_id) + _string(schema) + _string(name)


def insert(relation_id: int, new: Sequence[Value]) -> bytes:
    return pack(">cI", b"I", relation_id) + b"N" + _values(new)


def update(
    relation_id: int, new: Sequence[Value], *, key: Sequence[Value] | None = None, old: Sequence[Value] | None = None
) -> bytes:
    before = b"" if key is None else b"K" + _values(key)
    before += b"" if old is None else b"O" + _values(old)
    return pack(">cI", b"U", relation_id) + before + b"N" + _values(new)


def delete(relation_id: int, *, key: Sequence[Value] | None = None, old: Sequence[Value] | None = None) -> bytes:
    before = b"" if key is None else b"K" + _values(key)
    before += b"" if old is None else b"O" + _values(old)
    return pack(">cI", b"D", relation_id) + before


def truncate(*relation_ids: int, cascade: bool = False, restart_identity: bool = False) -> bytes:
    options = cascade | restart_identity << 1
    return pack(f">ciB{len(relation_ids)}I", b"T", len(relation_ids), options, *relation_ids)


def emitted(prefix: str, content: bytes, *, transactional: bool = True, lsn: int = 0) -> bytes:
    return pack(">cBQ", b"M", transactional, lsn) + _string(prefix) + pack(">i", len(content)) + content


def _string(text: str) -> bytes:
    return text.encode() + b"\x00"


def _values(values: Sequence[Value]) -> bytes:
    return pack(">h", len(values)) + b"".join(map(_value, values))


def _value(value: Value) -> bytes:
    if value is None:
        return b"n"
    if value is UNCHANGED:
        return b"u"
    tag, data = (b"b", value) if isinstance(value, bytes) else (b"t", value.encode())
    return tag + pack(">i", len(data)) + data
