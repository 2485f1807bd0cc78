"""Claims about the ports of brokers that are killed and started again."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from einmal.local import ports as planned
from einmal.local.ports import free_ports

_HELD = """
import json, sys
from einmal.local.ports import free_ports
print(json.dumps(free_ports([("127.0.0.1", 0)] * 200)), flush=True)
sys.stdin.read()
"""
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


def test_a_port_comes_again_only_after_all_others() -> None:
    """A broker of this process may be down meanwhile."""
    ports = [free_ports([("127.0.0.1", 0)])[0] for _ in range(300)]
    assert len(set(ports)) == 300


@pytest.mark.skipif(sys.platform != "linux", reason="no abstract names of sockets")
def test_processes_that_plan_at_once_find_different_ports() -> None:
    """Though nobody listens on any of them yet."""
    command = [sys.executable, "-c", _HELD]
    processes = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(6)]
    try:
        found: list[int] = []
        for process in processes:
            assert process.stdout is not None
            found += json.loads(process.stdout.readline())
    finally:
        for process in processes:
            process.communicate()
    assert len(set(found)) == 6 * 200


@pytest.mark.skipif(sys.platform != "linux", reason="no abstract names of sockets")
def test_a_forked_process_plans_with_ports_of_its_own() -> None:
    program = """
import json, os
from einmal.local.ports import free_ports
free_ports([("127.0.0.1", 0)])
child = os.fork()
os.write(1, json.dumps(free_ports([("127.0.0.1", 0)] * 20)).encode() + b"\\n")
if child:
    os.waitpid(child, 0)
"""
    command = [sys.executable, "-X", "dev", "-W", "error", "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    first, second = (set(json.loads(line)) for line in done.stdout.splitlines())
    assert not first & second


def test_without_abstract_names_processes_with_the_same_block_try_other_ports_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(planned, "_EPHEMERAL", planned._LOWEST + planned._BLOCK)
    first, second = (
        [claimed.take() for _ in range(10)] for claimed in (planned._ClaimedPorts(), planned._ClaimedPorts())
    )
    assert first != second


def test_a_system_without_fork_has_free_ports() -> None:
    program = (
        "import os, random; del os.register_at_fork; from einmal.local.ports import free_ports; print(free_ports([]))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stdout == "[]\n", done.stderr
