"""Claims about ``einmal chaos``: which requests get a fault, what a disturbed command gets, and how it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from einmal.client import Admin, KafkaError, NewTopic, Producer
from einmal.local.ports import free_ports
from tests.cli.running import Cli, invoke
from tests.interop.einmal_broker import EinmalBroker
from tests.suite.patience import patient
from tests.suite.shared import shared, unique

pytestmark = [pytest.mark.system, pytest.mark.slow]

TRANSACTION = """
import sys
from einmal.client import Producer
bootstrap, topic = sys.argv[1:]
settings = {"bootstrap.servers": bootstrap, "request.timeout.ms": 1000, "bootstrap.timeout.ms": 60_000}
with Producer({**settings, "transactional.id": topic}) as producer:
    producer.init_transactions()
    with producer.transaction():
        producer.send(topic, b"one")
"""
SENDING = """
import os, pathlib, sys, time
from einmal.client import Producer
topic, calm = sys.argv[1:]
settings = {"bootstrap.servers": os.environ["KAFKA_BROKERS"], "request.timeout.ms": 2000}
# A fault may come before the first contact.
with Producer({**settings, "bootstrap.timeout.ms": 60_000}) as producer:
    while not pathlib.Path(calm).exists():
        producer.send(topic, b"again").result()
        time.sleep(0.02)
"""


@pytest.fixture(scope="module")
def bootstrap() -> str:
    broker: EinmalBroker = shared("einmal")
    return broker.bootstrap


@pytest.fixture
def topic(bootstrap: str) -> str:
    name = unique("chaos")
    with Admin({"bootstrap.servers": bootstrap}) as admin:
        admin.create_topics([NewTopic(name, 1)])
    return name


def documents(lines: list[str]) -> tuple[dict[str, Any], list[str]]:
    """The address, and the faults in words."""
    head, *faults = map(json.loads, lines)
    assert all(fault["at"] > 0 for fault in faults)
    return head, [fault["event"] for fault in faults]


def test_a_rule_disturbs_the_requests_of_a_command(bootstrap: str, topic: str) -> None:
    rules = ["--rule", "on(EndTxn).drop_answer().once()", "--rule", "on(Produce).delay(0.1).once()"]
    program = [sys.executable, "-c", TRANSACTION, "{bootstrap}", topic]
    result = Cli(bootstrap)("chaos", *rules, "--format", "json", "--", *program)
    head, faults = documents(result.lines)
    assert head["bootstrap_servers"] != bootstrap
    assert faults == ["request delayed by 0.1 s: Produce, broker 1", "answer dropped: EndTxn, broker 1"]
    assert result.errors[-1].startswith("repeat: einmal chaos --seed ")


def test_the_exit_status_is_that_of_the_command(bootstrap: str) -> None:
    result = Cli(bootstrap)("chaos", "--", sys.executable, "-c", "raise SystemExit(5)", status=5)
    assert result.errors[-1] == f"error: {sys.executable} ended with status 5"


def test_a_command_that_a_signal_has_ended_has_the_status_that_a_shell_gives_it(bootstrap: str) -> None:
    Cli(bootstrap)("chaos", "--", sys.executable, "-c", "import os; os.kill(os.getpid(), 15)", status=128 + 15)


def test_a_command_that_is_killed_runs_again_and_ends_by_itself(bootstrap: str, tmp_path: Path) -> None:
    file = tmp_path / "lives"
    program = (
        f"import pathlib, time; f = pathlib.Path({str(file)!r}); n = len(f.read_text()) if f.exists() else 0; "
        "f.open('a').write('x'); time.sleep(0 if n > 1 else 600)"
    )
    options = ["--faults", "command", "--seed", "12", "--format", "json"]
    head, faults = documents(Cli(bootstrap)("chaos", *options, "--", sys.executable, "-c", program).lines)
    assert head == {"bootstrap_servers": bootstrap, "seed": 12}
    # One that comes before the program has begun is not counted by it.
    assert faults.count("kill -9 of the command") == faults.count("the command is started again") >= 2


def test_brokers_of_its_own_come_back_after_the_time(tmp_path: Path) -> None:
    """Kills and network faults, then calm: the command sends until then."""
    calm = tmp_path / "calm"
    program = [sys.executable, "-c", SENDING, "orders", str(calm)]
    options = ["--cluster", "einmal", "--nodes", "1", "--time", "4s", "--seed", "11", "--format", "json"]
    command = [sys.executable, "-m", "einmal", "chaos", *options, "--", *program]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as chaos:
        assert chaos.stdout is not None
        shown = []
        for line in chaos.stdout:
            shown.append(line)
            if json.loads(line).get("event") == "calm":
                calm.touch()
        assert chaos.wait(patient(30)) == 0
    _, faults = documents(shown)
    assert faults[-1] == "calm"
    assert any(fault.endswith("of broker 1") for fault in faults)


@contextmanager
def started(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "einmal", "chaos", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_without_a_command_it_lasts_until_it_is_interrupted(
    bootstrap: str, topic: str, number: signal.Signals, status: int
) -> None:
    (port,) = free_ports([("127.0.0.1", 0)])
    with started("-b", bootstrap, "--port", str(port), "--rule", "on(Produce).duplicate().once()") as chaos:
        assert chaos.stdout is not None
        assert chaos.stdout.readline() == f"bootstrap.servers=127.0.0.1:{port}\n"
        with Producer({"bootstrap.servers": f"127.0.0.1:{port}"}) as producer:
            producer.send(topic, b"twice").result()
        assert "request duplicated: Produce, broker 1" in chaos.stdout.readline()
        chaos.send_signal(number)
        _, errors = chaos.communicate(timeout=patient(20))
        assert chaos.returncode == status
        assert "Traceback" not in errors


def test_a_reader_that_has_seen_enough_ends_it(bootstrap: str) -> None:
    with started("-b", bootstrap, "--rule", "on().delay(0)", "--format", "json") as chaos:
        assert chaos.stdout is not None and chaos.stderr is not None
        address = json.loads(chaos.stdout.readline())["bootstrap_servers"]
        chaos.stdout.close()
        # It may end before it answers.
        with suppress(KafkaError), Admin({"bootstrap.servers": address}) as admin:
            admin.list_topics()
        assert chaos.wait(patient(20)) == 128 + signal.SIGPIPE
        assert "Traceback" not in chaos.stderr.read()


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["-b", "127.0.0.1:1", "--cluster", "einmal"], "--bootstrap-server"),
        (["--cluster", "kafka"], "--kafka-home FOLDER"),
        (["--cluster", "einmal", "--kafka-home", "."], "--cluster kafka"),
        (["--faults", "brokers"], "nothing of an existing cluster is killed"),
        (["--faults", "command"], "needs a command"),
        (["--faults", "network", "--rule", "on(EndTxn).drop_answer()"], "--rule"),
        (["--cluster", "einmal", "--faults", "brokers", "--port", "1"], "--port"),
        (["--time", "soon"], "duration"),
        (["--rule", "on(EndTxm).drop_answer()"], "did you mean EndTxn?"),
        (["-b", "nowhere"], "nowhere"),
        (["--", "/no/such/program"], "cannot be started"),
        (["-X", "security.protocol=SSL", "-X", "ssl.ca.location=/no/such/file"], "/no/such/file cannot be read"),
    ],
)
def test_wrong_usage_is_status_2(arguments: list[str], named: str) -> None:
    result = invoke(["chaos", *arguments])
    assert result.exit_code == 2, result.output
    assert named in result.output


def test_a_port_that_is_in_use_is_named(bootstrap: str) -> None:
    port = bootstrap.rpartition(":")[2]
    result = invoke(["chaos", "-b", bootstrap, "--port", port])
    assert result.exit_code == 2
    assert f"127.0.0.1:{port} cannot be listened on: Address already in use" in result.output


def test_the_command_has_the_environment_of_the_shell(bootstrap: str) -> None:
    check = "import os; raise SystemExit(os.environ['EINMAL_TEST'] + os.environ['KAFKA_BROKERS'][:9] != 'yes127.0.0.1')"
    result = invoke(
        ["chaos", "-b", bootstrap, "--", sys.executable, "-c", check], env={**os.environ, "EINMAL_TEST": "yes"}
    )
    assert result.exit_code == 0
