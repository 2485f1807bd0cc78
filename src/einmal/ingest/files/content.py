"""One open file: what it is, and its bytes by offset, decompressed where it is compressed.

The name of a file identifies nothing: a rotation passes it on to another file, as a file system does with the inode of
a file that is deleted. So a file is what it has: a fingerprint of what was read of it, the first and the last bytes.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import stat
import sys
from dataclasses import dataclass
from typing import Final, NamedTuple

from einmal.ingest.files.decompression import MAGIC_SIZE, Damaged, Decompression, Incomplete, UnsupportedCodec, codec_of

EDGE: Final = 1024
"""Bytes at either end of a fingerprint."""
_FS_IOC_GETVERSION: Final = 0x80087601
"""Linux: the generation of an inode, which the file system counts up when the inode is used again."""
_DIGEST_BYTES: Final = 12
_PIECE: Final = 1024 * 1024


class FileKey(NamedTuple):
    """``generation``: of the inode; None where the file system reports none."""

    device: int
    inode: int
    generation: int | None


class FileState(NamedTuple):
    """State of a file, which changes with every write to it. Sizes in bytes, times in ns."""

    size: int
    modified: int
    changed: int


@dataclass(frozen=True, slots=True)
class NotAFile(Exception):
    """A directory, pipe, socket or device."""

    path: str


class Unfinished(Exception):
    """The work of one look is done; the next one continues."""


class Budget:
    """Bytes that one look may decompress or search, so that a large file keeps no other waiting."""

    def __init__(self) -> None:
        self._left = 0

    def renew(self, size: int) -> None:
        self._left = size

    def is_used(self) -> bool:
        return self._left <= 0

    def spend(self, size: int) -> None:
        """Raises Unfinished."""
        if self._left <= 0:
            raise Unfinished
        self._left -= size


UNREADABLE: Final = (Incomplete, Damaged, UnsupportedCodec, NotAFile, OSError)
"""Why the content of a file cannot be had."""


def digest(head: bytes, tail: bytes) -> str:
    """A fingerprint from the first and the last ``EDGE`` bytes."""
    return hashlib.blake2b(head + tail, digest_size=_DIGEST_BYTES).hexdigest()


class Extract(NamedTuple):
    """``data`` of a file, with its first bytes and those before the data: what fingerprints are made of, so that they
    are of the same content as the data."""

    head: bytes
    before: bytes
    data: bytes

    def fingerprint(self, offset: int, size: int) -> str:
        """Return the fingerprint of what is before ``offset``, where the data begins, and of its first ``size``
        bytes."""
        edge = min(offset + size, EDGE)
        last = self.before + self.data[:size]
        return digest(self.head[:edge], last[len(last) - edge :])


class Content:
    """Every method may raise OSError, and for a compressed file Incomplete, Damaged, UnsupportedCodec and Unfinished:
    then the same call continues where it was."""

    def __init__(self, path: str, budget: Budget, *, is_as_stored: bool) -> None:
        """Open a regular file, or raise NotAFile, OSError, Incomplete. ``budget``: of what is decompressed before it is
        asked for. ``is_as_stored``: nothing is decompressed."""
        self._is_as_stored = is_as_stored
        self._budget = budget
        # O_NONBLOCK: to open a pipe that has just replaced a file would wait for its writer.
        self._descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        try:
            status = os.fstat(self._descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise NotAFile(path)
            self.key = FileKey(status.st_dev, status.st_ino, _generation(self._descriptor))
            self.codec = self._codec_of(os.pread(self._descriptor, MAGIC_SIZE, 0))
        except BaseException:
            os.close(self._descriptor)
            raise
        self._reader: Decompression | None = None
        self._position = 0
        self._head = self._window = b""
        """First and last bytes of what was decompressed: who read to the middle of a line returns to its beginning."""
        self._decompressed: int | None = None

    def descriptor(self) -> int:
        return self._descriptor

    def state(self) -> FileState:
        status = os.fstat(self._descriptor)
        return FileState(status.st_size, status.st_mtime_ns, status.st_ctime_ns)

    def links(self) -> int:
        """How many names the file has: 0 after it was deleted."""
        return os.fstat(self._descriptor).st_nlink

    def size(self) -> int:
        """In bytes, decompressed: the first call for a compressed file reads all of it."""
        if self.codec is None:
            return os.fstat(self._descriptor).st_size
        if self._decompressed is None:
            if self._reader is None:
                self._rewind()
            while self._next_within_budget(_PIECE):
                pass
            self._decompressed, self._window = self._position, self._window[-EDGE:]
        return self._decompressed

    def first(self) -> bytes:
        """Its first ``EDGE`` bytes. Of a compressed file: of what was decompressed."""
        return self._plain_head() if self.codec is None else self._head

    def is_plain(self) -> bool:
        """Whether it is not compressed, and was not replaced by something compressed since it was opened."""
        try:
            return self.codec is None and self._codec_of(os.pread(self._descriptor, MAGIC_SIZE, 0)) is None
        except Incomplete:
            return False

    def is_partly_read(self) -> bool:
        """Whether a compressed file was decompressed to somewhere in its middle."""
        return self._reader is not None and (self._decompressed is None or self._position < self._decompressed)

    def edges(self) -> str:
        """A fingerprint of the first and the last bytes as they are stored: a checksum is among the last ones."""
        size = os.fstat(self._descriptor).st_size
        last = _read_fully(self._descriptor, max(0, size - EDGE), EDGE)
        return digest(_read_fully(self._descriptor, 0, EDGE), last)

    def read(self, offset: int, size: int) -> Extract:
        """``size`` bytes from the offset on; fewer only at the end of the file."""
        edge = min(offset, EDGE)
        if self.codec is None:
            head = self._plain_head()
            chunk = _read_fully(self._descriptor, offset - edge, edge + size)
            # A file that was truncated, and written anew meanwhile, begins with something else.
            is_stable = _read_fully(self._descriptor, 0, len(head)) == head
            return Extract(head if is_stable else b"", chunk[:edge], chunk[edge:])
        self._seek(offset)
        held = self._window[offset - edge - self._window_begin() :]
        if len(held) < edge + size:
            held += self._next(edge + size - len(held))
        self._window = held
        return Extract(self._head, held[:edge], held[edge : edge + size])

    def keep(self, offset: int) -> None:
        """Where a compressed file is read on: what was decompressed of what follows is not decompressed again."""
        if (surplus := offset - EDGE - self._window_begin()) > 0:
            self._window = self._window[surplus:]

    def next_data(self, offset: int) -> int:
        """Offset of the next byte that is not in a hole; the size of the file if there is none."""
        if self.codec is None and hasattr(os, "SEEK_DATA"):
            try:
                return os.lseek(self._descriptor, offset, os.SEEK_DATA)
            except OSError as error:
                # Else the file system does not know of holes.
                if error.errno == errno.ENXIO:
                    return max(offset, self.size())
        return offset

    def fingerprint(self, offset: int) -> str | None:
        """Return the fingerprint of the bytes before the offset; None if the file does not have so many."""
        if not (edge := min(offset, EDGE)):
            return digest(b"", b"")
        if self.codec is None:
            head = _read_fully(self._descriptor, 0, edge)
            tail = _read_fully(self._descriptor, offset - edge, edge)
        else:
            self._seek(offset)
            if self._position < offset:
                return None
            end = offset - self._window_begin()
            head, tail = self._head[:edge], self._window[end - edge : end]
        return digest(head, tail) if len(head) == len(tail) == edge else None

    def close(self) -> None:
        os.close(self._descriptor)

    def _plain_head(self) -> bytes:
        """Raises Incomplete for what is compressed after all: it was empty when it was opened."""
        head = _read_fully(self._descriptor, 0, EDGE)
        if self._codec_of(head[:MAGIC_SIZE]) is not None:
            raise Incomplete
        return head

    def _codec_of(self, first: bytes) -> str | None:
        return None if self._is_as_stored else codec_of(first)

    def _seek(self, offset: int) -> None:
        if self._reader is None or offset - min(offset, EDGE) < self._window_begin():
            self._rewind()
        while self._position < offset:
            is_over = not self._next_within_budget(min(_PIECE, offset - self._position))
            self._window = self._window[-EDGE:]
            if is_over:
                return

    def _window_begin(self) -> int:
        return self._position - len(self._window)

    def _rewind(self) -> None:
        assert self.codec is not None
        self._reader = Decompression(self._descriptor, self.codec)
        self._position, self._head, self._window = 0, b"", b""

    def _next_within_budget(self, size: int) -> bytes:
        self._budget.spend(size)
        return self._next(size)

    def _next(self, size: int) -> bytes:
        assert self._reader is not None
        try:
            data = self._reader.read(size)
        except BaseException:
            self._reader = None
            raise
        self._position += len(data)
        if len(self._head) < EDGE:
            self._head = (self._head + data)[:EDGE]
        self._window = self._window[-EDGE:] + data
        return data


def _read_fully(descriptor: int, offset: int, size: int) -> bytes:
    data = os.pread(descriptor, size, offset)
    while len(data) < size and (more := os.pread(descriptor, size - len(data), offset + len(data))):
        data += more
    return data


def _generation(descriptor: int) -> int | None:
    if sys.platform != "linux":
        return None
    from fcntl import ioctl

    buffer = bytearray(8)
    with contextlib.suppress(OSError):
        ioctl(descriptor, _FS_IOC_GETVERSION, buffer)
        # Kernels write four bytes, whatever the name of the request claims.
        return int.from_bytes(buffer[:4], sys.byteorder)
    return None
