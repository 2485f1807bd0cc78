"""Log sequence numbers: positions in PostgreSQL's write-ahead log. Pure."""

from __future__ import annotations

import re
from typing import Any, Final, NewType

Lsn = NewType("Lsn", int)
"""A byte position in the write-ahead log of one server: 64 bits."""

LOG_END: Final = (
    "pg_current_wal_insert_lsn()::text, pg_current_wal_flush_lsn()::text,"
    " pg_size_bytes(current_setting('wal_segment_size')), current_setting('wal_block_size')::bigint"
)
"""Columns of a query: the end of the log, of its part on disk, and what ``end_of_records`` needs."""
_PAGE_HEADER: Final = 24
_SEGMENT_HEADER: Final = 40

_TEXT: Final = re.compile(r"([0-9A-Fa-f]{1,8})/([0-9A-Fa-f]{1,8})")


def lsn_text(lsn: int) -> str:
    """As pg_lsn prints it: ``16/B374D848``."""
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"


def parse_lsn(text: Any) -> Lsn:
    """Raises ValueError."""
    match = _TEXT.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise ValueError(f"not an LSN: {text!r}")
    return Lsn(int(match[1], 16) << 32 | int(match[2], 16))


def end_of_records(end: Lsn, segment_bytes: int, page_bytes: int) -> Lsn:
    """Return where the last record before the end of the log ends.

    Where that is the end of a page, the server shows the end of the log behind the header of the next one, which comes
    to the disk with the next record only.
    """
    in_segment, in_page = end % segment_bytes, end % page_bytes
    if in_segment <= _SEGMENT_HEADER:
        return Lsn(end - in_segment)
    return Lsn(end - in_page) if in_page <= _PAGE_HEADER else end
