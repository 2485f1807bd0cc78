"""Claims about the examples' programs: what is missing is one line on stderr, a second run is not a wrong result."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import pytest

from einmal.client import Admin, NewTopic, Producer
from tests.examples.readme import ROOT, steps
from tests.examples.test_checkers import run
from tests.interop.einmal_broker import EinmalBroker
from tests.ports import loopback_ports
from tests.suite.patience import patient

READMES: Final = sorted((ROOT / "examples").glob("*/README.md"))
WITHOUT_SPARK: Final = {"machine_logs", "outbox", "transfers", "two_clusters"}
EVENT: Final = json.dumps({"id": 1, "type": "deposited", "account": "a", "cents": 1, "to": None})

NEED_A_BROKER: Final = (
    "lookup.check",
    "lookup.pipeline --killed",
    "machine_logs.kills --log log.json",
    "outbox.kills shop.db --log log.json",
    "outbox.relay shop.db",
    "transfers.audit bank.db",
    "transfers.transfers bank.db",
    "two_clusters.billing {kafka}",
    "two_clusters.check",
    "two_clusters.move --log log.json",
    "two_clusters.shop",
)
NEED_POSTGRES: Final = (
    "accounts.check",
    "accounts.check --draw",
    "accounts.database",
    "replicated_orders.check",
    "replicated_orders.databases",
    "replicated_orders.kills --log log.json",
    "replicated_orders.shop",
)
NEED_ARGUMENTS: Final = (
    "lookup.prices",
    "machine_logs.kills",
    "machine_logs.write",
    "orders_and_shipments.generate",
    "outbox.check",
    "outbox.kills",
    "outbox.relay",
    "outbox.shop",
    "own_sink.write",
    "own_sink.write folder",
    "replicated_orders.kills",
    "transfers.audit",
    "transfers.transfers",
    "two_clusters.billing",
    "two_clusters.move",
    "word_count.check",
)
NEED_INPUT: Final = (
    *(f"{name}.draw" for name in sorted(each.parent.name for each in (ROOT / "examples").glob("*/draw.py"))),
    "accounts.check",
    "machine_logs.check",
    "orders_and_shipments.check",
    "payments.check",
    "repaired_payments.check",
)


def ended(folder: Path, command: str, environment: Mapping[str, str], given: str = "") -> tuple[int, str]:
    """Exit status and stderr of a program, which must end by itself."""
    done = subprocess.run(
        [sys.executable, "-m", *f"examples.{command}".split()],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src")]), **environment},
        input=given,
        capture_output=True,
        text=True,
        timeout=patient(60),
    )
    return done.returncode, done.stderr


def not_refused(
    folder: Path, commands: tuple[str, ...], environment: Mapping[str, str], expected: str, given: str = ""
) -> list[tuple[str, int, str]]:
    """Programs that do not end with status 2 and one error that has the text. Several at a time: most of it is imports
    and waiting."""
    with ThreadPoolExecutor(4) as pool:
        found = pool.map(lambda command: (command, *ended(folder, command, environment, given)), commands)
        return [
            (command, status, errors)
            for command, status, errors in found
            if status != 2 or "Traceback" in errors or expected not in errors
        ]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """With what programs look for before they connect."""
    (tmp_path / "build" / "examples").mkdir(parents=True)
    (tmp_path / "build" / "examples" / "prices.json").write_text('{"tea": 31}')
    return tmp_path


@pytest.mark.slow
def test_a_missing_service_is_one_error_with_its_address_and_no_program_waits_for_it(folder: Path) -> None:
    (port,) = loopback_ports(1)
    kafka, postgres = f"127.0.0.1:{port}", f"postgresql://postgres@127.0.0.1:{port}/postgres"
    environment = {
        "KAFKA_BROKERS": kafka,
        "SECOND_BROKERS": kafka,
        **dict.fromkeys(("POSTGRES_URL", "SHOP_URL", "REPORTS_URL"), postgres),
    }
    with_address = tuple(each.format(kafka=kafka) for each in NEED_A_BROKER)
    assert not not_refused(folder, with_address, environment, kafka)
    event = json.dumps({"value": EVENT})
    assert not not_refused(folder, NEED_POSTGRES, environment, f"port {port}", event)


@pytest.mark.parametrize(
    ("commands", "expected"),
    [(NEED_ARGUMENTS, "the following arguments are required"), (NEED_INPUT, "stdin is empty")],
    ids=["arguments", "input"],
)
def test_missing_arguments_and_an_empty_input_are_named(
    commands: tuple[str, ...], expected: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = []
    for command in commands:
        module, *arguments = f"examples.{command}".split()
        status = run(monkeypatch, module, (), arguments)
        if status != 2 or expected not in capsys.readouterr().err:
            wrong.append((command, status))
    assert not wrong


@pytest.mark.system
@pytest.mark.slow
def test_a_second_run_is_refused_with_the_way_to_fresh_data(broker: EinmalBroker, folder: Path) -> None:
    topics = ["machine-logs", "shop-orders", "shop-orders-at-least-once", "moved-orders", "moved-items", "moved-bills"]
    topics += [f"priced-{way}" for way in ("topic", "apart", "prepared", "decided")]
    with Admin({"bootstrap.servers": broker.bootstrap}) as admin:
        admin.create_topics([NewTopic(topic, 2) for topic in topics], if_not_exists=True)
    with Producer({"bootstrap.servers": broker.bootstrap}) as producer:
        for topic in topics:
            producer.send(topic, "of the first run")
        producer.flush()
    environment = {"KAFKA_BROKERS": broker.bootstrap, "SECOND_BROKERS": broker.bootstrap}
    stories = tuple(each for each in NEED_A_BROKER if each.split(".")[1].split()[0] in ("kills", "move", "pipeline"))
    assert len(stories) == 4
    assert not not_refused(folder, stories, environment, "rm -r build/examples")
    assert not (folder / "shop.db").exists()
    (folder / "logs").mkdir()
    (folder / "logs" / "web.log").touch()
    assert not not_refused(folder, ("machine_logs.write logs",), environment, "rm -r build/examples")


@pytest.mark.long
@pytest.mark.slow
def test_tables_of_an_earlier_run_are_refused_with_the_way_to_fresh_data(folder: Path) -> None:
    from tests.sinks.postgres.server import PASSWORD, PostgresServer
    from tests.suite.shared import shared, unique

    server: PostgresServer = shared("postgres")
    names = [unique(name).replace("-", "_") for name in ("accounts", "shop", "reports")]
    for name in names:
        server.rows(f"CREATE DATABASE {name}")
    urls = dict(zip(("POSTGRES_URL", "SHOP_URL", "REPORTS_URL"), map(server.url_of, names), strict=True))
    environment = urls | {"POSTGRES_PASSWORD": PASSWORD}
    for program, way in (("accounts.database", "DROP TABLE"), ("replicated_orders.databases", "empty databases")):
        assert ended(folder, program, environment) == (0, "")
        assert not not_refused(folder, (program,), environment, way)


def test_every_readme_states_its_duration_a_second_run_and_that_traces_of_spark_are_harmless() -> None:
    assert len(READMES) == 13
    for readme in READMES:
        text = " ".join(readme.read_text().split())
        assert re.search(r"it takes (about|less than) ", text), readme
        if readme.parent.name not in WITHOUT_SPARK:
            assert re.search(r"stack traces of Spark's own .*?harmless", text, re.IGNORECASE), readme
        assert "rm -r build/examples" in text or readme.parent.name == "own_sink", readme


def test_every_loop_of_a_readme_ends() -> None:
    commands = [step.command for readme in READMES for step in steps(readme, ("make setup", ". .venv/bin/activate"))]
    assert not [command for command in commands if re.match(r"(until|while) ", command)]
    bounded = [command for command in commands if command.startswith("for ")]
    assert len(bounded) == 2
    for command in bounded:
        failing = re.sub(r"einmal run [^&]*", "false ", command).replace("sleep 2", ":")
        assert subprocess.run(["bash", "-c", failing], check=False, timeout=patient(10)).returncode == 1
