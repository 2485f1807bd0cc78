"""The codecs of record batches, in the framings that Kafka's clients write.

Output is bounded absolutely, and no claim of the input about its own size is allocated for: a buffer starts small and
grows only as far as the data really fills it. Snappy comes raw or in snappy-java's framing (xerial), and is written in
the latter, the only one which every client reads. LZ4 is the frame format with independent blocks: Java reads no
others.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from enum import IntEnum
from typing import Final

import cramjam

from einmal.wire.errors import CorruptBatch, TooLarge

MAX_DECOMPRESSED: Final = 128 * 1024 * 1024
"""What a batch may decompress to where the caller says nothing else, in bytes."""

_SMALLEST_BUFFER: Final = 64 * 1024
_GZIP_WINDOW: Final = 31
_XERIAL_MAGIC: Final = b"\x82SNAPPY\x00"
_XERIAL_HEADER: Final = _XERIAL_MAGIC + struct.pack(">ii", 1, 1)
_XERIAL_BLOCK: Final = 32 * 1024
_SNAPPY_RATIO: Final = 64
"""One snappy element of two or more bytes gives at most 64 bytes: who claims more lies."""
_LENGTH: Final = struct.Struct(">i")


class Compression(IntEnum):
    """Numbers of the batch attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


def compress(codec: Compression, data: bytes) -> bytes:
    """``data`` under the codec, at its usual level."""
    return data if codec is Compression.NONE else _COMPRESSORS[codec](data)


def decompress(codec: Compression, data: bytes, max_bytes: int = MAX_DECOMPRESSED) -> bytes:
    """What was compressed. Raises CorruptBatch, or TooLarge when it is more than ``max_bytes``."""
    if codec is not Compression.NONE:
        return _DECOMPRESSORS[codec](data, max_bytes)
    if len(data) > max_bytes:
        raise TooLarge(f"more than {max_bytes} bytes")
    return data


def _gzip(data: bytes) -> bytes:
    compressor = zlib.compressobj(wbits=_GZIP_WINDOW)
    return compressor.compress(data) + compressor.flush()


def _gunzip(data: bytes, max_bytes: int) -> bytes:
    parts: list[bytes] = []
    remaining = max_bytes
    while data:
        member = zlib.decompressobj(wbits=_GZIP_WINDOW)
        try:
            part = member.decompress(data, remaining + 1)
        except zlib.error as error:
            raise CorruptBatch(f"gzip: {error}") from error
        remaining -= len(part)
        if remaining < 0:
            raise TooLarge(f"more than {max_bytes} bytes")
        if not member.eof:
            raise CorruptBatch("gzip: the data ends early")
        parts.append(part)
        data = member.unused_data
    return b"".join(parts)


def _snappy(data: bytes) -> bytes:
    parts = [_XERIAL_HEADER]
    for start in range(0, len(data), _XERIAL_BLOCK):
        block = bytes(cramjam.snappy.compress_raw(data[start : start + _XERIAL_BLOCK]))
        parts += (_LENGTH.pack(len(block)), block)
    return b"".join(parts)


def _unsnappy(data: bytes, max_bytes: int) -> bytes:
    if not data.startswith(_XERIAL_MAGIC):
        return _unsnappy_block(data, max_bytes)
    parts: list[bytes] = []
    position = len(_XERIAL_HEADER)
    while position < len(data):
        if position + 4 > len(data):
            raise CorruptBatch("snappy: the data ends early")
        (size,) = _LENGTH.unpack_from(data, position)
        position += 4
        if not 0 <= size <= len(data) - position:
            raise CorruptBatch("snappy: a block ends after the data")
        block = _unsnappy_block(data[position : position + size], max_bytes)
        max_bytes -= len(block)
        parts.append(block)
        position += size
    return b"".join(parts)


def _unsnappy_block(data: bytes, max_bytes: int) -> bytes:
    try:
        size = cramjam.snappy.decompress_raw_len(data)
        if size > max_bytes:
            raise TooLarge(f"more than {max_bytes} bytes")
        if size > len(data) * _SNAPPY_RATIO:
            raise CorruptBatch("snappy: more is claimed than can be there")
        return bytes(cramjam.snappy.decompress_raw(data))
    except cramjam.DecompressionError as error:
        raise CorruptBatch(f"snappy: {error}") from error


def _lz4(data: bytes) -> bytes:
    compressor = cramjam.lz4.Compressor(block_linked=False)
    compressor.compress(data)
    return bytes(compressor.finish())


def _zstd(data: bytes) -> bytes:
    return bytes(cramjam.zstd.compress(data))


def _growing(name: str, decompress_into: Callable[..., int]) -> Callable[[bytes, int], bytes]:
    def inflate(data: bytes, max_bytes: int) -> bytes:
        capacity = min(max(_SMALLEST_BUFFER, 4 * len(data)), max_bytes)
        while True:
            # One byte more than is allowed: what fills it is too large, and an empty result still has a buffer.
            output = bytearray(capacity + 1)
            try:
                size = decompress_into(data, output)
            except cramjam.DecompressionError as error:
                if _BUFFER_FULL not in str(error):
                    raise CorruptBatch(f"{name}: {error}") from error
                size = capacity + 1
            if size <= capacity:
                return bytes(memoryview(output)[:size])
            if capacity >= max_bytes:
                raise TooLarge(f"more than {max_bytes} bytes")
            capacity = min(capacity * 4, max_bytes)

    return inflate


_BUFFER_FULL: Final = "failed to write whole buffer"

_COMPRESSORS: Final[dict[Compression, Callable[[bytes], bytes]]] = {
    Compression.GZIP: _gzip,
    Compression.SNAPPY: _snappy,
    Compression.LZ4: _lz4,
    Compression.ZSTD: _zstd,
}
_DECOMPRESSORS: Final[dict[Compression, Callable[[bytes, int], bytes]]] = {
    Compression.GZIP: _gunzip,
    Compression.SNAPPY: _unsnappy,
    Compression.LZ4: _growing("lz4", cramjam.lz4.decompress_into),
    Compression.ZSTD: _growing("zstd", cramjam.zstd.decompress_into),
}
