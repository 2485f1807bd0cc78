"""Claims about examples/accounts, by its README's own commands, while drivers and the database server are killed."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

from tests.examples.readme import ROOT, Reader
from tests.interop.einmal_broker import EinmalBroker
from tests.sinks.postgres.server import PASSWORD, PostgresServer, running

pytestmark = [pytest.mark.spark, pytest.mark.long]

EXAMPLE = ROOT / "examples" / "accounts"
PIPELINES = ["accounts-entries", "accounts-balances"]
LATE_BATCH = 3


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[PostgresServer]:
    with running() as server:
        monkeypatch.setenv("POSTGRES_URL", server.url)
        monkeypatch.setenv("POSTGRES_PASSWORD", PASSWORD)
        yield server


@pytest.fixture
def reader(server: PostgresServer, broker: EinmalBroker, tmp_path: Path) -> Reader:
    """With the server's address in its environment."""
    return Reader(tmp_path, broker.bootstrap)


@contextmanager
def killing(server: PostgresServer) -> Iterator[list[str]]:
    """Kill the server in the middle of each pipeline, after its driver, and start it again; the pipelines so far."""
    killed: list[str] = []
    over = threading.Event()

    def kill() -> None:
        for pipeline in PIPELINES:
            while not over.is_set() and _batch_id(server, pipeline) < LATE_BATCH:
                time.sleep(0.05)
            if not over.is_set():
                server.kill()
                server.start()
                killed.append(pipeline)

    thread = threading.Thread(target=kill)
    thread.start()
    try:
        yield killed
    finally:
        over.set()
        thread.join()


def _batch_id(server: PostgresServer, pipeline: str) -> int:
    """The last one that is committed; -1: none."""
    try:
        found = server.rows("SELECT batch_id FROM einmal_commits WHERE pipeline = %s", (pipeline,))
    except psycopg.errors.UndefinedTable:
        return -1
    return int(found[0][0]) if found and found[0][0] is not None else -1


def test_both_views_equal_a_replay_of_the_events(reader: Reader, server: PostgresServer) -> None:
    with killing(server) as killed:
        reader.follow(EXAMPLE / "README.md", kill_in="examples/accounts/")
    assert killed == PIPELINES
    # No money is made or lost on the way: the views agree with each other, too.
    differing = "WHERE balances.cents IS DISTINCT FROM counters.cents"
    assert server.rows(f"SELECT account FROM balances FULL JOIN counters USING (account) {differing}") == []
    tables = server.rows("SELECT tablename FROM pg_tables WHERE schemaname = 'public' ORDER BY 1")
    assert tables == [("balances",), ("counters",), ("einmal_commits",), ("entries",)]
    assert (reader.folder / "build/examples/accounts.svg").read_text() == (EXAMPLE / "result.svg").read_text()
