"""Claims about docs/two-phase-commit.md: its program runs as it stands, and again after it has died."""

from __future__ import annotations

import re
import sqlite3
from pathlib import Path
from typing import Final

import pytest

from einmal.client import Admin, PreparedTxnState, Producer
from tests.examples.readme import ROOT
from tests.examples.test_transfers import wallets_of
from tests.interop.einmal_broker import EinmalBroker

pytestmark = pytest.mark.system
PAGE: Final = ROOT / "docs" / "two-phase-commit.md"


def test_the_program_of_the_page_commits_both_and_recovers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (code,) = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    broker = EinmalBroker(tmp_path / "broker", {"transaction.two.phase.commit.enable": "true"})
    broker.start()
    try:
        program = compile(code.replace("localhost:9092", broker.bootstrap), PAGE.name, "exec")
        monkeypatch.chdir(tmp_path)
        with Admin(bootstrap_servers=broker.bootstrap) as admin:
            admin.create_topics(["wallets"])

        def die(self: Producer, state: PreparedTxnState) -> None:
            if state.has_transaction:
                raise KeyboardInterrupt
            complete(self, state)

        complete = Producer.complete_transaction
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(Producer, "complete_transaction", die)
            exec(program, {"__name__": "example"})
        assert wallets_of(broker) == {}
        exec(program, {"__name__": "example"})
        assert wallets_of(broker) == {"alice": 50}
        with sqlite3.connect(tmp_path / "bank.db") as database:
            assert database.execute("SELECT sum(amount) FROM debits").fetchone() == (50,)
    finally:
        broker.stop()
