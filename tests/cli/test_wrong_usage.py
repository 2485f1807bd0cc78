"""Claims about every command under arguments that cannot be meant: one clear error, status 1 or 2, no traceback."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer

from einmal.cli.app import app
from tests.cli.broker_process import BrokerProcess
from tests.cli.running import invoke
from tests.suite import warm
from tests.suite.cases import each_case

NOBODY = ["-b", "127.0.0.1:1", "-X", "bootstrap.timeout.ms=50"]
ON_A_CLUSTER = [
    ["topic", "create", "t"],
    ["topic", "list"],
    ["topic", "describe", "t"],
    ["topic", "delete", "t", "-y"],
    ["topic", "alter", "t", "-p", "2"],
    ["cluster", "info"],
    ["cluster", "health"],
    ["cluster", "config"],
    ["topic", "produce", "t"],
    ["topic", "consume", "t"],
    ["group", "list"],
    ["group", "describe", "g"],
    ["group", "lag", "g"],
    ["group", "seek", "g", "--to", "end"],
    ["group", "delete", "g"],
    ["txn", "doctor"],
    ["txn", "show", "x"],
    ["txn", "list"],
    ["txn", "describe", "x"],
    ["txn", "describe-producers", "--topic", "t"],
    ["txn", "find-hanging"],
    ["txn", "abort", "x", "-y"],
    ["pipeline", "status"],
    ["pipeline", "reset", "x", "-y"],
]
SERVERS = ["nowhere", "127.0.0.1:", "127.0.0.1:99999", "127.0.0.1:-1", ":9092", "host with space:1", "a..b:1", ","]
SETTINGS = ["novalue", "=", "no.such=1", "bootstrap.servers=", "request.timeout.ms=soon", "request.timeout.ms=0"]
SETTINGS += ["security.protocol=SSL", "sasl.mechanism=PLAIN", "client.id=\udcff"]
OPTIONS = [
    *(["topic", "consume", "t", "-o", offset] for offset in ("soon", "-3", "@x", "end:5", "\udcff")),
    *(["topic", "consume", "t", "-n", number] for number in ("0", "-1", "x")),
    *(["topic", "produce", "t", "-p", number] for number in ("-1", "x")),
    *(["topic", "create", "t", "-p", number] for number in ("x", "")),
    ["topic", "create", "t", "-c", "novalue"],
    ["topic", "produce", "t", "-z", "brotli"],
    ["topic", "produce", "t", "-K", ""],
    ["topic", "produce", "t", "-K", r"\n"],
    ["topic", "produce", "t", "-k", "\udcff"],
    ["topic", "produce", "t", "-H", "novalue"],
    ["topic", "produce", "t", "--transactional-id", ""],
    ["topic", "create", "\udcff"],
    ["txn", "describe", "\udcff"],
    ["txn", "abort"],
    ["group", "seek", "g", "--to", "soon"],
    ["topic", "alter", "t"],
    ["topic", "create"],
]
FILES = {
    "missing.toml": None,
    "broken.toml": b"a = [1,\n",
    "empty.toml": b"",
    "types.toml": b"transactional.id = 5\ncheckpointLocation = []\n[sources]\na = 3\n[sinks.b]\nfrom = 1\n",
    "binary.toml": bytes(range(256)),
    "latin.toml": b'transactional.id = "\xe9"\n',
    "binary.txt": bytes(range(256)),
    "latin.py": b"x = '\xe9'\n",
}
STARTS = [
    ["--port", "99999"],
    ["--port", "x"],
    ["--brokers", "0"],
    ["--brokers", "99"],
    ["--config", "missing.properties"],
    ["--config", "."],
    ["--data-dir", "/proc/nowhere", "--port", "0"],
    ["--brokers", "2", "--data-dir", "/proc/nowhere"],
    ["-X", "novalue"],
    ["-X", "num.partitions=x"],
    ["-X", "listeners=PLAINTEXT://a..b:1", "--data-dir", "d"],
    ["-X", "process.roles=cook"],
    ["--host", "a..b", "--port", "0", "--data-dir", "d"],
]
MISUSES = [
    *([*command, *NOBODY] for command in ON_A_CLUSTER),
    *(["topic", "list", "-b", servers] for servers in SERVERS),
    *([*command, *NOBODY, "-X", setting] for command in ON_A_CLUSTER[:2] for setting in SETTINGS),
    *([*command, "--format", "yaml"] for command in ON_A_CLUSTER),
    *([*command, *NOBODY] for command in OPTIONS),
    *([command, file] for command in ("run", "explain") for file in FILES),
    *([command, "."] for command in ("run", "explain")),
    ["demo", "--input", "nowhere"],
    ["bench", "-b", "nonsense", "single"],
    ["simulate", "--seeds", "0"],
    ["simulate", "--workload", "x"],
    ["nothing"],
    ["topic", "nothing"],
]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name, content in FILES.items():
        if content is not None:
            (tmp_path / name).write_bytes(content)
    return tmp_path


@pytest.mark.parametrize("arguments", MISUSES, ids=lambda arguments: ascii(" ".join(arguments))[:60])
def test_what_cannot_be_meant_ends_in_an_error_without_a_traceback(arguments: list[str], here: Path) -> None:
    result = invoke(arguments, input="x\n")
    assert isinstance(result.exception, SystemExit), result.exception
    assert result.exit_code in (1, 2), result.output
    assert "Traceback" not in result.output
    assert "error:" in result.stderr.lower()


@pytest.mark.parametrize(
    "arguments",
    [
        *(["topic", "delete", "t", name, ""] for name in ("-b", "--bootstrap-server", "--command-config")),
        ["topic", "consume", "t", "-o", ""],
        ["txn", "doctor", "--topic", "t", "--topic", ""],
        ["dlq", "replay", "t", "--yes", "--to", ""],
        ["start", "--data-dir", ""],
        ["start", "--host", ""],
    ],
    ids=" ".join,
)
def test_an_option_whose_variable_is_not_set_does_not_mean_its_default(arguments: list[str]) -> None:
    """That would be another cluster, the current folder, every address of the machine."""
    result = invoke(arguments)
    assert result.exit_code == 2
    assert "it is empty" in result.stderr


def commands() -> Iterator[list[str]]:
    def walk(command: object, path: list[str]) -> Iterator[list[str]]:
        yield path
        for name, inner in getattr(command, "commands", {}).items():
            yield from walk(inner, [*path, name])

    yield from walk(typer.main.get_command(app), [])


COMMANDS = list(commands())
PRINTING = [
    command
    for command in COMMANDS
    if not any(other != command and other[: len(command)] == command for other in COMMANDS)
]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: " ".join(command) or "einmal")
def test_every_command_has_help_and_every_argument_of_it_is_explained(command: list[str]) -> None:
    result = invoke([*command, "--help"], env={"COLUMNS": "60", "NO_COLOR": "1", "TERM": "dumb"})
    assert result.exit_code == 0
    assert result.stdout.startswith("Usage:")


@pytest.mark.parametrize("command", PRINTING, ids=" ".join)
def test_every_command_that_prints_can_print_json(command: list[str]) -> None:
    assert "--format" in invoke([*command, "--help"]).stdout


# --- as a process -------------------------------------------------------------------------------------------------


def einmal(*arguments: str, **environment: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "einmal", *arguments]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, env={**os.environ, **environment})


@pytest.mark.representatives(5)
@pytest.mark.system
@pytest.mark.parametrize("options", STARTS, ids=" ".join)
def test_a_broker_that_cannot_start_reports_why(options: list[str], here: Path) -> None:
    ended = warm.run(["einmal", "start", *options], timeout=180)
    assert ended.returncode in (1, 2)
    assert "error:" in ended.stderr.lower() and "Traceback" not in ended.stderr


@pytest.mark.system
def test_a_terminal_that_is_not_utf_8_gets_escapes(cluster: str) -> None:
    """Messages do; what a record has is data, and passes as it is."""
    value = "größe ✓\n".encode()
    produced = einmal("topic", "produce", "narrow-terminal", "-b", cluster)
    produced.communicate(value, timeout=180)
    read = einmal("topic", "consume", "narrow-terminal", "-o", "start:end", "-b", cluster, PYTHONIOENCODING="ascii")
    output, errors = read.communicate(timeout=180)
    assert (read.returncode, output, errors) == (0, value, b"")
    refused = einmal("topic", "describe", "größe ✓", "-b", cluster, PYTHONIOENCODING="ascii")
    _, errors = refused.communicate(timeout=180)
    assert b"gr\\xf6\\xdfe \\u2713" in errors


@pytest.mark.system
def test_a_reader_that_has_seen_enough_ends_the_command_quietly(cluster: str) -> None:
    produced = einmal("topic", "produce", "enough", "-b", cluster)
    produced.communicate(b"x\n" * 20_000, timeout=180)
    reading = einmal("topic", "consume", "enough", "-b", cluster)
    assert reading.stdout is not None and reading.stderr is not None
    assert reading.stdout.readline() == b"x\n"
    reading.stdout.close()
    assert reading.wait(180) == 0
    assert reading.stderr.read() == b""


@pytest.mark.system
def test_ctrl_c_ends_a_command_with_130_and_no_words(cluster: str) -> None:
    produced = einmal("topic", "produce", "interrupted", "-b", cluster)
    produced.communicate(b"x\n", timeout=180)
    reading = einmal("topic", "consume", "interrupted", "-b", cluster)
    assert reading.stdout is not None and reading.stderr is not None
    assert reading.stdout.readline() == b"x\n"
    reading.send_signal(signal.SIGINT)
    assert reading.wait(180) == 130
    assert b"Traceback" not in reading.stderr.read()


@pytest.mark.system
def test_a_second_broker_on_the_same_data_or_port_gets_a_hint(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data").wait_until_ready() as first:
        for options, expected in (
            (["--port", "0", "--data-dir", str(tmp_path / "data")], "another broker uses"),
            (["--port", str(first.port), "--data-dir", str(tmp_path / "other")], "is in use"),
        ):
            second = warm.run(["einmal", "start", *options], timeout=180)
            assert second.returncode == 1
            assert expected in second.stderr and "hint: " in second.stderr and "Traceback" not in second.stderr


@each_case("number", ["top -d nan", "top -d inf", "top -d 1e300", "bench --scale nan"])
def test_a_number_that_is_none_is_wrong_usage(number: str) -> None:
    assert invoke(number.split()).exit_code == 2
