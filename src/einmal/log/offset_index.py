"""A segment's ``.index``: some offsets and where their batches begin, in order of both.

An entry is (last offset of a batch, position of its first byte): on disk two int32, the offset relative to the
segment's base offset. Sparse: whoever looks up walks on from the position. Knows no file.
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_right
from typing import Final

from einmal.types import Offset, Position

ENTRY_SIZE: Final = 8


class OffsetIndex:
    __slots__ = ("_base_offset", "_offsets", "_positions")

    def __init__(self, base_offset: Offset) -> None:
        self._base_offset = base_offset
        self._offsets = array("q")
        self._positions = array("q")

    @classmethod
    def decode(cls, base_offset: Offset, data: bytes) -> OffsetIndex:
        """Raises ValueError when the size is not a whole number of entries."""
        if len(data) % ENTRY_SIZE:
            raise ValueError(f"offset index of {len(data)} bytes")
        fields = array("i", data)
        if sys.byteorder == "little":
            fields.byteswap()
        index = cls(base_offset)
        index._offsets.extend(base_offset + relative for relative in fields[0::2])
        index._positions.extend(fields[1::2])
        return index

    def encode(self, first_entry: int = 0) -> bytes:
        """The file's bytes from the entry ``first_entry`` on."""
        fields = array("i", bytes(ENTRY_SIZE * (len(self._offsets) - first_entry)))
        fields[0::2] = array("i", [offset - self._base_offset for offset in self._offsets[first_entry:]])
        fields[1::2] = array("i", self._positions[first_entry:])
        if sys.byteorder == "little":
            fields.byteswap()
        return fields.tobytes()

    def __len__(self) -> int:
        return len(self._offsets)

    def append(self, last_offset: Offset, position: Position) -> None:
        self._offsets.append(last_offset)
        self._positions.append(position)

    def lookup(self, offset: Offset) -> Position:
        """Where to begin to walk to reach the batch that holds ``offset``."""
        # The entry of the batch itself is found only when ``offset`` is its last: the one before is as good.
        entry = bisect_right(self._offsets, offset) - 1
        return Position(self._positions[entry]) if entry >= 0 else Position(0)

    def floor(self, position: int) -> Position:
        """The last position in the index that is not above ``position``: a batch begins there."""
        entry = bisect_right(self._positions, position) - 1
        return Position(self._positions[entry]) if entry >= 0 else Position(0)

    def position_of_entry(self, entry: int) -> Position:
        """The position of entry ``entry``; 0 for those before the first, as from the end with negative numbers."""
        entry = entry if entry >= 0 else len(self._positions) + entry
        return Position(self._positions[entry]) if entry >= 0 else Position(0)

    def truncate_to(self, offset: Offset) -> None:
        """Forget the entries at and above ``offset``."""
        entries = bisect_right(self._offsets, offset - 1)
        del self._offsets[entries:]
        del self._positions[entries:]
