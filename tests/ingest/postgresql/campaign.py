"""Random kills of a PostgreSQL server, a broker and the ingester between them, and second ingesters under its name.

    python -m tests.ingest.postgresql.campaign --kills 200 --seed 1

Meanwhile transactions change five tables, and truncate three of them; columns are added, keys renamed, and tables
dropped and created again, also while no ingester runs; some transactions are large. In the end the topics are compared
with the history that the database has kept (``bookkeeping``). Exit code 0 where nothing is wrong.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from einmal.client import Admin, OffsetRange, RangeReader
from einmal.client.errors import KafkaError
from einmal.clusters.kafka_cluster import KafkaCluster
from einmal.types import TopicPartition
from tests.ingest.postgresql.bookkeeping import (
    ALTERED,
    SCHEMA,
    TOPICS,
    Stored,
    Writers,
    add_column,
    alter,
    create,
    insert_many,
    problems,
    stored,
)
from tests.ingest.postgresql.capture import SLOT
from tests.interop.einmal_broker import EinmalBroker
from tests.sinks.postgres.server import PASSWORD, PostgresServer
from tests.suite.warm import WarmProcess

_FAULTS: Final = {"server": 3, "broker": 3, "ingester": 2, "behind": 3, "second ingester": 1, "session": 2}
"""And how often each is chosen."""
_CHANGES: Final = {"nothing": 9, "column": 1, "large": 1, "altered": 4}
_BEHIND: Final = 20
"""Transactions before the alterations that no ingester has seen, and after them."""
_LIVES_S: Final = (0.0, 1.5)
_STOPS: Final = ("is not known for changes", "stopped: a record for")
"""What no change of this campaign may come to: another process, which looks at the catalog again, can hide it."""
_PROGRESS_S: Final = 120.0
_LEDGER: Final = TopicPartition("shop.public.ledger", 0)
_REPOSITORY: Final = Path(__file__).parents[3]
_SETTINGS: Final = {"wal_level": "logical", "max_connections": "30"}


@dataclass
class Report:
    kills: Counter[str] = field(default_factory=Counter)
    transactions: int = 0
    records: int = 0
    columns: int = 0
    altered: Counter[str] = field(default_factory=Counter)
    truncated: int = 0
    large: int = 0
    fenced: int = 0
    wrong: list[str] = field(default_factory=list)


class Campaign:
    def __init__(self, directory: Path, seed: int, large: int = 20_000) -> None:
        """``large``: rows of a large transaction."""
        self._directory = directory
        self._chance = random.Random(seed)
        self._large = large
        self._server = PostgresServer(settings=_SETTINGS)
        self._broker = EinmalBroker(directory / "broker")
        self._ingesters: list[WarmProcess] = []
        self._altered: set[str] = set()
        """Tables, since all that was committed had arrived: see ``alter``."""
        self._report = Report()

    def run(self, kills: int) -> Report:
        """``kills`` faults, then an undisturbed end, and the verdict."""
        writers: Writers | None = None
        try:
            self._prepare()
            writers = Writers(self._server, self._chance.randrange(1 << 30))
            self._start_ingester()
            self._progress()
            while self._report.kills.total() < kills:
                fault = self._chance.choices(list(_FAULTS), list(_FAULTS.values()))[0]
                self._change()
                time.sleep(self._chance.uniform(*_LIVES_S))
                if self._happens(fault):
                    self._report.kills[fault] += 1
                    self._progress()
                    print(f"kill {self._report.kills.total()}: {fault}", file=sys.stderr, flush=True)
            add_column(self._server)
            insert_many(self._server, self._large)
            self._report.columns += 1
            self._report.large += 1
            writers.stop()
            self._progress()
            self._kill_ingesters()
            self._verdict()
            return self._report
        finally:
            if writers is not None:
                writers.stop()
            self._kill_ingesters()
            self._broker.kill()
            self._server.remove()

    def _prepare(self) -> None:
        self._server.start()
        self._server.rows(SCHEMA)
        self._broker.start()
        with self._server.connect() as connection:
            for table in ALTERED:
                create(connection, table)
        with Admin({"bootstrap.servers": self._broker.bootstrap}) as admin:
            admin.create_topics(TOPICS)

    # --- faults -----------------------------------------------------------------------------------------------------

    def _change(self) -> None:
        """Of the tables, or a large transaction."""
        match self._chance.choices(list(_CHANGES), list(_CHANGES.values()))[0]:
            case "column":
                add_column(self._server)
                self._report.columns += 1
            case "large":
                insert_many(self._server, self._large)
                self._report.large += 1
            case "altered":
                self._alter(self._chance.choice(list(ALTERED)))

    def _alter(self, table: str) -> None:
        if table not in self._altered:
            self._altered.add(table)
            self._report.altered[f"{ALTERED[table]}: {alter(self._server, table, self._chance)}"] += 1

    def _happens(self, fault: str) -> bool:
        """Whether there was something to kill."""
        match fault:
            case "server":
                self._server.kill()
                self._server.start()
            case "broker":
                self._broker.kill()
                self._broker.start()
            case "ingester":
                self._kill_ingesters()
                self._start_ingester()
            case "behind":
                self._kill_ingesters()
                self._await_number(self._number() + _BEHIND)
                for table in ALTERED:
                    self._alter(table)
                self._await_number(self._number() + _BEHIND)
                self._start_ingester()
            case "second ingester":
                self._start_ingester()
            case "session":
                ended = self._server.rows(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                    " WHERE pid <> pg_backend_pid() AND (application_name = %s OR query LIKE %s)",
                    (f"einmal {SLOT}", "%pg_replication_slot%"),
                )
                return bool(ended)
        return True

    def _start_ingester(self) -> None:
        arguments = [self._broker.bootstrap, str(self._server.port), "postgres"]
        with (self._directory / "ingesters.log").open("ab") as log:
            self._ingesters.append(
                WarmProcess(
                    ["tests.ingest.postgresql.campaign_ingester", *arguments],
                    output=log.fileno(),
                    errors=log.fileno(),
                    cwd=_REPOSITORY,
                )
            )

    def _kill_ingesters(self) -> None:
        for each in self._ingesters:
            each.kill()
            each.wait()
        self._ingesters.clear()

    def _progress(self) -> None:
        """All that is committed now has arrived; an ingester that has ended is started again."""
        number = self._number()
        deadline = time.monotonic() + _PROGRESS_S
        while self._arrived() < number:
            if time.monotonic() > deadline:
                raise AssertionError(f"transaction {number} has not arrived: {self._log()[-6000:]}")
            self._ingesters = [each for each in self._ingesters if each.poll() is None]
            if not self._ingesters:
                self._start_ingester()
            time.sleep(0.1)
        self._altered.clear()

    def _number(self) -> int:
        """Of the last transaction."""
        ((number,),) = self._server.rows("SELECT n FROM ledger")
        return int(number)

    def _await_number(self, number: int) -> None:
        deadline = time.monotonic() + _PROGRESS_S
        while self._number() < number:
            if time.monotonic() > deadline:
                raise AssertionError("the writers have stopped")
            time.sleep(0.05)

    def _arrived(self) -> int:
        """The number of the last transaction that is committed on the topics."""
        try:
            cluster = KafkaCluster({"bootstrap.servers": self._broker.bootstrap})
            try:
                end = cluster.latest([_LEDGER], committed=True)[_LEDGER]
            finally:
                cluster.close()
            # A marker, and perhaps records that were aborted, are behind the last record.
            for record in reversed(list(self._records(_LEDGER, max(0, end - 200), end))):
                if record.value is not None:
                    return int(record.value["after"]["n"])
        except KafkaError:
            pass
        return -1

    # --- the verdict ------------------------------------------------------------------------------------------------

    def _records(self, place: TopicPartition, start: int, end: int) -> Iterator[Stored]:
        client = {"bootstrap.servers": self._broker.bootstrap, "isolation.level": "read_committed"}
        with RangeReader(client) as reader:
            bounds = OffsetRange(start, end)
            for batch in reader.read({place: bounds}):
                for record in batch.records(bounds):
                    transaction = (batch.header.producer_id, batch.header.producer_epoch)
                    yield stored(f"{place.topic}-{place.partition}", transaction, record.key, record.value)

    def _verdict(self) -> None:
        places = [TopicPartition(topic.name, index) for topic in TOPICS for index in range(topic.num_partitions)]
        cluster = KafkaCluster({"bootstrap.servers": self._broker.bootstrap})
        try:
            ends = cluster.latest(places, committed=True)
        finally:
            cluster.close()
        records = [each for place in places for each in self._records(place, 0, ends[place])]
        report = self._report
        report.records = len(records)
        report.transactions = self._number()
        ((report.truncated,),) = self._server.rows("SELECT count(*) FROM history WHERE op = 'TRUNCATE'")
        if not (report.records and report.transactions):
            report.wrong.append("nothing was written: nothing is shown")
        report.wrong += list(problems(self._server, records))[:20]
        report.fenced = self._log().count("another ingester has started")
        if PASSWORD in self._log():
            report.wrong.append("the password is in the ingesters' log")
        for reason in _STOPS:
            if reason in self._log():
                report.wrong.append(f"an ingester was stopped: {reason}")
        if "Traceback" in self._log():
            report.wrong.append("an ingester has ended with a traceback")

    def _log(self) -> str:
        return (self._directory / "ingesters.log").read_text(errors="replace")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(3), "big"))
    parser.add_argument("--large", type=int, default=20_000, help="rows of a large transaction")
    parser.add_argument("--keep", action="store_true", help="keep logs and data also of a clean run")
    asked = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="einmal-cdc-"))
    print(f"seed {asked.seed}, {asked.kills} kills, in {directory}", flush=True)
    report = Campaign(directory, asked.seed, asked.large).run(asked.kills)
    print(report, flush=True)
    if report.wrong or asked.keep:
        print(f"kept: {directory}")
    else:
        shutil.rmtree(directory)
    return 1 if report.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
