"""The disk seam: the only way the log reaches files.

Calls are synchronous and raise OSError. ``File.sync`` may take long: callers that must not block the event loop pass it
to ``Disk.in_background``, which is a thread on a real disk and virtual time in the simulator. A name (create, rename,
remove) is durable only after ``sync_directory`` of its folder. Unsynced data is lost only with the machine: within one
``boot_id`` the next process finds all that the last one has written.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable
from pathlib import PurePosixPath
from typing import Final, Protocol, TypeVar

from einmal.log.descriptors import Buffer as Buffer
from einmal.log.descriptors import Descriptors

T = TypeVar("T")
_BOOT_ID: Final = PurePosixPath("/proc/sys/kernel/random/boot_id")


class File(Protocol):
    def append(self, data: Buffer) -> int:
        """Append all of ``data``, atomically for readers; returns its position."""

    def read(self, position: int, size: int) -> bytes:
        """At most ``size`` bytes; fewer only at the end of the file."""

    def size(self) -> int: ...

    def truncate(self, size: int) -> None: ...

    def sync(self) -> None:
        """Block until everything written before the call survives a power cut (fdatasync).

        After an OSError the file's unsynced part is in an unknown state: never retry as if nothing had happened.
        """

    def close(self) -> None: ...


class Disk(Protocol):
    def open(self, path: PurePosixPath, *, create: bool = False) -> File:
        """Open for reading and appending. FileNotFoundError unless ``create``."""

    def read_file(self, path: PurePosixPath) -> bytes: ...

    def write_file(self, path: PurePosixPath, data: Buffer) -> None:
        """Replace a small file as one step: temporary name, sync, rename, sync of the folder."""

    def exists(self, path: PurePosixPath) -> bool: ...

    def list_directory(self, path: PurePosixPath) -> list[str]:
        """Names in the folder, sorted."""

    def make_directory(self, path: PurePosixPath) -> None:
        """Create a folder with its parents; no error when it exists."""

    def rename(self, source: PurePosixPath, target: PurePosixPath) -> None: ...

    def remove(self, path: PurePosixPath) -> None:
        """Remove a file, or an empty folder."""

    def sync_directory(self, path: PurePosixPath) -> None: ...

    def boot_id(self) -> str:
        """An id of the time since the machine was started; empty: unknown."""

    async def in_background(self, work: Callable[[], T]) -> T:
        """Run blocking work without stopping the event loop."""


class OsDisk:
    """The real file system. ``open_files``: how many descriptors the files of ``open`` have, see ``Descriptors``."""

    def __init__(self, open_files: int = sys.maxsize) -> None:
        self._descriptors = Descriptors(open_files)

    def open(self, path: PurePosixPath, *, create: bool = False) -> File:
        return self._descriptors.open(path, os.O_RDWR | os.O_APPEND | (os.O_CREAT if create else 0))

    def read_file(self, path: PurePosixPath) -> bytes:
        fd = self._descriptors.open_once(path, os.O_RDONLY)
        try:
            return os.read(fd, os.fstat(fd).st_size)
        finally:
            os.close(fd)

    def write_file(self, path: PurePosixPath, data: Buffer) -> None:
        temporary = path.with_name(path.name + ".tmp")
        fd = self._descriptors.open_once(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(fd, view) :]
            os.fdatasync(fd)
        except OSError:
            # Half a file would keep occupying a full disk.
            os.unlink(temporary)
            raise
        finally:
            os.close(fd)
        os.replace(temporary, path)
        self.sync_directory(path.parent)

    def exists(self, path: PurePosixPath) -> bool:
        return os.path.lexists(path)

    def list_directory(self, path: PurePosixPath) -> list[str]:
        return sorted(self._descriptors.retrying(lambda: os.listdir(path)))

    def make_directory(self, path: PurePosixPath) -> None:
        os.makedirs(path, mode=0o700, exist_ok=True)

    def rename(self, source: PurePosixPath, target: PurePosixPath) -> None:
        self._descriptors.rename(source, target)

    def remove(self, path: PurePosixPath) -> None:
        try:
            self._descriptors.remove(path)
        except IsADirectoryError:
            os.rmdir(path)

    def sync_directory(self, path: PurePosixPath) -> None:
        fd = self._descriptors.open_once(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def boot_id(self) -> str:
        try:
            with open(_BOOT_ID, encoding="ascii") as file:
                return file.read().strip()
        except OSError:
            return ""

    async def in_background(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(None, work)
