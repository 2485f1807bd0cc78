"""A page of the documentation that a tool writes, or with ``--check`` compares."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path


def write_or_check(path: Path, page: Callable[[], str], module: str) -> None:
    """``module``: what to run where the page is out of date, which is SystemExit."""
    if "--check" not in sys.argv[1:]:
        path.write_text(page())
    elif not path.exists() or path.read_text() != page():
        sys.exit(f"{path.name} is out of date: run python -m {module}")
