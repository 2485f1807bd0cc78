"""Silent damage to a file of a simulated disk: a bit flips, or its end is lost.

Only where it must be detected. No checksum covers the first 16 bytes of a batch (its offset and leader epoch), as in
Apache Kafka, and a log may end anywhere after what its checkpoint promises. The original bytes are kept, for the
operator who restores them.
"""

from __future__ import annotations

import random
from pathlib import PurePosixPath
from typing import Final

from einmal.log import checkpoint
from einmal.log.segment_files import LOG, file_name
from einmal.simulation.disk import HostDisk, Inode, SimulatedDisk
from einmal.wire.errors import WireError
from einmal.wire.record_batch import iter_headers

_UNCHECKED_BYTES: Final = 16
_RESTORED: Final = (LOG, ".checkpoint", "quorum-state", "meta.properties", "partition.metadata")
"""Suffixes of files that cannot be rebuilt."""


class Damage:
    """One damaged file."""

    def __init__(self, disk: SimulatedDisk, path: PurePosixPath, data: bytearray) -> None:
        self.path = path
        self._disk = disk
        self._inode = disk.inode(path)
        self._before = bytes(self._inode.data)
        self._size = len(data)
        self._write(data)

    def _write(self, data: bytes | bytearray) -> None:
        self._inode.data[:] = data
        self._inode.synced = len(data)

    def restore(self) -> None:
        """Restore the original bytes, unless the broker has rewritten the file; what was appended since stays."""
        if self.path.name.endswith(_RESTORED) and self._is_there():
            self._write(self._before + bytes(self._inode.data[self._size :]))

    def _is_there(self) -> bool:
        try:
            inode: Inode = self._disk.inode(self.path)
        except FileNotFoundError:
            return False
        return inode is self._inode


def inflict(disk: SimulatedDisk, view: HostDisk, directory: PurePosixPath, source: random.Random) -> Damage | None:
    """Damage a random file of a data directory; None: the drawn one cannot be damaged."""
    paths = [path for path in _files(view, directory) if view.read_file(path)]
    if not paths:
        return None
    logs = [path for path in paths if path.name.endswith(LOG)]
    path = source.choice(logs if logs and source.random() < 0.7 else paths)
    data = bytearray(view.read_file(path))
    is_log = path.name.endswith(LOG)
    if source.random() < 0.5:
        promised = _promised(view, path) if is_log else len(data)
        if not promised:
            return None
        del data[source.randrange(promised) :]
    else:
        positions = checked_positions(data) if is_log else range(len(data))
        if not positions:
            return None
        data[source.choice(positions)] ^= 1 << source.randrange(8)
    return Damage(disk, path, data)


def _files(view: HostDisk, directory: PurePosixPath) -> list[PurePosixPath]:
    files = []
    for name in view.list_directory(directory):
        # The recorded boot id decides what counts as torn: it is never damaged.
        if name.startswith("."):
            continue
        path = directory / name
        try:
            files += [path / child for child in view.list_directory(path)]
        except FileNotFoundError:
            files.append(path)
    return files


def _promised(view: HostDisk, path: PurePosixPath) -> int:
    """The bytes of a log that its checkpoint covers."""
    summary = checkpoint.load(view, path.parent)
    segments = () if summary is None else summary.segments
    sizes = {file_name(segment.base_offset, LOG): segment.size for segment in segments}
    return min(sizes.get(path.name, 0), len(view.read_file(path)))


def checked_positions(data: bytes | bytearray) -> list[int]:
    """The positions of a log's bytes that a checksum covers."""
    positions: list[int] = []
    try:
        for position, header in iter_headers(data):
            positions += range(position + _UNCHECKED_BYTES, position + header.size)
    except WireError:
        # A checkpoint that a kill has cut short.
        pass
    return positions
