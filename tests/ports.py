"""Loopback ports for the brokers of tests."""

from __future__ import annotations

from einmal.local.ports import free_ports


def loopback_ports(count: int) -> list[int]:
    """Different ports that nobody listens on, and that stay free while their broker is down."""
    return free_ports([("127.0.0.1", 0)] * count)
