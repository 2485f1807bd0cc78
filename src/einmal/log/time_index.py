"""A segment's ``.timeindex``: which timestamp the log had reached by which offset.

An entry is (largest timestamp so far, last offset of the batch that brought it): on disk an int64 in ms and an int32
relative to the segment's base offset. Timestamps strictly rise. Knows no file.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_right
from collections.abc import Iterator
from typing import Final

from einmal.types import Offset

_ENTRY: Final = struct.Struct(">qi")
ENTRY_SIZE: Final = _ENTRY.size


class TimeIndex:
    __slots__ = ("_base_offset", "_offsets", "_timestamps")

    def __init__(self, base_offset: Offset) -> None:
        self._base_offset = base_offset
        self._timestamps = array("q")
        self._offsets = array("q")

    @classmethod
    def decode(cls, base_offset: Offset, data: bytes) -> TimeIndex:
        """Raises ValueError when the size is not a whole number of entries."""
        if len(data) % ENTRY_SIZE:
            raise ValueError(f"expected a time index of a multiple of {ENTRY_SIZE} bytes, found {len(data)}")
        index = cls(base_offset)
        for timestamp, relative in _ENTRY.iter_unpack(data):
            index._timestamps.append(timestamp)
            index._offsets.append(base_offset + relative)
        return index

    def encode(self, first_entry: int = 0) -> bytes:
        """The file's bytes from the entry ``first_entry`` on."""
        base_offset = self._base_offset
        entries = zip(self._timestamps[first_entry:], self._offsets[first_entry:], strict=True)
        return b"".join([_ENTRY.pack(timestamp, offset - base_offset) for timestamp, offset in entries])

    def __len__(self) -> int:
        return len(self._timestamps)

    def __iter__(self) -> Iterator[tuple[int, Offset]]:
        return iter([(pair[0], Offset(pair[1])) for pair in zip(self._timestamps, self._offsets, strict=True)])

    def maybe_append(self, timestamp: int, last_offset: Offset) -> None:
        """Add an entry, unless the timestamp has been reached before or is none (-1)."""
        if timestamp > (self._timestamps[-1] if self._timestamps else -1):
            self._timestamps.append(timestamp)
            self._offsets.append(last_offset)

    def lookup(self, timestamp: int) -> Offset:
        """An offset before which nothing is as late as ``timestamp``; the segment's base offset if none is known."""
        entry = bisect_right(self._timestamps, timestamp) - 1
        return Offset(self._offsets[entry]) if entry >= 0 else self._base_offset

    def truncate_to(self, offset: Offset) -> None:
        """Forget the entries at and above ``offset``."""
        entries = bisect_right(self._offsets, offset - 1)
        del self._timestamps[entries:]
        del self._offsets[entries:]

    def last(self) -> tuple[int, Offset]:
        """The latest timestamp known and its offset; (-1, base offset) for an empty index."""
        if not self._timestamps:
            return -1, self._base_offset
        return self._timestamps[-1], Offset(self._offsets[-1])
