"""Claims about the command ``einmal verify``: its exit status, its documents, and what it leaves behind."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from einmal.client import Admin
from einmal.local.ports import free_ports
from einmal.verify.clients.processes import CLIENTS, JAVA
from einmal.verify.pipeline import mapping
from einmal.verify.run import PREFIX, WORKLOADS
from einmal.workloads.controls import CONTROLS
from tests.cli.running import invoke
from tests.interop.einmal_broker import EinmalBroker
from tests.suite.patience import as_slow, patient
from tests.suite.shared import shared

_PIPELINE: Final = ("--pipeline", "true", "--input", "a", "--output", "b")


def test_the_options_are_those_of_the_package() -> None:
    text = invoke(["verify", "--help"], env={"COLUMNS": "200"}).output
    assert all(name in text for name in (*CLIENTS, *WORKLOADS, *CONTROLS))


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["-b", "127.0.0.1:1", "--cluster", "einmal"], "--bootstrap-server"),
        (["--cluster", "kafka"], "--kafka-home FOLDER"),
        (["--cluster", "einmal", "--kafka-home", "."], "--cluster kafka"),
        (["--client", "java"], "--kafka-home FOLDER"),
        (["--cluster", "kafka", "--kafka-home", "."], "no kafka_2.13-*.jar in"),
        (["-b", "127.0.0.1:1", "--control", "at-least-once", "--workload", "bank"], "--workload"),
        (["-b", "127.0.0.1:1", "--time", "soon"], "duration"),
        (["-b", "127.0.0.1:1", "--input-database", "postgresql://h/d", "--sql", "x"], "--input-database, --sql: only"),
        (["-b", "127.0.0.1:1", "--output-sql", "SELECT value FROM output"], "--output-sql: only with --pipeline"),
        (
            ["-b", "127.0.0.1:1", "--pipeline", "true", "--input", "a", "--output", "b", "--output-sql", "SELECT"],
            "error: --output-sql: Parser Error",
        ),
        (
            [
                "-b",
                "127.0.0.1:1",
                "--pipeline",
                "true",
                "--input",
                "a",
                "--output",
                "b",
                "--input-database",
                "postgresql://u:se cret@h/d",
            ],
            "--input-database is no URL",
        ),
        (["-b", "127.0.0.1:1", "--faults", "brokers"], "nothing of an existing cluster is killed"),
        (["-b", "127.0.0.1:1", "--faults", "kills"], "nothing of an existing cluster is killed"),
        (["--cluster", "einmal", "--nodes", "1", "--faults", "partitions"], "one has nobody to be cut off from"),
        (["--cluster", "einmal", "--faults", "kills", "--faults", "brokers"], "name one of brokers and kills"),
        (["-b", "127.0.0.1:1", "--nodes", "3"], "--nodes is of --cluster"),
        (["-b", "127.0.0.1:1", "--report", "evidence.json"], "FILE.json is written beside it"),
        (["-b", "127.0.0.1:1", "--report", "/proc/none/evidence.html"], "--report: /proc/none/evidence.html cannot"),
        (["-b", "127.0.0.1:1", *_PIPELINE, "--client", "java"], "--client is of workloads"),
        (["-b", "127.0.0.1:1", "--pipeline", "true", "--input", "a", "--output", "a"], "the output is compared with"),
        (["-b", "127.0.0.1:1", *_PIPELINE, "--map", "json:loads"], "error: --map: json:loads returns text"),
        (["-b", "127.0.0.1:1", *_PIPELINE, "--map", "json:loadz"], "error: --map: 'json:loadz' is not module:function"),
        (["-b", "127.0.0.1:1", "--client", "aiokafka", "-X", "client.id=a"], "warning: client.id: without effect"),
    ],
)
def test_wrong_usage_is_status_2(arguments: list[str], named: str) -> None:
    result = invoke(["verify", *arguments])
    assert result.exit_code == 2
    assert named in result.output


def test_a_fault_of_verify_itself_is_no_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_sql: str) -> None:
        raise ZeroDivisionError("oops")

    monkeypatch.setattr(mapping, "query", fail)
    result = invoke(["verify", "-b", "127.0.0.1:1", *_PIPELINE, "--sql", "SELECT 1"])
    assert result.exit_code == 2
    assert "error: ZeroDivisionError in test_command.py" in result.output and "no verdict" in result.output


def test_a_cluster_that_cannot_be_reached_is_status_2_with_a_hint() -> None:
    (port,) = free_ports([("127.0.0.1", 0)])
    result = invoke(["verify", "-b", f"127.0.0.1:{port}", "--time", "1s"])
    assert result.exit_code == 2
    assert "error: " in result.output and "hint: " in result.output


def test_a_client_that_is_not_installed_is_status_2_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "aiokafka", None)
    monkeypatch.delitem(sys.modules, "einmal.verify.clients.aio_kafka", raising=False)
    result = invoke(["verify", "-b", "127.0.0.1:1", "--client", "aiokafka"])
    assert result.exit_code == 2
    assert "aiokafka is not installed" in result.output and "pip install aiokafka" in result.output


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("faults", [[], ["--faults", "network"]], ids=["direct", "proxy"])
def test_a_file_that_cannot_be_read_is_status_2_and_named_whatever_the_client(
    tmp_path: Path, client: str, faults: list[str]
) -> None:
    (tmp_path / "kafka-clients-4.4.0.jar").touch()
    own = ["--kafka-home", str(tmp_path)] if client == JAVA else []
    missing = tmp_path / "ca.pem"
    security = ["-X", "security.protocol=SSL", "-X", f"ssl.ca.location={missing}"]
    result = invoke(["verify", "-b", "127.0.0.1:1", "--client", client, *own, *faults, *security])
    assert result.exit_code == 2
    assert f"error: ConfigError: ssl.ca.location={missing} cannot be read" in result.output
    assert "hint: correct the path" in result.output


def own_topics(bootstrap: str) -> list[str]:
    with Admin({"bootstrap.servers": bootstrap}) as admin:
        return [topic for topic in admin.list_topics() if topic.startswith(PREFIX)]


def started(bootstrap: str, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "einmal", "verify", "-b", bootstrap, "--workload", "appends", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.slow
@pytest.mark.system
def test_the_evidence_is_a_document_and_a_page_and_names_the_command_that_repeats_it(tmp_path: Path) -> None:
    broker: EinmalBroker = shared("einmal-commands")
    page = tmp_path / "evidence.html"
    # Without a committed transaction there is no verdict: on a busy machine the first one takes seconds.
    run = started(broker.bootstrap, "--time", f"{as_slow(5):.0f}s", "--format", "json", "--report", str(page))
    out, errors = run.communicate(timeout=patient(90))
    assert run.returncode == 0, out + errors
    document = json.loads(out)
    assert (document["verdict"], document["exit_status"], document["left_behind"]) == ("holds", 0, [])
    assert document["workloads"][0]["acknowledged"] > 0
    assert document["durability"]["min.insync.replicas"] == "1"
    assert document["not_tested"]
    assert document["command"].endswith(f"--seed {document['seed']}")
    assert json.loads(page.with_suffix(".json").read_text()) == document
    text = page.read_text()
    assert "<svg" in text and "http" not in text and document["command"] in text
    for suffix in ("jsonl", "edn"):
        checked = invoke(["verify", "--history", str(tmp_path / f"evidence-appends.{suffix}"), "--format", "json"])
        (workload,) = json.loads(checked.stdout)["workloads"]
        assert (checked.exit_code, workload["acknowledged"]) == (0, document["workloads"][0]["acknowledged"])


@pytest.mark.slow
@pytest.mark.system
def test_an_anomaly_has_its_page_and_its_status_whoever_reads_the_verdict(tmp_path: Path) -> None:
    broker: EinmalBroker = shared("einmal-commands")
    page = tmp_path / "red.html"
    command = [sys.executable, "-m", "einmal", "verify", "-b", broker.bootstrap, "--control", "read-uncommitted"]
    with open("/dev/full", "wb") as full:
        run = subprocess.run(
            [*command, "--time", f"{as_slow(6):.0f}s", "--report", str(page)],
            stdout=full,
            stderr=subprocess.PIPE,
            check=False,
        )
    assert run.returncode == 1, run.stderr
    assert b"stdout cannot be written" in run.stderr and b"Traceback" not in run.stderr
    assert "G1a" in page.read_text() and json.loads(page.with_suffix(".json").read_text())["verdict"] == "anomaly"


@pytest.mark.slow
@pytest.mark.system
def test_ctrl_c_removes_what_was_made() -> None:
    broker: EinmalBroker = shared("einmal-commands")
    run = started(broker.bootstrap, "--time", "10m")
    assert run.stderr is not None
    made: list[str] = []
    for line in run.stderr:
        if "acknowledged" in line:
            made = own_topics(broker.bootstrap)
            break
    run.send_signal(signal.SIGINT)
    _, errors = run.communicate(timeout=patient(60))
    assert run.returncode == 130, errors
    assert made and not {*made} & {*own_topics(broker.bootstrap)}
