"""Free ports for brokers that are killed and started again on the same address.

``bind`` to port 0 does not do for them: the system takes such a port for an outgoing connection or for somebody else's
port 0 as soon as the broker is down. Ports below its ephemeral range are left to those who ask for them by number.

Nor does a look at which of those are free: between it and the broker's start, which takes seconds, or while the broker
is down, another process that plans brokers would find the same port free. So each such process claims blocks of ports,
by the name of a socket that the kernel gives up when the process ends.
"""

from __future__ import annotations

import errno
import os
import random
import socket
import sys
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from typing import Final

_PORT_MAX: Final = 65_535
_LOWEST: Final = 10_000
_EPHEMERAL: Final = 32_768
"""Where Linux begins to hand out ports (ip_local_port_range); macOS and Windows begin at 49,152."""
_BLOCK: Final = 128
_ATTEMPTS: Final = 4 * _BLOCK
_CLAIM: Final = "\0einmal-ports-{first}"
"""An abstract name: of the network namespace, like the ports, and in no folder that could outlive the process."""


class _ClaimedPorts:
    """Ports that no other process of this machine plans with, each again only after all others. For one process."""

    def __init__(self) -> None:
        # Not from a seed: two programs that plan at once must not try the same blocks first.
        blocks = range(_LOWEST, _EPHEMERAL - _BLOCK + 1, _BLOCK)
        self._blocks = random.SystemRandom().sample(blocks, len(blocks))
        self._ports: deque[int] = deque()
        self._unused = 0
        """How many of the ports, at the left, were not handed out yet."""
        self._claims: list[socket.socket] = []

    def take(self) -> int:
        if not self._unused:
            self._claim_block()
        self._unused = max(0, self._unused - 1)
        self._ports.rotate(-1)
        return self._ports[-1]

    def _claim_block(self) -> None:
        """The next block that is free; once there is none, any other if this process has no port at all."""
        while self._blocks:
            first = self._blocks.pop()
            if self._claims_it(first) or not (self._blocks or self._ports):
                # In random order: where blocks cannot be claimed, another process may have the same one.
                self._ports.extendleft(random.SystemRandom().sample(range(first, first + _BLOCK), _BLOCK))
                self._unused = _BLOCK
                return

    def _claims_it(self, first: int) -> bool:
        if sys.platform != "linux":
            # There are no abstract names; a random block must do.
            return True
        claim = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            claim.bind(_CLAIM.format(first=first))
        except OSError:
            claim.close()
            return False
        self._claims.append(claim)
        return True

    def give_up(self) -> None:
        for claim in self._claims:
            claim.close()


_lock = threading.Lock()
_claimed = _ClaimedPorts()


def _forget() -> None:
    """A forked process has the parent's sockets, and plans with blocks of its own."""
    global _claimed, _lock
    _claimed.give_up()
    _lock, _claimed = threading.Lock(), _ClaimedPorts()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


def free_ports(wanted: Iterable[tuple[str, int]]) -> list[int]:
    """The wanted (host, port) pairs' ports, each different; any free one in place of 0 and of one that is taken.

    Raises OSError when nothing can listen on a host, as on one that is not this machine's.
    """
    sockets = []
    try:
        for host, port in wanted:
            probe = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
            sockets.append(probe)
            # As the brokers will: a port whose last connections are still closing is free.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            _bind(probe, host, port, taken={other.getsockname()[1] for other in sockets[:-1]})
        return [probe.getsockname()[1] for probe in sockets]
    finally:
        for probe in sockets:
            probe.close()


def _unplanned() -> Iterator[int]:
    while True:
        with _lock:
            port = _claimed.take()
        yield port


def _bind(to: socket.socket, host: str, port: int, *, taken: set[int]) -> None:
    named = [port] if 0 < port <= _PORT_MAX else []
    for candidate in chain(named, islice(_unplanned(), _ATTEMPTS)):
        if candidate in taken:
            continue
        try:
            return to.bind((host, candidate))
        except OSError as error:
            if error.errno not in (errno.EADDRINUSE, errno.EACCES):
                raise
    to.bind((host, 0))
