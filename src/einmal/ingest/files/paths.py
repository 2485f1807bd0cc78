"""Paths that match a pattern with ``**``, each directory once: symbolic links may lead back to where they are."""

from __future__ import annotations

import contextlib
import glob
import os
import posixpath
from collections.abc import Iterable, Iterator
from typing import Final

_BELOW: Final = "**"


def matching(pattern: str) -> Iterator[str]:
    """As ``glob.iglob`` with ``recursive``."""
    parts = pattern.split("/")
    if _BELOW not in parts:
        return glob.iglob(pattern, recursive=True)
    at = parts.index(_BELOW)
    before, rest = "/".join(parts[:at]) or "/", "/".join(parts[at + 1 :])
    return _below(glob.iglob(before, recursive=True), rest if len(parts) > at + 1 else "*")


def _below(roots: Iterable[str], rest: str) -> Iterator[str]:
    """Paths that match ``rest`` in these directories and all below; empty: the directories themselves."""
    visited: set[tuple[int, int]] = set()
    folders = list(roots)
    while folders:
        folder = folders.pop()
        try:
            status = os.stat(folder)
            if (status.st_dev, status.st_ino) in visited:
                continue
            visited.add((status.st_dev, status.st_ino))
            with os.scandir(folder) as entries:
                folders += sorted((entry.path for entry in entries if _is_visible_folder(entry)), reverse=True)
        except OSError:
            # No directory, or one that cannot be listed, which the scan reports.
            if not os.path.isdir(folder):
                continue
        inside = posixpath.join(glob.escape(folder), rest)
        yield from matching(inside) if rest else [posixpath.join(folder, "")]


def _is_visible_folder(entry: os.DirEntry[str]) -> bool:
    with contextlib.suppress(OSError):
        return not entry.name.startswith(".") and entry.is_dir()
    return False
