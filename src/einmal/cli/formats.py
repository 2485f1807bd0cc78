"""How results are printed, the same word in every command."""

from __future__ import annotations

from enum import StrEnum


class Format(StrEnum):
    TEXT = "text"
    JSON = "json"
