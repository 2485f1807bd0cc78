"""Claims about examples/transfers: by its README's own commands, and with its broker killed at each step."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from examples.transfers import transfers
from examples.transfers.audit import wallets

from einmal.client import Admin, NewTopic
from tests.examples.readme import ROOT, Reader
from tests.interop.einmal_broker import EinmalBroker
from tests.suite.patience import patient

pytestmark = pytest.mark.system

EXAMPLE = ROOT / "examples" / "transfers"
COUNT = 12


@pytest.fixture
def own_broker(tmp_path: Path) -> Iterator[EinmalBroker]:
    broker = EinmalBroker(tmp_path / "broker", {"transaction.two.phase.commit.enable": "true"})
    broker.start()
    yield broker
    broker.stop()


@pytest.fixture
def bank(tmp_path: Path, own_broker: EinmalBroker) -> str:
    """A database; the topic is there as well."""
    with Admin(bootstrap_servers=own_broker.bootstrap) as admin:
        admin.create_topics([NewTopic(transfers.TOPIC, 3)])
    return str(tmp_path / "bank.db")


def run(broker: EinmalBroker, bank: str, *options: str) -> int:
    command = [sys.executable, "-m", "examples.transfers.transfers", bank, "--count", str(COUNT), *options]
    return subprocess.run(
        command, cwd=ROOT, env=os.environ | {"KAFKA_BROKERS": broker.bootstrap}, timeout=patient(60)
    ).returncode


def totals(broker: EinmalBroker, bank: str) -> tuple[int, int]:
    with sqlite3.connect(bank) as database:
        (in_accounts,) = database.execute("SELECT sum(balance) FROM accounts").fetchone()
    return int(in_accounts), sum(wallets_of(broker).values())


def wallets_of(broker: EinmalBroker) -> dict[str, int]:
    return dict(wallets(broker.bootstrap))


@pytest.mark.long
def test_the_readme_shows_what_its_commands_print(own_broker: EinmalBroker, tmp_path: Path) -> None:
    reader = Reader(tmp_path / "reader", own_broker.bootstrap)
    reader.follow(EXAMPLE / "README.md")
    assert (reader.folder / "build/examples/transfers.svg").read_text() == (EXAMPLE / "result.svg").read_text()


@pytest.mark.slow
@pytest.mark.time_limit(120)
def test_nothing_is_lost_or_created_wherever_program_and_broker_are_killed(own_broker: EinmalBroker, bank: str) -> None:
    for at, step in enumerate(transfers.STEPS, start=2):
        assert run(own_broker, bank, "--die-after", step, "--at", str(2 * at)) == -signal.SIGKILL
        own_broker.kill()
        own_broker.start()
    assert run(own_broker, bank) == 0
    in_accounts, in_wallets = totals(own_broker, bank)
    assert in_accounts + in_wallets == len(transfers.ACCOUNTS) * transfers.BALANCE
    expected = sum(_amount(number) for number in range(1, COUNT + 1))
    assert in_wallets == expected, "each transfer is made once"


def test_an_instance_that_was_only_slow_can_no_longer_commit(own_broker: EinmalBroker, bank: str) -> None:
    """It is stopped when its transaction is prepared; its successor aborts this one and makes the transfer itself."""
    slow = transfers.Bank(bank)

    def overtaken(step: str) -> None:
        if step == "prepared":
            assert run(own_broker, bank) == 0

    with transfers.new_producer(own_broker.bootstrap) as producer:
        transfers.recover(slow, producer)
        with pytest.raises(transfers.Replaced):
            transfers.transfer(slow, producer, 1, overtaken)
    in_accounts, in_wallets = totals(own_broker, bank)
    assert in_accounts + in_wallets == len(transfers.ACCOUNTS) * transfers.BALANCE


def _amount(number: int) -> int:
    source = random.Random(number)
    source.choice(transfers.ACCOUNTS)
    return source.randint(1, 60)
