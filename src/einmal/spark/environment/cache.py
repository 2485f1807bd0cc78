"""Files that can be made again, kept from one start to the next.

Some are programs that Spark's processes run, and the archive of classes is code, too. Whoever can put a file where they
are looked for runs it as whoever starts Spark. So a directory is used only if it belongs to this user and nobody else
may write in it, and a file only if it has the expected content.
"""

from __future__ import annotations

import atexit
import functools
import hashlib
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import platformdirs

_OTHERS_MAY_WRITE = stat.S_IWGRP | stat.S_IWOTH


def cache_directory() -> Path:
    """Where they are: the user's cache, or a private directory among the temporary ones."""
    for candidate in _candidates():
        try:
            candidate.mkdir(mode=0o700, parents=True, exist_ok=True)
            if is_private(candidate) and os.access(candidate, os.W_OK | os.X_OK):
                return candidate
        except OSError:
            continue
    return _of_this_process()


def _candidates() -> Iterator[Path]:
    directory = platformdirs.user_cache_path("einmal", appauthor=False)
    if directory.is_absolute():
        yield directory
    # Of a user without a home directory. Anybody can make it first, so it may be somebody else's.
    yield Path(tempfile.gettempdir(), f"einmal-{os.geteuid()}")


@functools.cache
def _of_this_process() -> Path:
    """Where no other is this user's alone: a new one, which ends with the process."""
    directory = tempfile.mkdtemp(prefix="einmal-")
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return Path(directory)


def is_private(path: Path) -> bool:
    """Whether a directory or a file is this user's own, and nobody else may change it. A symbolic link is nobody's."""
    status = path.lstat()
    if stat.S_ISLNK(status.st_mode):
        return False
    return status.st_uid == os.geteuid() and not status.st_mode & _OTHERS_MAY_WRITE


def kept(name: str, text: str, *, mode: int = 0o644) -> Path:
    """A file with this text in the cache; its ``name`` has a ``{}`` for the text's hash. Raises PermissionError."""
    cache = cache_directory()
    path = cache / name.format(hashlib.sha256(text.encode()).hexdigest()[:16])
    for directory in reversed(path.relative_to(cache).parents[:-1]):
        _make_private(cache / directory)
    if not _has(path, text):
        # Under a name of its own first: several sessions may start at once.
        handle, temporary = tempfile.mkstemp(dir=path.parent)
        os.write(handle, text.encode())
        os.fchmod(handle, mode)
        os.close(handle)
        Path(temporary).replace(path)
    return path


def _make_private(directory: Path) -> None:
    """Inside of a private one, so only this user's umask can have let others in."""
    directory.mkdir(mode=0o700, exist_ok=True)
    status = directory.lstat()
    if stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid():
        directory.chmod(0o700)
    else:
        raise PermissionError(f"{directory} is not this user's own, and programs would be run from it: remove it")


def _has(path: Path, text: str) -> bool:
    try:
        return is_private(path) and path.read_bytes() == text.encode()
    except OSError:
        return False
