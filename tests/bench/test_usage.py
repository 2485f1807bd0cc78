"""Claims about the processes of measured brokers: they are those that listen at the brokers' addresses."""

from __future__ import annotations

import os
import socket
import time

from einmal.bench.usage import cpu_seconds, listening_processes


def test_a_broker_on_this_machine_is_the_process_that_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as other:
        addresses = [one.getsockname(), other.getsockname()]
        (process,) = listening_processes(addresses)
        assert process.pid == os.getpid()
        before = cpu_seconds([process])
        until = time.process_time() + 0.1
        while time.process_time() < until:
            pass
        assert cpu_seconds([process]) - before >= 0.05


def test_brokers_elsewhere_have_no_processes() -> None:
    with socket.create_server(("127.0.0.1", 0)) as here:
        port = here.getsockname()[1]
        assert listening_processes([("127.0.0.1", port), ("192.0.2.1", port)]) == []
    assert listening_processes([("127.0.0.1", port)]) == []
