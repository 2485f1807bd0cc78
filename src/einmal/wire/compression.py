"""The codecs of record batches, in the framings that Kafka's clients write.

Output is bounded absolutely, and a size claimed by the input is never allocated: a buffer starts small and grows only
as far as the data really fills it. Snappy comes raw or in snappy-java's framing (xerial), and is written in the latter,
the only one which every client reads. LZ4 is the frame format with independent blocks: Java reads no others.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from enum import IntEnum
from io import BytesIO
from typing import Final

import cramjam

from einmal.wire.errors import CorruptBatch, TooLarge, TooLong

MAX_DECOMPRESSED: Final = 128 * 1024 * 1024
"""Default limit of a batch's decompressed size, in bytes."""

_SMALLEST_BUFFER: Final = 64 * 1024
_GZIP_WINDOW: Final = 31
_GZIP_PIECE: Final = 16 * 1024
_GZIP_PART: Final = 1024 * 1024
_ZSTD_MAGIC: Final = b"\x28\xb5\x2f\xfd"
_LZ4_MAGIC: Final = b"\x04\x22\x4d\x18"
_LZ4_SMALLEST: Final = 7
"""Magic, flags, block size, header checksum."""
_LZ4_INDEPENDENT: Final = 0x20
_LZ4_BLOCK_CHECKSUM: Final = 0x10
_LZ4_CONTENT_SIZE: Final = 0x08
_LZ4_CONTENT_CHECKSUM: Final = 0x04
_LZ4_DICTIONARY: Final = 0x01
_LZ4_BLOCK: Final = struct.Struct("<I")
_LZ4_SIZE: Final = 0x7FFF_FFFF
_XERIAL_MAGIC: Final = b"\x82SNAPPY\x00"
_XERIAL_HEADER: Final = _XERIAL_MAGIC + struct.pack(">ii", 1, 1)
_XERIAL_BLOCK: Final = 32 * 1024
_SNAPPY_RATIO: Final = 64
"""One snappy element of two or more bytes yields at most 64 bytes: a larger claim is wrong."""
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


def decompress(
    codec: Compression,
    data: bytes,
    max_bytes: int = MAX_DECOMPRESSED,
    *,
    strict: bool = False,
    blocks_max: int | None = None,
) -> bytes:
    """The decompressed data. Raises CorruptBatch, or TooLarge when it is more than ``max_bytes``.

    ``strict``: only in a framing that every client reads; without it this function accepts more. ``blocks_max``: then
    raises TooLong for more blocks than these, each of which takes its time however little it holds.
    """
    if codec is not Compression.NONE:
        if strict:
            return _decompress_strictly(codec, data, max_bytes, blocks_max)
        return _DECOMPRESSORS[codec](data, max_bytes)
    if len(data) > max_bytes:
        raise TooLarge(f"more than {max_bytes} bytes")
    return data


def _gzip(data: bytes) -> bytes:
    compressor = zlib.compressobj(wbits=_GZIP_WINDOW)
    return compressor.compress(data) + compressor.flush()


def _gunzip(data: bytes, max_bytes: int, members_max: int | None = None) -> bytes:
    output = BytesIO()
    members = 0
    remaining = max_bytes
    position = 0
    while position < len(data):
        if members == members_max:
            raise CorruptBatch("gzip: data after the first member")
        members += 1
        member = zlib.decompressobj(wbits=_GZIP_WINDOW)
        while not member.eof:
            # In pieces: each member copies the rest, which is quadratic for many small ones.
            piece = data[position : position + _GZIP_PIECE]
            try:
                chunk = member.decompress(piece, min(remaining + 1, _GZIP_PART))
            except zlib.error as error:
                raise CorruptBatch(f"gzip: {error}") from error
            if not piece and not chunk and not member.eof:
                raise CorruptBatch("gzip: the data ends early")
            # At the end of a member the rest may be in both.
            position += len(piece) - len(member.unused_data if member.eof else member.unconsumed_tail)
            remaining -= len(chunk)
            if remaining < 0:
                raise TooLarge(f"more than {max_bytes} bytes")
            output.write(chunk)
    # Not a copy, which a join of the chunks would be.
    return output.getvalue()


def _snappy(data: bytes) -> bytes:
    parts = [_XERIAL_HEADER]
    for start in range(0, len(data), _XERIAL_BLOCK):
        block = bytes(cramjam.snappy.compress_raw(data[start : start + _XERIAL_BLOCK]))
        parts += (_LENGTH.pack(len(block)), block)
    return b"".join(parts)


def _unsnappy(data: bytes, max_bytes: int, blocks_max: int | None = None) -> bytes:
    if not data.startswith(_XERIAL_MAGIC):
        return _unsnappy_block(data, max_bytes)
    parts: list[bytes] = []
    position = len(_XERIAL_HEADER)
    while position < len(data):
        if len(parts) == blocks_max:
            raise TooLong
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
        if size > len(data) * _SNAPPY_RATIO:
            raise CorruptBatch("snappy: the claimed size is impossible")
        if size > max_bytes:
            raise TooLarge(f"more than {max_bytes} bytes")
        return bytes(cramjam.snappy.decompress_raw(data))
    except cramjam.DecompressionError as error:
        raise CorruptBatch(f"snappy: {error}") from error


def _lz4(data: bytes) -> bytes:
    compressor = cramjam.lz4.Compressor(block_linked=False)
    compressor.compress(data)
    return bytes(compressor.finish())


def _zstd(data: bytes) -> bytes:
    return bytes(cramjam.zstd.compress(data))


def _decompress_strictly(codec: Compression, data: bytes, max_bytes: int, blocks_max: int | None) -> bytes:
    """One frame, as librdkafka and the Java client need it. Raises CorruptBatch, TooLarge or TooLong."""
    if codec is Compression.GZIP:
        return _gunzip(data, max_bytes, members_max=1)
    if codec is Compression.SNAPPY:
        if data.startswith(_XERIAL_MAGIC) and not data.startswith(_XERIAL_HEADER):
            raise CorruptBatch("snappy: unknown version of the framing")
        return _unsnappy(data, max_bytes, blocks_max)
    if codec is Compression.LZ4:
        _check_lz4_frame(data, blocks_max)
    elif not data.startswith(_ZSTD_MAGIC):
        raise CorruptBatch("zstd: no frame")
    return _DECOMPRESSORS[codec](data, max_bytes)


def _check_lz4_frame(data: bytes, blocks_max: int | None) -> None:
    """Whether this is one whole frame of independent blocks, without a dictionary. Raises CorruptBatch or TooLong."""
    if len(data) < _LZ4_SMALLEST or not data.startswith(_LZ4_MAGIC):
        raise CorruptBatch("lz4: no frame")
    flags = data[4]
    if flags & _LZ4_DICTIONARY or not flags & _LZ4_INDEPENDENT:
        raise CorruptBatch("lz4: blocks depend on each other or on a dictionary")
    position = _LZ4_SMALLEST + (8 if flags & _LZ4_CONTENT_SIZE else 0)
    block_extra = 4 + (4 if flags & _LZ4_BLOCK_CHECKSUM else 0)
    end = len(data) - (4 if flags & _LZ4_CONTENT_CHECKSUM else 0)
    blocks = 0
    while position + 4 <= end:
        (size,) = _LZ4_BLOCK.unpack_from(data, position)
        if size == 0:
            position += 4
            break
        if blocks == blocks_max:
            raise TooLong
        blocks += 1
        position += (size & _LZ4_SIZE) + block_extra
    if position != end:
        raise CorruptBatch("lz4: the frame does not end where the data does")


def _growing(name: str, decompress_into: Callable[..., int]) -> Callable[[bytes, int], bytes]:
    def inflate(data: bytes, max_bytes: int) -> bytes:
        capacity = min(max(_SMALLEST_BUFFER, 4 * len(data)), max_bytes)
        while True:
            # Its value is the buffer itself, where bytes() of a bytearray would be a second one.
            output = BytesIO()
            # One byte more than is allowed: data that fills it is too large, and an empty result still has a buffer.
            output.seek(capacity)
            output.write(b"\0")
            try:
                with output.getbuffer() as room:
                    size = decompress_into(data, room)
            except cramjam.DecompressionError as error:
                if _BUFFER_FULL not in str(error):
                    raise CorruptBatch(f"{name}: {error}") from error
                size = capacity + 1
            if size <= capacity:
                output.truncate(size)
                return output.getvalue()
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
