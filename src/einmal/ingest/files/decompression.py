"""Compressed files, decompressed from the front in bounded memory: gzip, bzip2 and Zstandard, by their first bytes.

A file may have several members or frames. One that ends inside of a member is incomplete: it may still be arriving.
Lines of text may begin with what is meant to identify a codec ("BZh"), so everything that its format fixes at the
beginning counts, not only its magic number.
"""

from __future__ import annotations

import bz2
import os
import zlib
from collections.abc import Callable, Container
from typing import Any, Final

from einmal.extras import install_command

_Pattern = tuple[Container[int], ...]
"""Values that each of the first bytes may have."""


def _fixed(magic: bytes) -> _Pattern:
    return tuple((byte,) for byte in magic)


_BEGINNINGS: Final[tuple[tuple[str, _Pattern], ...]] = (
    # Method 8; three bits of the flags are reserved (RFC 1952).
    ("gzip", (*_fixed(b"\x1f\x8b\x08"), range(0x20))),
    # A level, and a block or the end of the stream, each with a number of six digits: pi, and its square root.
    ("bzip2", (*_fixed(b"BZh"), range(ord("1"), ord("9") + 1), *_fixed(b"\x31\x41\x59\x26\x53\x59"))),
    ("bzip2", (*_fixed(b"BZh"), range(ord("1"), ord("9") + 1), *_fixed(b"\x17\x72\x45\x38\x50\x90"))),
    # A bit of the descriptor is reserved (RFC 8878). Or a frame to be skipped, as pzstd writes first.
    ("zstd", (*_fixed(b"\x28\xb5\x2f\xfd"), frozenset(byte for byte in range(0x100) if not byte & 8))),
    ("zstd", (range(0x50, 0x60), *_fixed(b"\x2a\x4d\x18"))),
    ("xz", _fixed(b"\xfd7zXZ\x00")),
    ("lz4", _fixed(b"\x04\x22\x4d\x18")),
)
_MAGIC: Final = 4
"""Bytes of a magic number: a text can begin with fewer of them."""
MAGIC_SIZE: Final = max(len(pattern) for _, pattern in _BEGINNINGS)
_INPUT: Final = 64 * 1024
_GZIP_STEP: Final = 16 * 1024
_STEP: Final = 256
"""Bytes that are decompressed in one step. Not all of the libraries bound the output of a step, and one byte of input
can become 1 KiB (gzip) or 32 KiB: so a step has at most some 10 MiB."""
_GZIP_WINDOW: Final = 31


class Incomplete(Exception):
    """The file ends inside of a member. ``may_be_text``: it has fewer bytes than a magic number, all of them text."""

    def __init__(self, *, may_be_text: bool = False) -> None:
        super().__init__()
        self.may_be_text = may_be_text


class Damaged(Exception):
    """The bytes are not what the first ones promise."""


class UnsupportedCodec(Exception):
    """The codec is known, and cannot be read here."""

    def __init__(self, codec: str, what_to_do: str) -> None:
        super().__init__(f"is compressed with {codec}; {what_to_do}")


def _zstd() -> Any:
    try:
        import zstandard
    except ImportError as error:
        raise UnsupportedCodec("Zstandard", install_command("zstd")) from error
    return zstandard.ZstdDecompressor().decompressobj()


def codec_of(first: bytes) -> str | None:
    """The codec of a file that begins with these bytes; None for one that is not compressed. Raises Incomplete where
    there are too few of them."""
    for codec, pattern in _BEGINNINGS:
        if first and all(byte in allowed for byte, allowed in zip(first, pattern, strict=False)):
            if len(first) < len(pattern):
                raise Incomplete(may_be_text=len(first) < _MAGIC and first.isascii() and first.decode().isprintable())
            return codec
    return None


_MEMBERS: Final[dict[str, tuple[Callable[[], Any], int]]] = {
    "gzip": (lambda: zlib.decompressobj(_GZIP_WINDOW), _GZIP_STEP),
    "bzip2": (bz2.BZ2Decompressor, _STEP),
    "zstd": (_zstd, _STEP),
}


class Decompression:
    """Sequential reads of one open file, which must not change meanwhile."""

    def __init__(self, descriptor: int, codec: str) -> None:
        """Raises UnsupportedCodec."""
        self._descriptor = descriptor
        if codec not in _MEMBERS:
            raise UnsupportedCodec(codec, "decompress it, or compress it with gzip, bzip2 or Zstandard")
        self._new_member, self._step = _MEMBERS[codec]
        self._skips_zeros = codec == "gzip"
        self._member: Any = None
        self._input = b""
        self._used = 0
        """Used bytes of the input."""
        self._read = 0
        self._output = bytearray()

    def read(self, size: int) -> bytes:
        """The next ``size`` bytes, fewer only at the end. Raises Incomplete, Damaged, UnsupportedCodec, OSError."""
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
        data = bytes(self._output[:size])
        del self._output[:size]
        return data

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
