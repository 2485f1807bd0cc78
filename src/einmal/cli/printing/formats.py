"""Format of results, the same option in every command."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer


class Format(StrEnum):
    TEXT = "text"
    WIDE = "wide"
    """Text with the columns that JSON has."""
    JSON = "json"
    YAML = "yaml"

    @property
    def is_document(self) -> bool:
        """Whether programs read it: see ``documents``."""
        return self in (Format.JSON, Format.YAML)

    @property
    def has_all(self) -> bool:
        """Whether columns are shown that do not fit on a narrow terminal."""
        return self is not Format.TEXT


class LogFormat(StrEnum):
    TEXT = "text"
    JSON = "json"


Output = Annotated[Format, typer.Option("--format", help="Format of results; wide: text with all columns.")]
