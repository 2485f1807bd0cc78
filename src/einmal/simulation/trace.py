"""The trace of a run: a digest over everything that was delivered, in its order.

Two runs of one seed must have the same digest, in any process. With ``keep`` the events are kept as lines, to be read.
"""

from __future__ import annotations

import hashlib
import struct
import zlib
from typing import Final

_EVENT: Final = struct.Struct(">dII")


class Trace:
    def __init__(self, *, keep: bool = False) -> None:
        self._digest = hashlib.blake2b(digest_size=16)
        self.lines: list[str] | None = [] if keep else None

    def event(self, at: float, what: str, data: bytes | memoryview = b"") -> None:
        """Something was delivered at second ``at``; ``data`` counts by its length and checksum."""
        self._digest.update(what.encode())
        self._digest.update(_EVENT.pack(at, len(data), zlib.crc32(data)))
        if self.lines is not None:
            self.lines.append(f"{at:10.6f} {what} {len(data)} {zlib.crc32(data):08x}")

    def digest(self) -> str:
        """Return the digest of the events so far, in hexadecimal."""
        return self._digest.hexdigest()
