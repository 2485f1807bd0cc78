"""Beginnings of text files that are no lines: marks of encodings, and what a truncation has left. Pure."""

from __future__ import annotations

import codecs
from typing import Final

UTF8_MARK: Final = codecs.BOM_UTF8
_MARKS: Final = (
    # The mark of UTF-32 begins as that of UTF-16 does.
    (codecs.BOM_UTF32_LE, "UTF-32"),
    (codecs.BOM_UTF32_BE, "UTF-32"),
    (codecs.BOM_UTF16_LE, "UTF-16"),
    (codecs.BOM_UTF16_BE, "UTF-16"),
)
_SAMPLE: Final = 64
_SAMPLE_MIN: Final = 4


def wide_encoding(first: bytes) -> str | None:
    """The encoding of a text that begins with these bytes, if its line feeds have several bytes: known by its mark, or
    because every second byte is NUL, and no other."""
    for mark, name in _MARKS:
        if first.startswith(mark):
            return name
    sample = first[: min(len(first) & ~1, _SAMPLE)]
    even, odd = sample[::2], sample[1::2]
    is_wide = all(even) and not any(odd) or all(odd) and not any(even)
    return "UTF-16" if len(sample) >= _SAMPLE_MIN and is_wide else None


def leading_nuls(data: bytes) -> int:
    """How many: a writer that did not notice that its file was truncated writes on at its old offset, behind a hole."""
    return len(data) - len(data.lstrip(b"\0"))
