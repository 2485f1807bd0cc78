"""Files that can be made again, kept from one start to the next."""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path

import platformdirs


def cache_directory() -> Path:
    """Where they are: the user's cache, or the temporary directory."""
    directory = platformdirs.user_cache_path("einmal", appauthor=False)
    try:
        if not directory.is_absolute():
            # A user without a home directory.
            raise OSError(directory)
        directory.mkdir(parents=True, exist_ok=True)
        if os.access(directory, os.W_OK | os.X_OK):
            return directory
    except OSError:
        pass
    fallback = Path(tempfile.gettempdir(), f"einmal-{os.getuid()}")
    fallback.mkdir(mode=0o700, exist_ok=True)
    return fallback


def kept(name: str, text: str, *, mode: int = 0o644) -> Path:
    """A file with this text in the cache; its ``name`` has a ``{}`` for the text's hash."""
    path = cache_directory() / name.format(hashlib.sha256(text.encode()).hexdigest()[:16])
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        # Under a name of its own first: several sessions may start at once.
        handle, temporary = tempfile.mkstemp(dir=path.parent)
        os.write(handle, text.encode())
        os.fchmod(handle, mode)
        os.close(handle)
        Path(temporary).replace(path)
    return path
