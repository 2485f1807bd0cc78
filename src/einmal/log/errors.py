"""What can be wrong with a log on disk.

LogCorruption         bytes that were flushed once are not a valid batch any more: reported, never served, never cut off
└── (a torn tail is none: what was never flushed is cut at the last valid batch)
SyncFailed            an OSError after which nobody knows what the disk holds until the machine has started again
"""

from __future__ import annotations

import errno
from typing import Final

SHORTAGES: Final = (errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE)
"""Of room or file descriptors: nothing was written, and the same write may succeed later."""


class LogCorruption(Exception):
    """A segment's bytes cannot be trusted; the text says which file and where."""


class SyncFailed(OSError):
    """Pages that could not be written count as clean from now on: trying once more would seem to succeed."""
