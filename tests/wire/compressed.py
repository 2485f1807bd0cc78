"""Compressed data in blocks of chosen sizes, as a client may send it."""

from __future__ import annotations

import struct
from collections.abc import Iterable

import cramjam

from einmal.wire.compression import Compression


def in_blocks(codec: Compression, blocks: Iterable[bytes]) -> bytes:
    """One frame with a block for each of these, of the codecs that divide a frame so."""
    if codec is Compression.SNAPPY:
        packed = [bytes(cramjam.snappy.compress_raw(block)) for block in blocks]
        framed = b"".join(struct.pack(">i", len(block)) + block for block in packed)
        return b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1) + framed
    assert codec is Compression.LZ4
    compressor = cramjam.lz4.Compressor(block_linked=False)
    parts = []
    for block in blocks:
        compressor.compress(block)
        parts.append(bytes(compressor.flush()))
    return b"".join(parts) + bytes(compressor.finish())
