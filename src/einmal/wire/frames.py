"""Frames: every message on a connection is preceded by its length as an int32.

Knows no message. A splitter never holds more than one frame's bytes that are not whole yet, and refuses a length that
is negative or over the limit before anything is kept for it.
"""

from __future__ import annotations

import struct
from typing import Final

from einmal.wire.errors import Malformed, TooLarge

_LENGTH: Final = struct.Struct(">i")
Part = bytes | bytearray | memoryview


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
        """Bytes kept until their frame is whole."""
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
            # Joined only when a frame is whole: a large frame in a thousand pieces is copied once.
            data = b"".join(self._parts)
            self._parts.clear()
            self._buffered = 0
        frames = []
        position = 0
        size = len(data)
        while size - position >= 4:
            (length,) = _LENGTH.unpack_from(data, position)
            if not 0 <= length <= self._max_size:
                raise self._refusal(length)
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

    def _refusal(self, length: int) -> Malformed | TooLarge:
        if length < 0:
            return Malformed(f"frame of {length} bytes")
        return TooLarge(f"frame of {length} bytes, the limit is {self._max_size}")
