"""Claims about the shell's completion, which has the names of a cluster."""

from __future__ import annotations

import socket
import time

import pytest

from einmal.client import Producer
from tests.cli.running import Cli, invoke

pytestmark = pytest.mark.system


def completed(bootstrap: str, line: str, shell: str = "bash") -> list[str]:
    """The words that the shell offers for the last word of the line."""
    words = line.split(" ")
    environment = {
        "KAFKA_BROKERS": bootstrap,
        "_EINMAL_COMPLETE": f"complete_{shell}",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(words) - 1),
        "_TYPER_COMPLETE_ARGS": line,
        "_TYPER_COMPLETE_FISH_ACTION": "get-args",
    }
    result = invoke([], env=environment, prog_name="einmal")
    assert result.stderr == ""
    return result.stdout.split()


@pytest.fixture(scope="module")
def named(cluster: str) -> str:
    """A cluster with names that the tests complete."""
    cli = Cli(cluster)
    cli("topic", "create", "completed-a", "completed-b")
    cli("topic", "produce", "completed-a", stdin="x\n")
    cli("topic", "consume", "completed-a", "-g", "completed-group", "-n", "1")
    with Producer(bootstrap_servers=cluster, transactional_id="completed-id") as producer:
        producer.init_transactions()
    return cluster


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ("einmal topic describe completed-", ["completed-a", "completed-b"]),
        ("einmal topic rm completed-a completed-", ["completed-a", "completed-b"]),
        ("einmal txn doctor --topic completed-b", ["completed-b"]),
        ("einmal group seek completed-", ["completed-group"]),
        ("einmal txn abort completed-", ["completed-id"]),
        ("einmal topic desc", ["describe"]),
    ],
)
def test_names_are_those_of_the_cluster(named: str, line: str, names: list[str]) -> None:
    assert completed(named, line) == names


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_complete_too(named: str, shell: str) -> None:
    assert "completed-group" in "\n".join(completed(named, "einmal group lag completed-", shell))


def test_options_of_the_line_choose_the_cluster(named: str) -> None:
    assert completed("127.0.0.1:1", f"einmal topic describe -b {named} completed-b") == ["completed-b"]


def test_a_cluster_that_does_not_answer_completes_nothing_in_time() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        began = time.monotonic()
        assert completed(f"127.0.0.1:{silent.getsockname()[1]}", "einmal topic describe x") == []
        assert time.monotonic() - began < 10, "not the timeout of a client"
