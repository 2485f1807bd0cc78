"""Free ports for brokers that are killed and started again on the same address.

``bind`` to port 0 does not do for them: the system takes such a port for an outgoing connection or for somebody else's
port 0 as soon as the broker is down. Ports below its ephemeral range are left to those who ask for them by number.
"""

from __future__ import annotations

import errno
import random
import socket
from collections.abc import Iterable
from typing import Final

_PORT_MAX: Final = 65_535
_LOWEST: Final = 10_000
_EPHEMERAL: Final = 32_768
"""Where Linux begins to hand out ports (ip_local_port_range); macOS and Windows begin at 49,152."""
_ATTEMPTS: Final = 100


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


def _bind(to: socket.socket, host: str, port: int, *, taken: set[int]) -> None:
    # Not from a seed: two programs that plan at once must not try the same ports.
    candidates = random.SystemRandom().sample(range(_LOWEST, _EPHEMERAL), _ATTEMPTS)
    if 0 < port <= _PORT_MAX:
        candidates.insert(0, port)
    for candidate in candidates:
        if candidate in taken:
            continue
        try:
            return to.bind((host, candidate))
        except OSError as error:
            if error.errno not in (errno.EADDRINUSE, errno.EACCES):
                raise
    to.bind((host, 0))
