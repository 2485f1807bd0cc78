"""Parts that every format has in common: limits, the decoder's interface and its result. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol

from einmal.schemas.errors import NestedTooDeeply, SchemaError, ValueTooLarge

BYTES_MAX: Final = 8 * 1024 * 1024
DEPTH_MAX: Final = 64
_TYPES_MAX: Final = 10_000
_BRACKETS: Final = re.compile(rb'"(?:[^"\\]|\\.)*+"?|[\[{]|[\]}]', re.DOTALL)
"""Brackets, and whole texts. A text without an end is taken to the end, once: its quotes start no further search."""


@dataclass(frozen=True, slots=True)
class Limits:
    """``size``: bytes of one key or value; ``depth``: of its nesting. What exceeds them is a bad row."""

    size: int = BYTES_MAX
    depth: int = DEPTH_MAX

    def check_size(self, raw: bytes) -> None:
        """Raises ValueTooLarge."""
        if len(raw) > self.size:
            raise ValueTooLarge(f"{len(raw):,} bytes; at most {self.size:,} are decoded")

    def check_depth(self, raw: bytes) -> None:
        """Check the depth of JSON, before it is parsed: a parser recurses. Raises NestedTooDeeply."""
        if raw.count(b"[") + raw.count(b"{") <= self.depth:
            return
        depth = 0
        for match in _BRACKETS.finditer(raw):
            if match[0] in (b"[", b"{"):
                depth += 1
                if depth > self.depth:
                    raise NestedTooDeeply(f"more than {self.depth} levels of nesting")
            elif match[0] in (b"]", b"}"):
                depth -= 1


class VisitedTypes:
    """Counts a schema's types while they become columns: a name stands for all of its type, so that a few kilobytes of
    schema can have more columns than there is memory."""

    def __init__(self, schema: str) -> None:
        """``schema``: its kind, for the error."""
        self._schema = schema
        self._count = 0

    def visit(self) -> None:
        """Count one more. Raises SchemaError."""
        self._count += 1
        if self._count > _TYPES_MAX:
            raise SchemaError(f"the {self._schema} has more than {_TYPES_MAX:,} types", "such schemas are not decoded")


class Decoded(NamedTuple):
    """``value``: for Arrow. ``unknown``: fields that the schema does not have, by path."""

    value: Any
    unknown: Mapping[str, Any]


class Decoder(Protocol):
    """``ddl``: the type of the decoded column in Spark's DDL."""

    @property
    def ddl(self) -> str: ...

    def decode(self, raw: bytes) -> Decoded:
        """Raises BadRow, and RegistryUnavailable where a schema has to be fetched."""
