"""One temporary folder for all that a session leaves on this machine, also where its driver was killed.

Spark, the JVM and its libraries remove their temporary files when they end, not when they are killed: a program that is
killed again and again would fill the disk. So all of them get one folder, which its driver keeps locked. The system
unlocks it when the process ends, in whatever way, and the next session removes the folders that nobody has locked.
"""

from __future__ import annotations

import atexit
import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_PREFIX: Final = "einmal-spark-"
_LOCK: Final = "driver.lock"


def temporary_folder() -> Path:
    """Make a folder for one session of this process, which is removed when the process ends. Raises OSError."""
    for abandoned in _abandoned(Path(tempfile.gettempdir())):
        shutil.rmtree(abandoned, ignore_errors=True)
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
    # Locked before it has its name: no other session finds it unlocked.
    unnamed = folder / f"{_LOCK}.new"
    lock = os.open(unnamed, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    unnamed.rename(folder / _LOCK)
    atexit.register(_remove, folder, os.getpid())
    return folder


def _abandoned(directory: Path) -> Iterator[Path]:
    """This user's folders whose drivers have ended. One without a lock is being made, or is not ours."""
    for folder in directory.glob(f"{_PREFIX}*"):
        try:
            found = folder.lstat()
            if found.st_uid != os.geteuid() or not stat.S_ISDIR(found.st_mode):
                continue
            lock = os.open(folder / _LOCK, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield folder
        except BlockingIOError:
            continue
        finally:
            os.close(lock)


def _remove(folder: Path, owner: int) -> None:
    if os.getpid() == owner:
        shutil.rmtree(folder, ignore_errors=True)
