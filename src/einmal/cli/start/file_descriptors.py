"""How many file descriptors this process may have, and how files and connections share them.

Both come from clients: a topic's settings decide how many segments it has, and anybody may connect. Neither may take
the other's, or what a checkpoint, a flush or a new connection to another broker needs for a moment.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Final, NamedTuple

from einmal.event_log import EventLog

log = EventLog(__name__)

_KEPT_FREE: Final = 64
"""For listening sockets, other nodes, and files that are open for the time of a call, in each thread."""
_LEAST: Final = 32


class Shares(NamedTuple):
    """``connections``: of each listener."""

    files: int
    connections: tuple[int, ...]


def shares(limit: int, wanted: Sequence[int]) -> Shares:
    """Return the shares of ``limit`` descriptors; ``wanted``: the connections that each listener may have, as its
    settings have it."""
    left = max(_LEAST, limit - _KEPT_FREE)
    most = left // 2 // len(wanted)
    connections = tuple(min(count, most) for count in wanted)
    return Shares(left - sum(connections), connections)


def raised_limit() -> int:
    """The soft limit of the process, raised as far as is allowed: it is often 1,024."""
    try:
        import resource
    except ImportError:
        return sys.maxsize
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
        except (OSError, ValueError) as error:
            few = "no more than %(count)d file descriptors: %(error)s"
            log.warning("file_descriptors_limited", few, count=soft, error=error)
    return sys.maxsize if soft == resource.RLIM_INFINITY else soft
