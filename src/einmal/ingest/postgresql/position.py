"""Positions in the log of one server, and which transactions lie before them. Pure.

A position has the end of the last transaction that was ingested, or of log without any change of the publication.
Transactions are whole, so there is no index in them. Commit records do not overlap: a transaction lies before the
position if and only if its commit record starts before it. The slot's own position follows the same rule.

Where the stream joins a snapshot, that is not enough. A transaction that commits behind the slot's position may be
visible in the snapshot: its rows have been ingested. Until the stream has passed the log of that time, the position has
the snapshot as well, and a transaction that is visible there is skipped by its id.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from einmal.ingest.postgresql.lsn import Lsn, lsn_text, parse_lsn
from einmal.ingest.postgresql.pgoutput import BeginTransaction
from einmal.ingest.postgresql.tables import KnownKey
from einmal.ingest.source import SourceRefused

_XID_BITS: Final = 32
_KEYS_MAX: Final = 900_000
"""Bytes of the keys in a position: a commit record is one record, of at most max.message.bytes."""
_KEY_BYTES: Final = 60
"""Size of one table in a position, without the names of its key."""


@dataclass(frozen=True, slots=True)
class DatabaseSnapshot:
    """Which transactions a snapshot sees; ids have 64 bits, of top-level transactions (pg_current_snapshot). ``lsn``:
    the end of the log after it was taken. ``running``: ids between xmin and xmax that had not ended."""

    lsn: Lsn
    xmin: int
    xmax: int
    running: frozenset[int]

    def sees(self, transaction: BeginTransaction) -> bool:
        """Return whether the snapshot sees a committed transaction."""
        if transaction.final_lsn >= self.lsn:
            return False
        # The stream has the lower half of an id. It is less than 2^31 away: the server stops before ids are further.
        distance = (transaction.xid - self.xmax) % (1 << _XID_BITS)
        xid = self.xmax + distance - (1 << _XID_BITS if distance >= 1 << _XID_BITS - 1 else 0)
        return xid < self.xmin or (xid < self.xmax and xid not in self.running)


@dataclass(frozen=True, slots=True)
class StreamPosition:
    """``timeline``: of the server that wrote the log up to ``lsn``. ``snapshot``: as long as the stream may repeat
    it. ``keys``: of tables whose key is not in the log, by OID, as they are known at ``lsn``."""

    lsn: Lsn
    timeline: int
    snapshot: DatabaseSnapshot | None = None
    keys: Mapping[int, KnownKey] = field(default_factory=dict)

    def is_past(self, transaction: BeginTransaction) -> bool:
        """Whether the transaction has been ingested."""
        if transaction.final_lsn < self.lsn:
            return True
        return self.snapshot is not None and self.snapshot.sees(transaction)

    def moved(self, lsn: Lsn) -> StreamPosition:
        """The position behind what ends at ``lsn``."""
        snapshot = self.snapshot
        return replace(self, lsn=lsn, snapshot=None if snapshot is None or snapshot.lsn <= lsn else snapshot)

    def encode(self) -> dict[str, Any]:
        """Raises SourceRefused for a position that is too large."""
        encoded: dict[str, Any] = {"lsn": lsn_text(self.lsn), "timeline": self.timeline}
        if self.snapshot is not None:
            encoded["snapshot"] = {
                "lsn": lsn_text(self.snapshot.lsn),
                "xmin": self.snapshot.xmin,
                "xmax": self.snapshot.xmax,
                "running": sorted(self.snapshot.running),
            }
        if self.keys:
            encoded["keys"] = {
                str(relation_id): [known.names, known.types, list(known.key), list(known.key_names)]
                for relation_id, known in sorted(self.keys.items())
            }
            # As the record has it: other characters than ASCII's take up to 12 bytes.
            size = sum(_KEY_BYTES + len(json.dumps(known.key_names)) for known in self.keys.values())
            if size > _KEYS_MAX:
                raise SourceRefused(
                    f"{len(self.keys)} tables whose keys the log lacks (REPLICA IDENTITY FULL, NOTHING) are too many "
                    f"for one ingester: its position has about {size} bytes",
                    "declare their keys (message.key.columns), ALTER TABLE ... REPLICA IDENTITY DEFAULT, or divide the "
                    "tables over several publications and ingesters",
                )
        return encoded


def decode_position(position: Mapping[str, Any]) -> StreamPosition:
    """Raises ValueError for what ``encode`` has not made."""
    snapshot = position.get("snapshot")
    return StreamPosition(
        parse_lsn(position.get("lsn")),
        _natural(position.get("timeline")),
        None if snapshot is None else _decode_snapshot(snapshot),
        _decode_keys(position.get("keys", {})),
    )


def _decode_keys(keys: Any) -> dict[int, KnownKey]:
    try:
        known_keys = {
            int(relation_id): KnownKey(
                _text(names), _text(types), tuple(map(_natural, key)), tuple(map(_text, columns))
            )
            for relation_id, (names, types, key, columns) in keys.items()
        }
    except (AttributeError, TypeError, ValueError) as error:
        raise ValueError(f"not keys of tables: {keys!r}") from error
    for known in known_keys.values():
        if len(known.key) != len(known.key_names):
            raise ValueError(f"not keys of tables: {keys!r}")
    return known_keys


def parse_snapshot(text: str, lsn: Lsn) -> DatabaseSnapshot:
    """Parse what pg_current_snapshot prints: ``xmin:xmax:id,id``. Raises ValueError."""
    xmin, xmax, running = text.split(":")
    return DatabaseSnapshot(lsn, int(xmin), int(xmax), frozenset(map(int, filter(None, running.split(",")))))


def _decode_snapshot(snapshot: Any) -> DatabaseSnapshot:
    if not isinstance(snapshot, Mapping) or not isinstance(snapshot.get("running"), list):
        raise ValueError(f"not a snapshot: {snapshot!r}")
    return DatabaseSnapshot(
        parse_lsn(snapshot.get("lsn")),
        _natural(snapshot.get("xmin")),
        _natural(snapshot.get("xmax")),
        frozenset(map(_natural, snapshot["running"])),
    )


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"not a text: {value!r}")
    return value


def _natural(number: Any) -> int:
    if not isinstance(number, int) or isinstance(number, bool) or number < 0:
        raise ValueError(f"not a number: {number!r}")
    return number
