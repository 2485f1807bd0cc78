"""A segment's ``.index``: some offsets and where their batches begin, in order of both.

An entry is (last offset of a batch, position of its first byte): on disk two int32, the offset relative to the
segment's base offset. Sparse: whoever looks up walks on from the position. Knows no file.
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_right
from collections.abc import Iterator
from typing import Final

from einmal.types import Offset, Position

ENTRY_SIZE: Final = 8
RELATIVE_OFFSET_MAX: Final = 2**31 - 1
"""How far a segment's last offset may be above its base offset."""


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
            raise ValueError(f"expected an offset index of a multiple of {ENTRY_SIZE} bytes, found {len(data)}")
        fields = array("i", data)
        if sys.byteorder == "little":
            fields.byteswap()
        index = cls(base_offset)
        index._offsets = array("q", [base_offset + relative for relative in fields[0::2]])
        index._positions = array("q", fields[1::2].tolist())
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

    def __iter__(self) -> Iterator[tuple[Offset, Position]]:
        return iter([(Offset(pair[0]), Position(pair[1])) for pair in zip(self._offsets, self._positions, strict=True)])

    def append(self, last_offset: Offset, position: Position) -> None:
        self._offsets.append(last_offset)
        self._positions.append(position)

    def lookup(self, offset: Offset) -> tuple[Position, Offset]:
        """Where to begin to walk to reach the batch that holds ``offset``, and the last offset of the batch there.

        Without an entry: the segment's beginning, and its base offset.
        """
        entry = bisect_right(self._offsets, offset) - 1
        if entry < 0:
            return Position(0), self._base_offset
        return Position(self._positions[entry]), Offset(self._offsets[entry])

    def floor(self, position: int) -> Position:
        """The last position in the index that is not above ``position``: a batch begins there."""
        entry = bisect_right(self._positions, position) - 1
        return Position(self._positions[entry]) if entry >= 0 else Position(0)

    def floor_before(self, position: int, entries: int) -> Position:
        """The position ``entries`` entries before that of ``floor``."""
        entry = bisect_right(self._positions, position) - 1 - entries
        return Position(self._positions[entry]) if entry >= 0 else Position(0)

    def truncate_to(self, offset: Offset) -> None:
        """Forget the entries at and above ``offset``."""
        entries = bisect_right(self._offsets, offset - 1)
        del self._offsets[entries:]
        del self._positions[entries:]
