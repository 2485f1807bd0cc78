"""Walks over the record batches of a segment file.

``walk`` reads headers only and trusts them; ``scan`` reads every byte and checks the CRC-32C; ``pieces`` returns the
bytes unchecked; ``holds_batch`` searches for a batch among bytes that are not batches. Knows no index.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from einmal.log.disk import File
from einmal.wire.errors import CorruptBatch, Truncated, WireError
from einmal.wire.record_batch import HEADER_SIZE, MAGIC, BatchHeader, iter_headers, peek_header, read_header, validate

_WALK_BYTES: Final = 4096
"""A page: one read for many small batches, little waste for large ones."""
_SCAN_BYTES: Final = 1 << 20
_CHECKED_BYTES_MAX: Final = 64 << 20
"""Maximum bytes checked in search of a batch: garbage may look like any number of headers."""


def walk(file: File, position: int, end: int) -> Iterator[tuple[int, BatchHeader]]:
    """(position, header) of the batches between ``position`` and ``end``, where batches begin and end.

    Raises CorruptBatch or Truncated if they do not, or if offsets do not rise.
    """
    chunk, chunk_position, expected = b"", position, -1
    while position < end:
        at = position - chunk_position
        if at + HEADER_SIZE > len(chunk):
            chunk, chunk_position, at = file.read(position, min(_WALK_BYTES, end - position)), position, 0
        header = peek_header(chunk, at)
        following = position + header.size
        if header.base_offset < expected:
            raise CorruptBatch(f"expected offset >= {expected} at byte {position}, found {header.base_offset}")
        if header.last_offset_delta < 0:
            delta = header.last_offset_delta
            raise CorruptBatch(f"expected last offset delta >= 0 at byte {position}, found {delta}")
        if following > end:
            raise Truncated(f"batch at position {position}")
        yield position, header
        expected = header.next_offset
        position = following


def scan(file: File, position: int, end: int) -> Iterator[tuple[int, BatchHeader]]:
    """As ``walk``, but each batch is validated, except for its offset, which no CRC covers.

    Raises CorruptBatch or Truncated at the first that is not valid.
    """
    chunk, chunk_position = b"", position
    while position < end:
        at = position - chunk_position
        try:
            header = read_header(chunk, at)
        except Truncated:
            if at == 0 and len(chunk) >= end - position:
                raise
            # The length is not checked yet; a batch longer than the rest of the file fails at the second check.
            needed = peek_header(chunk, at).size if at + HEADER_SIZE <= len(chunk) else 0
            chunk = file.read(position, min(max(_SCAN_BYTES, needed), end - position))
            chunk_position = position
            if not chunk:
                raise
            continue
        validate(chunk, at, header)
        yield position, header
        position += header.size


def pieces(file: File, position: int, end: int, size: int) -> Iterator[bytes]:
    """The batches between ``position`` and ``end``, where batches begin and end, as pieces of whole batches.

    A piece has at most ``size`` bytes, or one batch. Raises CorruptBatch, or Truncated where the last is not whole.
    """
    while position < end:
        chunk = file.read(position, min(size, end - position))
        whole = sum(header.size for _, header in iter_headers(chunk))
        if not whole:
            whole = peek_header(chunk).size
            if whole > end - position:
                raise Truncated(f"batch at position {position}")
            chunk = file.read(position, whole)
            read_header(chunk)
        yield chunk[:whole]
        position += whole


def holds_batch(file: File, start: int, end: int, offset: int) -> bool:
    """Whether a valid batch with an offset not below ``offset`` begins between two positions, anywhere.

    Also true where the search would take too long.
    """
    # A header has its magic 16 bytes after an offset whose upper half is that of its segment's other batches.
    upper = (offset >> 32).to_bytes(4, "big")
    pattern = re.compile(b"(?s)(?=" + re.escape(upper) + b".{12}" + re.escape(bytes([MAGIC])) + b")")
    left = _CHECKED_BYTES_MAX
    for chunk_position in range(start, end, _SCAN_BYTES):
        chunk = file.read(chunk_position, min(_SCAN_BYTES + HEADER_SIZE, end - chunk_position))
        for match in pattern.finditer(chunk, 0, _SCAN_BYTES + HEADER_SIZE):
            position = chunk_position + match.start()
            try:
                header = peek_header(file.read(position, HEADER_SIZE))
                if not offset <= header.base_offset or position + header.size > end:
                    continue
                left -= header.size
                if left < 0:
                    return True
                validate(file.read(position, header.size), 0, header)
            except WireError:
                continue
            return True
    return False
