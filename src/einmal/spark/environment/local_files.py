"""The files of a directory on this machine, without Spark: as ``hadoop_files``, for processes that have no JVM."""

from __future__ import annotations

import os
import uuid
from pathlib import Path


class RemoteLocation(Exception):
    """A location that only Hadoop's FileSystem reaches."""


class LocalFiles:
    """``uri``: of the directory, as Hadoop spells it."""

    def __init__(self, location: str) -> None:
        """``location``: a path, or a ``file:`` URI. Raises RemoteLocation."""
        scheme, colon, rest = location.partition(":")
        if colon and scheme != "file":
            raise RemoteLocation(location)
        # As Hadoop names it: links are not followed.
        self._root = Path(os.path.normpath(Path.cwd() / ("/" + rest.lstrip("/") if colon else location)))
        self.uri = f"file:{self._root}"

    def exists(self, name: str) -> bool:
        return (self._root / name).exists()

    def read(self, name: str) -> str | None:
        """The text of a file; None where there is none."""
        try:
            return (self._root / name).read_text(encoding="utf-8")
        except FileNotFoundError:
            return None

    def names(self, directory: str) -> list[str]:
        """The names in a directory."""
        try:
            return [path.name for path in (self._root / directory).iterdir()]
        except FileNotFoundError:
            return []

    def names_below(self, directory: str) -> list[str]:
        """The names of all files below a directory."""
        return [name for _, _, names in os.walk(self._root / directory) for name in names]

    def delete(self, name: str) -> None:
        (self._root / name).unlink(missing_ok=True)

    def create(self, name: str, text: str) -> None:
        """Raises FileExistsError."""
        target = self._root / name
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = target.with_name(f".{target.name}.{uuid.uuid4()}.tmp")
        temporary.write_text(text, encoding="utf-8")
        try:
            os.link(temporary, target)
        finally:
            temporary.unlink()
