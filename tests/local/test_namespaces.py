"""Claims about network namespaces for brokers, with real ones: they need root on Linux."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from einmal.local.namespaces import Namespaces, NamespacesMissing
from tests.suite.patience import patient

pytestmark = pytest.mark.system

_PORT: Final = 9_092
_SERVE: Final = f"""
import socket, sys
server = socket.create_server(("0.0.0.0", {_PORT}))
print("ready", flush=True)
while True:
    connection, _ = server.accept()
    connection.sendall(b"served")
    connection.close()
"""
_ASK: Final = """
import socket, sys
with socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=float(sys.argv[3])) as connection:
    assert connection.recv(6) == b"served"
"""


@pytest.fixture
def namespaces() -> Iterator[Namespaces]:
    try:
        made = Namespaces(2)
    except NamespacesMissing as error:
        pytest.skip(str(error))
    yield made
    made.close()


def links() -> set[str]:
    return {path.name for path in Path("/sys/class/net").iterdir()}


def is_reached(namespaces: Namespaces, node_id: int, by: int | None, seconds: float) -> bool:
    """``by``: a node; None: this machine."""
    inside = [] if by is None else namespaces.command(by)
    command = [*inside, sys.executable, "-I", "-c", _ASK, namespaces.host(node_id), str(_PORT), str(seconds)]
    return subprocess.run(command, stderr=subprocess.DEVNULL, check=False).returncode == 0


def test_packets_between_two_nodes_are_lost_until_they_pass_again(namespaces: Namespaces) -> None:
    with subprocess.Popen(
        [*namespaces.command(1), sys.executable, "-I", "-c", _SERVE], stdout=subprocess.PIPE
    ) as server:
        assert server.stdout is not None and server.stdout.readline() == b"ready\n"
        assert is_reached(namespaces, 1, 2, patient(10)) and is_reached(namespaces, 1, None, patient(10))
        for sender, receiver in ((2, 1), (1, 2)):
            namespaces.cut(sender, receiver)
            assert not is_reached(namespaces, 1, 2, 0.5)
            assert is_reached(namespaces, 1, None, patient(10)), "nobody else is cut off"
            namespaces.restore(sender, receiver)
            assert is_reached(namespaces, 1, 2, patient(10))
            namespaces.restore(sender, receiver)
        server.kill()


def test_nothing_is_left_of_them(namespaces: Namespaces) -> None:
    mine = {link for link in links() if link.startswith(namespaces.bridge)}
    assert len(mine) == 3
    namespaces.close()
    assert not mine & links()


def test_an_error_names_what_is_needed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NamespacesMissing, match=r"ip: No such file or directory(.|\n)*they need Linux, root"):
        Namespaces(1)
