"""Log sequence numbers: positions in PostgreSQL's write-ahead log. Pure."""

from __future__ import annotations

import re
from typing import Any, Final, NewType

Lsn = NewType("Lsn", int)
"""A byte position in the write-ahead log of one server: 64 bits."""

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
