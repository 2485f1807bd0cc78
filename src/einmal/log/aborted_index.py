"""A segment's ``.txnindex``: the aborted transactions whose marker is in the segment.

An entry is 34 bytes: int16 version 0, int64 producer id, first offset, last offset (the marker's), and the last stable
offset once the transaction was over. In order of the last offset. Transactions without data are not in it (KIP-98).
Knows no file.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Iterator
from operator import attrgetter
from typing import Final, NamedTuple

from einmal.types import Offset, ProducerId
from einmal.wire.fetch import AbortedTransaction

_ENTRY: Final = struct.Struct(">hqqqq")
ENTRY_SIZE: Final = _ENTRY.size
_VERSION: Final = 0


class AbortedEntry(NamedTuple):
    producer_id: ProducerId
    first_offset: Offset
    last_offset: Offset
    last_stable_offset: Offset


_last_offset = attrgetter("last_offset")


class AbortedIndex:
    __slots__ = ("_entries",)

    def __init__(self) -> None:
        self._entries: list[AbortedEntry] = []

    @classmethod
    def decode(cls, data: bytes) -> AbortedIndex:
        """Raises ValueError for another version or a size that is not a whole number of entries."""
        if len(data) % ENTRY_SIZE:
            raise ValueError(f"expected an aborted index of a multiple of {ENTRY_SIZE} bytes, found {len(data)}")
        index = cls()
        for version, *fields in _ENTRY.iter_unpack(data):
            if version != _VERSION:
                raise ValueError(f"expected an aborted index of version {_VERSION}, found {version}")
            index._entries.append(AbortedEntry._make(fields))
        return index

    def encode(self, first_entry: int = 0) -> bytes:
        """The file's bytes from the entry ``first_entry`` on."""
        return b"".join([_ENTRY.pack(_VERSION, *entry) for entry in self._entries[first_entry:]])

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[AbortedEntry]:
        return iter(self._entries)

    def append(self, entry: AbortedEntry) -> None:
        assert not self._entries or self._entries[-1].last_offset < entry.last_offset, "markers come in order"
        self._entries.append(entry)

    def collect(self, first: Offset, end: Offset, transactions: list[AbortedTransaction]) -> bool:
        """Add those that touch the offsets from ``first`` to before ``end``; true: no later segment has more."""
        for entry in self._entries[bisect_left(self._entries, first, key=_last_offset) :]:
            if entry.first_offset < end:
                transactions.append(AbortedTransaction(entry.producer_id, entry.first_offset))
            if entry.last_stable_offset >= end:
                return True
        return False

    def truncate_to(self, offset: Offset) -> None:
        """Forget the transactions whose marker is at or above ``offset``."""
        del self._entries[bisect_left(self._entries, offset, key=_last_offset) :]
