"""Compressed files, decompressed from the front in bounded memory: gzip, bzip2 and Zstandard, by their first bytes.

A file may have several members or frames. One that ends inside of a member is incomplete: it may still be arriving.
"""

from __future__ import annotations

import bz2
import os
import zlib
from collections.abc import Callable
from typing import Any, Final

from einmal.extras import install_command
from einmal.ingest.source import SourceRefused

MAGIC_SIZE: Final = 4
_MAGIC: Final = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\x28\xb5\x2f\xfd": "zstd"}
_INPUT: Final = 64 * 1024
_GZIP_STEP: Final = 16 * 1024
_STEP: Final = 256
"""Bytes that are decompressed in one step. Not all of the libraries bound the output of a step, and one byte of input
can become 1 KiB (gzip) or 32 KiB: so a step has at most some 10 MiB."""
_GZIP_WINDOW: Final = 31


class Incomplete(Exception):
    """The file ends inside of a member."""


class Damaged(Exception):
    """The bytes are not what the first ones promise."""


def _zstd() -> Any:
    try:
        import zstandard
    except ImportError as error:
        raise SourceRefused("a file is compressed with Zstandard", install_command("zstd")) from error
    return zstandard.ZstdDecompressor().decompressobj()


def codec_of(first: bytes) -> str | None:
    """The codec of a file that begins with these bytes; None for one that is not compressed. Raises Incomplete where
    there are too few of them."""
    for magic, codec in _MAGIC.items():
        if first.startswith(magic):
            return codec
        if first and magic.startswith(first):
            raise Incomplete
    return None


_MEMBERS: Final[dict[str, tuple[Callable[[], Any], int]]] = {
    "gzip": (lambda: zlib.decompressobj(_GZIP_WINDOW), _GZIP_STEP),
    "bzip2": (bz2.BZ2Decompressor, _STEP),
    "zstd": (_zstd, _STEP),
}


class Decompression:
    """Sequential reads of one open file, which must not change meanwhile."""

    def __init__(self, descriptor: int, codec: str) -> None:
        self._descriptor = descriptor
        self._new_member, self._step = _MEMBERS[codec]
        self._skips_zeros = codec == "gzip"
        self._member: Any = None
        self._input = b""
        self._used = 0
        """Of the input."""
        self._read = 0
        self._output = bytearray()

    def read(self, size: int) -> bytes:
        """The next ``size`` bytes, fewer only at the end. Raises Incomplete, Damaged, OSError."""
        try:
            while len(self._output) < size and self._advance():
                pass
        except (zlib.error, EOFError, ValueError, OSError) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise
            raise Damaged(str(error)) from error
        except Exception as error:
            if type(error).__name__ != "ZstdError":
                raise
            raise Damaged(str(error)) from error
        found = bytes(self._output[:size])
        del self._output[:size]
        return found

    def _advance(self) -> bool:
        """Decompress one more piece; False at the end of the file."""
        if self._used == len(self._input):
            self._input, self._used = os.pread(self._descriptor, _INPUT, self._read), 0
            self._read += len(self._input)
            if not self._input:
                if self._member is not None:
                    raise Incomplete
                return False
        if self._member is None:
            if self._skips_zeros and self._input[self._used] == 0:
                # Padding behind the last member, as of tapes.
                self._used += 1
                return True
            self._member = self._new_member()
        piece = self._input[self._used : self._used + self._step]
        self._output += self._member.decompress(piece)
        self._used += len(piece)
        if self._member.eof:
            self._used -= len(self._member.unused_data)
            self._member = None
        return True
