"""Open files whose descriptors come and go: at most so many of them are open at a time, those that were used last.

Every segment of a log has a file, and a client decides how many segments there are. A file of this module stays usable
when its descriptor has been closed: the next call opens it again. It follows its file under another name, and one that
is removed or replaced keeps its descriptor until it is closed, as on any POSIX system. Any thread may use any file.
"""

# Theory of operation
# ===================
#
# Why a lock and a count of users. A descriptor is a number: closed by one thread while another is about to read from
# it, it may belong to another file by then. So nothing is closed that is in use, and opening, closing and counting are
# one step each. The call itself, which may block for long, has no lock.
#
# Why unflushed files go last, and are flushed first. Linux reports a failed write-back once, to a descriptor that was
# open at the time or is the next to be opened; but where the inode was dropped from memory in between, to nobody. So a
# file with unflushed writes is closed only when no other is left, and after an fdatasync of its own. The error of that,
# if there is one, is what the next `sync` of the file reports.

from __future__ import annotations

import errno
import os
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable
from pathlib import PurePosixPath
from typing import Final, TypeVar

T = TypeVar("T")
Buffer = bytes | bytearray | memoryview

_ALL_IN_USE: Final = (errno.EMFILE, errno.ENFILE)


class OpenFile:
    """See ``disk.File``. Made by ``Descriptors.open``."""

    __slots__ = ("_all", "_size", "failure", "fd", "group", "identity", "is_closed", "path", "users", "writes")

    def __init__(self, descriptors: Descriptors, path: str, fd: int) -> None:
        self._all = descriptors
        status = os.fstat(fd)
        self._size = status.st_size
        self.path = path
        self.fd = fd
        """-1: not open at the moment."""
        self.group: OrderedDict[OpenFile, None] | None = None
        """Group of the files whose descriptors may be closed, by whether they are flushed; None: this one is not open,
        or must stay."""
        self.identity = status.st_dev, status.st_ino
        self.users = 0
        """Calls in progress, which need the descriptor."""
        self.writes = 0
        self.failure: OSError | None = None
        """Failure of the flush before the descriptor was closed."""
        self.is_closed = False

    def append(self, data: Buffer) -> int:
        position = self._size
        fd = self._all.borrow(self, to_write=True)
        try:
            written = os.write(fd, data)
            if written != len(data):
                # A short write (disk full) must not leave half a batch in front of the next one.
                os.ftruncate(fd, position)
                raise OSError(errno.ENOSPC, "no space left on device: short write")
        finally:
            self._all.give_back(self)
        self._size = position + written
        return position

    def read(self, position: int, size: int) -> bytes:
        fd = self._all.borrow(self)
        try:
            return os.pread(fd, size, position)
        finally:
            self._all.give_back(self)

    def size(self) -> int:
        return self._size

    def truncate(self, size: int) -> None:
        fd = self._all.borrow(self, to_write=True)
        try:
            os.ftruncate(fd, size)
        finally:
            self._all.give_back(self)
        self._size = size

    def sync(self) -> None:
        fd, writes = self._all.borrow(self), self.writes
        try:
            os.fdatasync(fd)
            if self.failure is not None:
                raise self.failure
            self._all.flushed(self, writes)
        finally:
            self._all.give_back(self)

    def close(self) -> None:
        self._all.close(self)


class Descriptors:
    """``limit``: how many may be open, but for those in use and those of removed files."""

    def __init__(self, limit: int = sys.maxsize) -> None:
        self._limit = limit
        self._lock = threading.RLock()
        self._flushed: OrderedDict[OpenFile, None] = OrderedDict()
        """Open files without unflushed writes, least recently used first."""
        self._unflushed: OrderedDict[OpenFile, None] = OrderedDict()
        self._by_path: dict[str, list[OpenFile]] = {}
        """All files that are not closed."""

    def open(self, path: PurePosixPath, flags: int) -> OpenFile:
        """Raises OSError."""
        name = str(path)
        with self._lock:
            self._make_room()
            fd = self.open_once(name, flags)
            try:
                file = OpenFile(self, name, fd)
            except OSError:
                os.close(fd)
                raise
            self._move(file, self._flushed)
            self._by_path.setdefault(name, []).append(file)
            return file

    def open_once(self, path: PurePosixPath | str, flags: int) -> int:
        """A descriptor that the caller closes soon. Raises OSError."""
        return self.retrying(lambda: os.open(path, flags | os.O_CLOEXEC, 0o600))

    def retrying(self, work: Callable[[], T]) -> T:
        """Do what needs descriptors, after files have given theirs back where none is left. Raises OSError."""
        while True:
            try:
                return work()
            except OSError as error:
                with self._lock:
                    # Connections may have taken what is meant for files.
                    if error.errno not in _ALL_IN_USE or not self._close_one():
                        raise

    # --- what files call ---------------------------------------------------------------------------------------------

    def borrow(self, file: OpenFile, *, to_write: bool = False) -> int:
        """Its descriptor, which stays open until ``give_back``. Raises OSError."""
        with self._lock:
            if file.fd < 0:
                self._open_again(file)
            file.users += 1
            if to_write:
                file.writes += 1
                if file.group is self._flushed:
                    self._move(file, self._unflushed)
            if file.group is not None:
                file.group.move_to_end(file)
            return file.fd

    def give_back(self, file: OpenFile) -> None:
        with self._lock:
            file.users -= 1
            if file.is_closed and not file.users:
                self._release(file)

    def flushed(self, file: OpenFile, writes: int) -> None:
        """Everything up to that many writes is flushed."""
        with self._lock:
            if file.writes == writes and file.group is self._unflushed:
                self._move(file, self._flushed)

    def close(self, file: OpenFile) -> None:
        with self._lock:
            if file.is_closed:
                return
            file.is_closed = True
            self._forget_name(file)
            if not file.users:
                self._release(file)

    # --- names -------------------------------------------------------------------------------------------------------

    def rename(self, source: PurePosixPath, target: PurePosixPath) -> None:
        """Rename a file or a folder. Raises OSError."""
        old, new = str(source), str(target)
        with self._lock:
            self._keep_open(new)
            os.replace(old, new)
            # Only a folder's name is part of others: most renames are those of one of thousands of segments.
            inside = [path for path in self._by_path if path.startswith(f"{old}/")] if os.path.isdir(new) else []
            for name in [*inside, *([old] if old in self._by_path else ())]:
                for file in self._by_path[name].copy():
                    self._forget_name(file)
                    file.path = new + name[len(old) :]
                    self._by_path.setdefault(file.path, []).append(file)

    def remove(self, path: PurePosixPath) -> None:
        """Remove a file. Raises OSError."""
        with self._lock:
            self._keep_open(str(path))
            os.unlink(path)

    def _keep_open(self, path: str) -> None:
        """Once it has no name, a file cannot be opened again."""
        for file in self._by_path.get(path, ()):
            if file.fd < 0:
                self._open_again(file)
            self._move(file, None)

    def _forget_name(self, file: OpenFile) -> None:
        files = self._by_path[file.path]
        files.remove(file)
        if not files:
            del self._by_path[file.path]

    # --- descriptors -------------------------------------------------------------------------------------------------

    def _open_again(self, file: OpenFile) -> None:
        if file.is_closed:
            raise ValueError(f"{file.path} is closed")
        self._make_room()
        fd = self.open_once(file.path, os.O_RDWR | os.O_APPEND)
        status = os.fstat(fd)
        if (status.st_dev, status.st_ino) != file.identity:
            os.close(fd)
            raise OSError(errno.ESTALE, f"{file.path} was replaced by another file while it was in use")
        file.fd = fd
        self._move(file, self._flushed)

    def _make_room(self) -> None:
        while len(self._flushed) + len(self._unflushed) >= self._limit and self._close_one():
            pass

    def _close_one(self) -> bool:
        """Close the descriptor that was not used for longest; false: all are in use."""
        for files in (self._flushed, self._unflushed):
            file = next((file for file in files if not file.users), None)
            if file is None:
                continue
            if files is self._unflushed:
                try:
                    os.fdatasync(file.fd)
                except OSError as error:
                    file.failure = error
            self._release(file)
            return True
        return False

    def _move(self, file: OpenFile, group: OrderedDict[OpenFile, None] | None) -> None:
        if file.group is not None:
            del file.group[file]
        file.group = group
        if group is not None:
            group[file] = None

    def _release(self, file: OpenFile) -> None:
        self._move(file, None)
        if file.fd >= 0:
            os.close(file.fd)
            file.fd = -1
