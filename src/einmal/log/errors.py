"""Errors of a log on disk.

LogCorruption         bytes that were flushed once are not a valid batch any more: reported, never served, never cut off
└── (a torn tail is none: what was never flushed is cut at the last valid batch)
SyncFailed            an OSError after which the disk's content is unknown until the machine has restarted
"""

from __future__ import annotations

import errno
from typing import Final

SHORTAGES: Final = (errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE)
"""Shortages of disk space or file descriptors: nothing was written, and the same write may succeed later."""


class LogCorruption(Exception):
    """A segment's bytes cannot be trusted; the text names the file and the position."""


class SyncFailed(OSError):
    """Pages that could not be written count as clean from now on: a retry would seem to succeed."""
