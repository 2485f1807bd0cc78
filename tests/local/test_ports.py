"""Claims about the ports of brokers that are killed and started again."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from einmal.local.ports import free_ports

_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")


def test_no_outgoing_connection_can_take_the_port_of_a_broker_that_is_down() -> None:
    """Nor a listener on port 0: the system hands out neither from below its ephemeral range."""
    lowest = int(_RANGE.read_text().split()[0]) if _RANGE.exists() else 49_152
    assert all(port < lowest for port in free_ports([("127.0.0.1", 0)] * 50))


def test_ports_are_different_and_free() -> None:
    ports = free_ports([("127.0.0.1", 0)] * 50)
    assert len(set(ports)) == 50
    for port in ports:
        with socket.create_server(("127.0.0.1", port)):
            pass


def test_a_wanted_port_is_replaced_only_when_it_is_taken() -> None:
    (free,) = free_ports([("127.0.0.1", 0)])
    with socket.create_server(("127.0.0.1", 0)) as server:
        taken = server.getsockname()[1]
        found = free_ports([("127.0.0.1", free), ("127.0.0.1", taken), ("127.0.0.1", free), ("127.0.0.1", 70_000)])
    assert found[0] == free
    assert len({*found, taken}) == 5


def test_a_host_that_is_not_this_machine_is_refused_at_once() -> None:
    with pytest.raises(OSError, match="Cannot assign requested address"):
        free_ports([("192.0.2.1", 0)])
