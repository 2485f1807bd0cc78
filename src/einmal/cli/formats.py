"""Format of results, the same option in every command."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer


class Format(StrEnum):
    TEXT = "text"
    JSON = "json"


Output = Annotated[Format, typer.Option("--format", help="Format of results.")]
