"""Commands whose stdin, stdout or stderr was closed by whoever has started them."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.suite.cases import each_case
from tests.suite.shared import unique

pytestmark = pytest.mark.system


def einmal(arguments: str, closed: str, cluster: str) -> subprocess.CompletedProcess[str]:
    """Run a command by a shell that has closed these of its streams."""
    command = f"exec {sys.executable} -m einmal {arguments} --brokers {cluster} {closed}"
    return subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=120)


@each_case("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_command_that_connects_needs_no_open_stream(closed: str, cluster: str) -> None:
    """A socket that has the number of a closed stream is where messages go, and ends the process in uvloop."""
    ended = einmal(f"topic create {unique('closed')}", closed, cluster)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ("created" in ended.stdout) is (">&-" not in closed.split())


@each_case("closed", [">&-", "2>&-"])
def test_a_failure_has_its_status_without_streams(closed: str, cluster: str) -> None:
    ended = einmal(f"topic describe {unique('none')}", closed, cluster)
    assert ended.returncode == 1
    assert ("UNKNOWN_TOPIC_OR_PARTITION" in ended.stderr) is (closed != "2>&-")


@each_case("arguments, reason", [("user create alice", "the password is empty"), ("topic delete", "UNKNOWN_TOPIC")])
def test_a_closed_stdin_is_an_empty_one(arguments: str, reason: str, cluster: str) -> None:
    name = [unique("none")] if arguments == "topic delete" else []
    ended = einmal(" ".join([arguments, *name]), "<&-", cluster)
    assert ended.returncode != 0
    assert reason in ended.stderr
    assert "Traceback" not in ended.stderr
