"""Frames: every message on a connection is preceded by its length as an int32.

Knows no message. A splitter never holds more than one incomplete frame, and refuses a length that is negative or over
the limit before it allocates memory.
"""

from __future__ import annotations

import struct
from typing import Final

from einmal.wire.errors import Malformed, OtherProtocol, TooLarge, WireError

_LENGTH: Final = struct.Struct(">i")
Part = bytes | bytearray | memoryview


_FIRST_ROOM: Final = 4 * 1024
_GROWTH: Final = 2
"""A frame's memory is at most so many times its received bytes."""
SIZE_MIN: Final = 4
"""Minimum size of a frame to a broker: a user and a password of one letter each in PLAIN, after SaslHandshake v0.
A stream of empty frames would cost a hundred times its bytes.
"""


_HTTP: Final = (b"GET ", b"POST", b"PUT ", b"HEAD", b"DELE", b"OPTI", b"PATC", b"CONN", b"TRAC", b"PRI ")


def other_protocol(first: bytes) -> str | None:
    """Return the other protocol of a client by its first bytes; None: what a frame may begin with."""
    if first[:2] == b"\x16\x03":
        return "TLS"
    if first[:4] in _HTTP:
        return "HTTP"
    return None


def _refusal(length: int, max_size: int) -> WireError:
    if (spoken := other_protocol(_LENGTH.pack(length))) is not None:
        return OtherProtocol(spoken)
    if length < SIZE_MIN:
        return Malformed(f"frame of {length} bytes")
    return TooLarge(f"frame of {length} bytes, the limit is {max_size}")


def frame(*parts: Part) -> bytes:
    """The parts as one frame, its length in front."""
    return b"".join((_LENGTH.pack(sum(map(len, parts))), *parts))


class FrameSplitter:
    """Cuts a stream of bytes into frames of at most ``max_size`` bytes."""

    __slots__ = ("_buffered", "_max_size", "_parts", "_wanted")

    def __init__(self, max_size: int) -> None:
        self._max_size = max_size
        self._parts: list[bytes] = []
        self._buffered = 0
        self._wanted = 4

    @property
    def buffered(self) -> int:
        """Bytes kept until their frame is complete."""
        return self._buffered

    def feed(self, data: bytes) -> list[bytes]:
        """The frames, without their lengths, that ``data`` completes.

        Raises Malformed for a negative length and TooLarge for one over the limit; the connection is lost then.
        """
        if self._buffered:
            self._parts.append(data)
            self._buffered += len(data)
            if self._buffered < self._wanted:
                return []
            # Joined only when a frame is complete: a large frame in a thousand pieces is copied once.
            data = b"".join(self._parts)
            self._parts.clear()
            self._buffered = 0
        frames = []
        position = 0
        size = len(data)
        while size - position >= 4:
            (length,) = _LENGTH.unpack_from(data, position)
            if not 0 <= length <= self._max_size:
                raise _refusal(length, self._max_size)
            end = position + 4 + length
            if end > size:
                self._wanted = 4 + length
                break
            frames.append(data[position + 4 : end])
            position = end
        else:
            self._wanted = 4
        if position < size:
            self._parts.append(data[position:] if position else data)
            self._buffered = size - position
        return frames


class FrameReceiver:
    """Cuts a stream into frames that may be written to, with one copy of small frames and none of large ones.

    For a reader that requests a buffer for the next bytes (``asyncio.BufferedProtocol``): the rest of an incomplete
    frame is received directly into its own memory. ``scratch`` may be shared by receivers of which none is between
    ``buffer`` and ``received`` at the same time.
    """

    __slots__ = ("_filled", "_frame", "_head", "_max_size", "_scratch", "_size")

    def __init__(self, max_size: int, scratch: bytearray) -> None:
        self._max_size = max_size
        self._scratch = scratch
        self._head = b""
        self._frame: bytearray | None = None
        self._filled = 0
        self._size = 0

    def limit(self, max_size: int) -> None:
        """Refuse larger frames from now on."""
        self._max_size = max_size

    @property
    def reserved(self) -> int:
        """Memory of an incomplete frame."""
        return len(self._frame) if self._frame is not None else 0

    @property
    def filled(self) -> int:
        """Bytes of an incomplete frame."""
        return self._filled if self._frame is not None else 0

    def buffer(self) -> memoryview:
        """The buffer for the next bytes."""
        frame = self._frame
        if frame is None:
            head = self._head
            self._scratch[: len(head)] = head
            return memoryview(self._scratch)[len(head) :]
        if self._filled == len(frame):
            # The buffer grows with the bytes received, not with the announced size.
            frame.extend(bytes(min(self._size, _GROWTH * len(frame)) - len(frame)))
        return memoryview(frame)[self._filled :]

    def received(self, count: int) -> list[bytearray]:
        """The frames, without their lengths, that ``count`` more bytes complete.

        Raises Malformed for a negative length and TooLarge for one over the limit; the connection is lost then.
        """
        frame = self._frame
        if frame is None:
            return self._cut(len(self._head) + count)
        self._filled += count
        if self._filled < self._size:
            return []
        self._frame = None
        return [frame]

    def _cut(self, size: int) -> list[bytearray]:
        scratch = self._scratch
        frames: list[bytearray] = []
        position = 0
        self._head = b""
        while size - position >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(scratch, position)
            if not SIZE_MIN <= length <= self._max_size:
                raise _refusal(length, self._max_size)
            position += _LENGTH.size
            end = position + length
            if end > size:
                self._begin(length, position, size)
                return frames
            frames.append(scratch[position:end])
            position = end
        self._head = bytes(scratch[position:size])
        return frames

    def _begin(self, length: int, start: int, end: int) -> None:
        """Copy the first part of a frame to the buffer that will receive the rest."""
        self._filled = end - start
        self._size = length
        self._frame = bytearray(min(length, max(_FIRST_ROOM, _GROWTH * self._filled)))
        self._frame[: self._filled] = memoryview(self._scratch)[start:end]
