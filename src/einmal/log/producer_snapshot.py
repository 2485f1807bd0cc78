"""A ``.snapshot`` file, in Apache Kafka's format, of a log that may know hundreds of thousands of producers.

Clients decide how many there are, and how often a snapshot is taken: at each roll of a segment and at each checkpoint.
To pack all of them then would stop the event loop. So the ``SnapshotTable`` has each entry packed, as of its last
change, and a ``SnapshotPicture`` is a list of the table's chunks, which costs next to nothing and never changes: the
table copies a chunk that a picture has before it writes there. To join the chunks and to compute their CRC may then
take its time, in the background.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

from google_crc32c import value as crc32c

from einmal.types import ProducerId

_VERSION: Final = 1
_HEAD: Final = struct.Struct(">hIi")
_ENTRY: Final = struct.Struct(">qhiqiqiq")
_CRC_START: Final = 6
_CHUNK_ENTRIES: Final = 256
_CHUNK_BYTES: Final = _CHUNK_ENTRIES * _ENTRY.size


class SnapshotEntry(NamedTuple):
    """``timestamp``: when the last batch was appended, as Unix time. -1 where there is none."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int
    coordinator_epoch: int
    current_txn_first_offset: int


class SnapshotPicture(NamedTuple):
    """A table at one moment. ``shift_ms``: to be added to the timestamps; 0 unless the wall clock was set."""

    chunks: tuple[bytearray, ...]
    entries: int
    shift_ms: int

    def encode(self) -> bytes:
        """The bytes of the file; may take long, and may run in another thread."""
        tail = struct.pack(">i", self.entries) + b"".join(self.chunks if not self.shift_ms else self._shifted())
        return struct.pack(">hI", _VERSION, crc32c(tail)) + tail

    def _shifted(self) -> Iterator[bytes]:
        for chunk in self.chunks:
            for fields in _ENTRY.iter_unpack(chunk):
                entry = SnapshotEntry(*fields)
                yield _ENTRY.pack(*entry._replace(timestamp=max(0, entry.timestamp + self.shift_ms)))


def decode_entries(data: bytes) -> Iterator[SnapshotEntry]:
    """The entries of a ``.snapshot`` file. Raises ValueError, before the first one, when it is not whole."""
    if len(data) < _HEAD.size:
        raise ValueError(f"expected a producer snapshot of >= {_HEAD.size} bytes, found {len(data)}")
    version, crc, count = _HEAD.unpack_from(data)
    if version != _VERSION:
        raise ValueError(f"expected a producer snapshot of version {_VERSION}, found {version}")
    computed = crc32c(data[_CRC_START:])
    if crc != computed:
        raise ValueError(f"expected CRC-32C {crc:08x} of a producer snapshot, found {computed:08x}")
    size = _HEAD.size + count * _ENTRY.size
    if len(data) != size:
        raise ValueError(f"expected {size} bytes of a snapshot of {count} producers, found {len(data)}")
    return map(SnapshotEntry._make, _ENTRY.iter_unpack(data[_HEAD.size :]))


class SnapshotTable:
    """Packed entries in chunks, each entry in the slot that ``add`` has returned."""

    def __init__(self) -> None:
        self._chunks: list[bytearray] = []
        # Whether no picture has the chunk.
        self._is_own: list[bool] = []
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, entry: SnapshotEntry) -> int:
        slot = self._count
        self._count += 1
        if slot % _CHUNK_ENTRIES == 0:
            self._chunks.append(bytearray())
            self._is_own.append(True)
        chunk = self._writable(slot // _CHUNK_ENTRIES)
        chunk += _ENTRY.pack(*entry)
        return slot

    def replace(self, slot: int, entry: SnapshotEntry) -> None:
        number, position = divmod(slot * _ENTRY.size, _CHUNK_BYTES)
        _ENTRY.pack_into(self._writable(number), position, *entry)

    def remove(self, slot: int) -> ProducerId | None:
        """Remove an entry. Returns the producer whose entry has its slot from now on; None: it was the last."""
        last = self._writable(len(self._chunks) - 1)
        moved = SnapshotEntry(*_ENTRY.unpack_from(last, len(last) - _ENTRY.size))
        self._count -= 1
        del last[-_ENTRY.size :]
        if not last:
            self._chunks.pop()
            self._is_own.pop()
        if slot == self._count:
            return None
        self.replace(slot, moved)
        return ProducerId(moved.producer_id)

    def picture(self, shift_ms: int) -> SnapshotPicture:
        """The table as it is now."""
        self._is_own = [False] * len(self._chunks)
        return SnapshotPicture(tuple(self._chunks), self._count, shift_ms)

    def _writable(self, number: int) -> bytearray:
        if not self._is_own[number]:
            self._chunks[number] = self._chunks[number][:]
            self._is_own[number] = True
        return self._chunks[number]
