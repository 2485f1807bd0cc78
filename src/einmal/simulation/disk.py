"""A disk in memory that knows what would survive a power cut.

A file has what is written and what of it is synced; a folder has its names, and which of them are synced. A power cut
asks the random source what becomes of the rest: kept, lost, or torn in the middle. The files belong to the machine, not
to the process: each incarnation of a broker has its own ``view``, which goes dead with it.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Final, TypeVar

from einmal.log.disk import Buffer
from einmal.simulation.loop import Host, SimulatedLoop
from einmal.simulation.trace import Trace

T = TypeVar("T")
_ROOT: Final = PurePosixPath("/")


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskFaults:
    """Times in seconds; probabilities are per call."""

    sync_min: float = 0.0002
    sync_max: float = 0.005
    slow_sync: float = 0.0
    slow_sync_max: float = 2.0
    sync_error: float = 0.0
    full: float = 0.0

    @property
    def is_reliable(self) -> bool:
        """Nothing fails; it may be slow."""
        return not self.sync_error and not self.full


RELIABLE: Final = DiskFaults()


class Inode:
    """A file, whatever its name."""

    __slots__ = ("data", "is_doomed", "lost_tail", "synced")

    def __init__(self) -> None:
        self.data = bytearray()
        self.synced = 0
        """So much of ``data`` is on the medium."""
        self.lost_tail = b""
        """Bytes of the medium's part that a truncation which is not synced has cut off."""
        self.is_doomed = False
        """A sync has failed: pages it should have written count as clean, and no later sync writes them."""


@dataclass(slots=True)
class _Folder:
    names: dict[str, Inode | _Folder]
    synced: dict[str, Inode | _Folder]
    steps: list[dict[str, Inode | _Folder]]
    """The names after each change since the last sync: what is found after a power cut is one of these."""


def _new_folder() -> _Folder:
    return _Folder({}, {}, [])


class SimulatedDisk:
    """One machine's disk."""

    def __init__(self, loop: SimulatedLoop, source: random.Random, trace: Trace, faults: DiskFaults = RELIABLE) -> None:
        self.loop = loop
        self.source = source
        self.trace = trace
        self.faults = faults
        self.boots = 1
        self._root = _new_folder()

    def view(self, host: Host) -> HostDisk:
        return HostDisk(self, host)

    def cut_power(self) -> None:
        """Everything that is not synced is kept, lost or torn."""
        self._lose(self._root)
        self.boots += 1
        self.trace.event(self.loop.time(), "power cut")

    def wipe(self) -> None:
        """The disk is another one, and empty."""
        self._root = _new_folder()
        self.trace.event(self.loop.time(), "wiped")

    def _lose(self, folder: _Folder) -> None:
        states = [folder.synced, *folder.steps]
        names = dict(states[self.source.randrange(len(states))])
        folder.names, folder.synced, folder.steps = names, dict(names), []
        for entry in names.values():
            if isinstance(entry, _Folder):
                self._lose(entry)
            else:
                self._tear(entry)

    def _tear(self, inode: Inode) -> None:
        if inode.lost_tail and self.source.random() < 0.5:
            inode.data[inode.synced :] = inode.lost_tail
            inode.synced = len(inode.data)
        unsynced = len(inode.data) - inode.synced
        if unsynced > 0 and (inode.is_doomed or (fate := self.source.random()) < 0.4):
            del inode.data[inode.synced :]
        elif unsynced > 0 and fate < 0.8:
            keep = inode.synced + self.source.randrange(unsynced + 1)
            if self.source.random() < 0.3:
                # The file has grown, but the blocks never came: zeros.
                inode.data[keep:] = bytes(len(inode.data) - keep)
            else:
                del inode.data[keep:]
        inode.synced = len(inode.data)
        inode.lost_tail = b""
        inode.is_doomed = False

    def folder(self, path: PurePosixPath) -> _Folder:
        folder = self._root
        for name in path.parts[1:]:
            entry = folder.names.get(name)
            if not isinstance(entry, _Folder):
                raise FileNotFoundError(2, f"no folder {path}")
            folder = entry
        return folder

    def inode(self, path: PurePosixPath) -> Inode:
        entry = self.folder(path.parent).names.get(path.name)
        if not isinstance(entry, Inode):
            raise FileNotFoundError(2, f"no file {path}")
        return entry

    @staticmethod
    def changed(folder: _Folder) -> None:
        """Remember the names as one of the states in which a power cut may leave them."""
        folder.steps.append(dict(folder.names))

    def sync(self, inode: Inode) -> None:
        if self.faults.sync_error and self.source.random() < self.faults.sync_error:
            inode.is_doomed = True
            raise OSError(5, "input/output error")
        if not inode.is_doomed:
            inode.synced = len(inode.data)
            inode.lost_tail = b""

    def take_space(self) -> None:
        """Somebody writes. Raises OSError where there is no room."""
        if self.faults.full and self.source.random() < self.faults.full:
            raise OSError(28, "no space left on device")

    def sync_time(self) -> float:
        faults = self.faults
        if faults.slow_sync and self.source.random() < faults.slow_sync:
            return self.source.uniform(faults.sync_max, faults.slow_sync_max)
        return self.source.uniform(faults.sync_min, faults.sync_max)


class HostDisk:
    """The seam as one process has it: dead with its host."""

    def __init__(self, disk: SimulatedDisk, host: Host) -> None:
        self._disk = disk
        self._host = host

    def _check(self) -> None:
        if not self._host.is_alive:
            raise OSError(5, "the process is dead")

    def open(self, path: PurePosixPath, *, create: bool = False) -> HostFile:
        self._check()
        folder = self._disk.folder(path.parent)
        entry = folder.names.get(path.name)
        if entry is None:
            if not create:
                raise FileNotFoundError(2, f"no file {path}")
            entry = folder.names[path.name] = Inode()
            self._disk.changed(folder)
        if isinstance(entry, _Folder):
            raise IsADirectoryError(21, f"{path} is a folder")
        return HostFile(self._disk, self._host, entry)

    def read_file(self, path: PurePosixPath) -> bytes:
        self._check()
        return bytes(self._disk.inode(path).data)

    def write_file(self, path: PurePosixPath, data: Buffer) -> None:
        self._check()
        self._disk.take_space()
        folder = self._disk.folder(path.parent)
        inode = Inode()
        inode.data += data
        inode.synced = len(inode.data)
        folder.names[path.name] = inode
        self._disk.changed(folder)
        self.sync_directory(path.parent)

    def exists(self, path: PurePosixPath) -> bool:
        self._check()
        try:
            return path == _ROOT or path.name in self._disk.folder(path.parent).names
        except FileNotFoundError:
            return False

    def list_directory(self, path: PurePosixPath) -> list[str]:
        self._check()
        return sorted(self._disk.folder(path).names)

    def make_directory(self, path: PurePosixPath) -> None:
        self._check()
        for directory in (*reversed(path.parents), path):
            if directory == _ROOT:
                continue
            parent = self._disk.folder(directory.parent)
            entry = parent.names.get(directory.name)
            if isinstance(entry, Inode):
                raise FileExistsError(17, f"{directory} is a file")
            if entry is None:
                parent.names[directory.name] = _new_folder()
                self._disk.changed(parent)

    def rename(self, source: PurePosixPath, target: PurePosixPath) -> None:
        self._check()
        before, after = self._disk.folder(source.parent), self._disk.folder(target.parent)
        entry = before.names.get(source.name)
        if entry is None:
            raise FileNotFoundError(2, f"no file {source}")
        existing = after.names.get(target.name)
        if isinstance(existing, _Folder) and existing.names:
            raise OSError(39, f"{target} is not empty")
        del before.names[source.name]
        after.names[target.name] = entry
        self._disk.changed(after)
        if before is not after:
            self._disk.changed(before)

    def remove(self, path: PurePosixPath) -> None:
        self._check()
        folder = self._disk.folder(path.parent)
        entry = folder.names.get(path.name)
        if entry is None:
            raise FileNotFoundError(2, f"no file {path}")
        if isinstance(entry, _Folder) and entry.names:
            raise OSError(39, f"{path} is not empty")
        del folder.names[path.name]
        self._disk.changed(folder)

    def sync_directory(self, path: PurePosixPath) -> None:
        self._check()
        folder = self._disk.folder(path)
        folder.synced = dict(folder.names)
        folder.steps.clear()

    def boot_id(self) -> str:
        return f"boot {self._disk.boots}"

    async def in_background(self, work: Callable[[], T]) -> T:
        self._check()
        # Somewhere in the time it takes, the work is done: what is written after that is not in it.
        before = self._disk.sync_time()
        after = before * self._disk.source.random()
        await asyncio.sleep(before - after)
        result = work()
        await asyncio.sleep(after)
        return result


class HostFile:
    def __init__(self, disk: SimulatedDisk, host: Host, inode: Inode) -> None:
        self._disk = disk
        self._host = host
        self._inode = inode
        self._is_open = True

    def _check(self) -> Inode:
        if not self._host.is_alive or not self._is_open:
            raise OSError(9, "the process is dead, or the file closed")
        return self._inode

    def append(self, data: Buffer) -> int:
        inode = self._check()
        self._disk.take_space()
        position = len(inode.data)
        inode.data += data
        return position

    def read(self, position: int, size: int) -> bytes:
        return bytes(memoryview(self._check().data)[position : position + size])

    def size(self) -> int:
        return len(self._check().data)

    def truncate(self, size: int) -> None:
        inode = self._check()
        if size < inode.synced:
            inode.lost_tail = bytes(inode.data[size : inode.synced]) + inode.lost_tail
            inode.synced = size
        if size < len(inode.data):
            del inode.data[size:]
        else:
            inode.data.extend(bytes(size - len(inode.data)))

    def sync(self) -> None:
        self._disk.sync(self._check())

    def close(self) -> None:
        self._is_open = False
