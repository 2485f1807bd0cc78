"""Whether this process runs the modules that mypyc has compiled, and how it finds them in a source tree.

A wheel has them beside their sources, where Python prefers them. A source tree has them in ``build/compiled``, with a
list of the sources that they depend on: once one of these has changed, a process runs every module interpreted, so an
edit always counts. With ``EINMAL_PURE=1`` it does so, too, and a build compiles nothing.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from importlib.machinery import EXTENSION_SUFFIXES, ModuleSpec
from importlib.util import find_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Final

PURE: Final = "EINMAL_PURE"
SUFFIX: Final = EXTENSION_SUFFIXES[0]
SOURCES: Final = "sources"
"""The list's name: a line for each source, as ``stamp_of`` returns it."""
ROOT: Final = Path(__file__).parents[2]
FOLDER: Final = ROOT / "build" / "compiled" / SUFFIX.split(".")[1]


def is_pure() -> bool:
    """Whether the environment asks for the sources."""
    return os.environ.get(PURE, "0") not in ("", "0")


def is_compiled() -> bool:
    """Whether this process runs compiled modules."""
    spec = find_spec("einmal.wire.record_scan")
    return spec is not None and spec.origin is not None and spec.origin.endswith(SUFFIX)


def execution() -> str:
    """How this process runs the hot path, in a word."""
    return "compiled" if is_compiled() else "interpreted"


def stamp_of(source: str) -> str:
    """A file's state and its path from the root of the source tree. Raises FileNotFoundError."""
    state = (ROOT / source).stat()
    return f"{state.st_mtime_ns} {state.st_size} {source}"


def find_compiled(folder: Path = FOLDER) -> None:
    """Let imports find the compiled modules of the source tree, if it has any, and they are not older than it."""
    if is_pure() or not (ROOT / "pyproject.toml").is_file() or Path(__file__).parents[1] != ROOT / "src":
        # Installed, the folder would be anybody's.
        return
    # Whoever compiles again replaces the folder at this moment.
    with suppress(OSError):
        if _is_current(folder):
            sys.meta_path.insert(0, _Finder(dict(_modules(folder))))


def _is_current(folder: Path) -> bool:
    """Raises OSError."""
    stamps = (folder / SOURCES).read_text(encoding="utf-8").splitlines()
    paths = [stamp.split(" ", 2)[2:] for stamp in stamps]
    return bool(stamps) and all(path and stamp == stamp_of(*path) for stamp, path in zip(stamps, paths, strict=True))


def _modules(folder: Path) -> Iterator[tuple[str, str]]:
    for path in folder.iterdir():
        if path.name.endswith(SUFFIX):
            yield path.name.removesuffix(SUFFIX), str(path)


class _Finder:
    """No ``importlib.abc.MetaPathFinder`` by name: that module imports many others, in every process."""

    def __init__(self, paths: dict[str, str]) -> None:
        self._paths = paths

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        location = self._paths.get(fullname)
        return None if location is None else spec_from_file_location(fullname, location)
