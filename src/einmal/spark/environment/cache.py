"""Files that can be made again, kept from one start to the next. Some are programs, so nobody else may write them."""

from __future__ import annotations

import hashlib
import os
import stat
import tempfile
from pathlib import Path
from typing import Final

import platformdirs

from einmal.spark.environment.temporary_folder import temporary_folder

_OTHERS: Final = stat.S_IWGRP | stat.S_IWOTH


def cache_directory() -> Path:
    """Where they are: the user's cache, else the user's own directory in the temporary one, else one of this process.

    A directory that another user has made, or could change, is left alone.
    """
    known = (
        platformdirs.user_cache_path("einmal", appauthor=False),
        Path(tempfile.gettempdir(), f"einmal-{os.geteuid()}"),
    )
    return next(filter(_is_made, known), None) or temporary_folder()


def is_private(path: Path) -> bool:
    """Whether no other user can change a path: it, what it leads to, and each directory above these
    belong to this user or to root, and only a sticky directory may be written by others. False for none."""
    try:
        return all(
            map(_is_safe, (checked_path for one in (path, path.resolve()) for checked_path in (one, *one.parents)))
        )
    except OSError:
        return False


def kept(name: str, text: str, *, mode: int = 0o644) -> Path:
    """A file with this text in the cache; its ``name`` has a ``{}`` for the text's hash."""
    path = cache_directory() / name.format(hashlib.sha256(text.encode()).hexdigest()[:16])
    if not is_private(path) or path.read_bytes() != text.encode():
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Under a name of its own first: several sessions may start at once.
        handle, temporary = tempfile.mkstemp(dir=path.parent)
        with os.fdopen(handle, "wb") as file:
            file.write(text.encode())
            os.fchmod(handle, mode)
        Path(temporary).replace(path)
    return path


def _is_made(directory: Path) -> bool:
    if not directory.is_absolute():
        # A user without a home directory.
        return False
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = directory.lstat()
        if status.st_uid == os.geteuid() and stat.S_ISDIR(status.st_mode) and status.st_mode & _OTHERS:
            # Made under a umask that lets a group write; what was put there meanwhile is checked file by file.
            directory.chmod(0o700)
        return is_private(directory) and os.access(directory, os.W_OK | os.X_OK)
    except OSError:
        return False


def _is_safe(path: Path) -> bool:
    status = path.lstat()
    if status.st_uid not in (os.geteuid(), 0):
        return False
    return stat.S_ISLNK(status.st_mode) or not status.st_mode & _OTHERS or bool(status.st_mode & stat.S_ISVTX)
