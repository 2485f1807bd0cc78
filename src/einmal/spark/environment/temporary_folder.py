"""One temporary folder for all that sessions leave on this machine, also where its driver was killed.

Spark, the JVM and its libraries remove their temporary files when they end, not when they are killed: a program that is
killed again and again would fill the disk. So all of them get one folder of the driver's process, which keeps it
locked. The system unlocks it when the process ends, in whatever way, and the next driver removes the folders that
nobody has locked.
"""

from __future__ import annotations

import atexit
import fcntl
import functools
import os
import shutil
import socket
import stat
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

_PREFIX: Final = "einmal-spark-"
_LOCK: Final = "driver.lock"


@functools.cache
def temporary_folder() -> Path:
    """The folder of this process, which is made at the first call and removed when the process ends. Raises OSError."""
    for abandoned in _abandoned(Path(tempfile.gettempdir())):
        shutil.rmtree(abandoned, ignore_errors=True)
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
    atexit.register(_remove, folder, os.getpid())
    # Locked before it has its name: no other session finds it unlocked.
    unnamed = folder / f"{_LOCK}.new"
    lock = os.open(unnamed, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    os.write(lock, _host())
    # A file system without locks: the folder stays when its driver is killed.
    with suppress(OSError):
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        unnamed.rename(folder / _LOCK)
    return folder


def _host() -> bytes:
    """This machine's name: on a shared file system, locks of another machine may not be seen."""
    return socket.gethostname().encode()


def _abandoned(directory: Path) -> Iterator[Path]:
    """This user's folders whose drivers have ended here. One without a lock is being made, or is not ours."""
    for folder in directory.glob(f"{_PREFIX}*"):
        try:
            status = folder.lstat()
            if status.st_uid != os.geteuid() or not stat.S_ISDIR(status.st_mode):
                continue
            lock = os.open(folder / _LOCK, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.read(lock, 256) == _host():
                yield folder
        except OSError:
            continue
        finally:
            os.close(lock)


def _remove(folder: Path, owner: int) -> None:
    if os.getpid() == owner:
        shutil.rmtree(folder, ignore_errors=True)
