"""Random kills of a PostgreSQL server, a broker and the ingester between them, and second ingesters under its name.

    python -m tests.ingest.postgresql.campaign --kills 200 --seed 1

Meanwhile transactions change five tables, and truncate three of them; columns are added, keys renamed, and tables
dropped and created again, also while no ingester runs; some transactions are large. In the end the topics are compared
with the history that the database has kept (``bookkeeping``). Exit code 0 where nothing is wrong.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from einmal.chaos.campaign import RandomFaults
from einmal.chaos.instances import Instances
from einmal.chaos.report import CampaignReport
from einmal.chaos.waiting import wait_until
from einmal.client import Admin, OffsetRange, RangeReader
from einmal.client.errors import KafkaError
from einmal.clusters.kafka_cluster import KafkaCluster
from einmal.types import TopicPartition
from tests.campaigns.command import parser, run_in_folder, with_keep
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
_CALM_S: Final = (0.0, 1.5)
_STOPS: Final = ("is not known for changes", "stopped: a record for")
"""What no change of this campaign may come to: another process, which looks at the catalog again, can hide it."""
_PROGRESS_S: Final = 120.0
_LEDGER: Final = TopicPartition("shop.public.ledger", 0)
_REPOSITORY: Final = Path(__file__).parents[3]
_SETTINGS: Final = {"wal_level": "logical", "max_connections": "30"}


@dataclass(kw_only=True)
class CaptureReport(CampaignReport):
    transactions: int = 0
    records: int = 0
    columns: int = 0
    altered: Counter[str] = field(default_factory=Counter)
    truncated: int = 0
    large: int = 0
    fenced: int = 0


class CaptureCampaign(RandomFaults[CaptureReport]):
    def __init__(self, directory: Path, seed: int, large: int = 20_000) -> None:
        """``large``: rows of a large transaction."""
        super().__init__(CaptureReport(), seed, _FAULTS, _CALM_S)
        self._directory = directory
        self._large = large
        self._server = PostgresServer(settings=_SETTINGS)
        self._broker = EinmalBroker(directory / "broker")
        self._ingesters = Instances(self._launch, directory / "ingesters.log")
        self._writers: Writers | None = None
        self._altered: set[str] = set()
        """Tables, since all that was committed had arrived: see ``alter``."""

    def start(self) -> None:
        self._server.start()
        self._server.rows(SCHEMA)
        self._broker.start()
        with self._server.connect() as connection:
            for table in ALTERED:
                create(connection, table)
        with Admin({"bootstrap.servers": self._broker.bootstrap}) as admin:
            admin.create_topics(TOPICS)
        self._writers = Writers(self._server, self.chance.randrange(1 << 30))
        self._ingesters.start()

    def finish(self) -> None:
        assert self._writers is not None
        self._add_column()
        self._insert_many()
        self._writers.stop()
        self.await_progress()
        self._ingesters.kill()

    def close(self) -> None:
        if self._writers is not None:
            self._writers.stop()
        self._ingesters.kill()
        self._broker.kill()
        self._server.remove()

    # --- faults -----------------------------------------------------------------------------------------------------

    def calm(self) -> None:
        """Tables change meanwhile, or a large transaction is written."""
        match self.chance.choices(list(_CHANGES), list(_CHANGES.values()))[0]:
            case "column":
                self._add_column()
            case "large":
                self._insert_many()
            case "altered":
                self._alter(self.chance.choice(list(ALTERED)))
        super().calm()

    def _add_column(self) -> None:
        add_column(self._server)
        self.report.columns += 1

    def _insert_many(self) -> None:
        insert_many(self._server, self._large)
        self.report.large += 1

    def _alter(self, table: str) -> None:
        if table not in self._altered:
            self._altered.add(table)
            self.report.altered[f"{ALTERED[table]}: {alter(self._server, table, self.chance)}"] += 1

    def inject(self, fault: str) -> str:
        match fault:
            case "server":
                self._server.kill()
                self._server.start()
            case "broker":
                self._broker.kill()
                self._broker.start()
            case "ingester":
                self._ingesters.kill()
                self._ingesters.start()
            case "behind":
                self._ingesters.kill()
                self._await_number(self._number() + _BEHIND)
                for table in ALTERED:
                    self._alter(table)
                self._await_number(self._number() + _BEHIND)
                self._ingesters.start()
            case "second ingester":
                self._ingesters.start()
            case "session":
                ended = self._server.rows(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                    " WHERE pid <> pg_backend_pid() AND (application_name = %s OR query LIKE %s)",
                    (f"einmal {SLOT}", "%pg_replication_slot%"),
                )
                return fault if ended else ""
        return fault

    def _launch(self) -> WarmProcess:
        arguments = [self._broker.bootstrap, str(self._server.port), "postgres"]
        with (self._directory / "ingesters.log").open("ab") as log:
            return WarmProcess(
                ["tests.ingest.postgresql.campaign_ingester", *arguments],
                output=log.fileno(),
                errors=log.fileno(),
                cwd=_REPOSITORY,
            )

    def await_progress(self) -> None:
        """All that is committed now has arrived; an ingester that has ended is started again."""
        number = self._number()

        def has_arrived() -> bool:
            if self._arrived() >= number:
                return True
            self._ingesters.ensure()
            return False

        wait_until(
            has_arrived, _PROGRESS_S, lambda: f"transaction {number} is missing: {self._ingesters.log()[-6000:]}"
        )
        self._altered.clear()

    def _number(self) -> int:
        """Of the last transaction."""
        ((number,),) = self._server.rows("SELECT n FROM ledger")
        return int(number)

    def _await_number(self, number: int) -> None:
        wait_until(lambda: self._number() >= number, _PROGRESS_S, lambda: "the writers have stopped", pause_s=0.05)

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

    def check(self) -> None:
        places = [TopicPartition(topic.name, index) for topic in TOPICS for index in range(topic.num_partitions)]
        cluster = KafkaCluster({"bootstrap.servers": self._broker.bootstrap})
        try:
            ends = cluster.latest(places, committed=True)
        finally:
            cluster.close()
        records = [each for place in places for each in self._records(place, 0, ends[place])]
        report = self.report
        report.records = len(records)
        report.transactions = self._number()
        ((report.truncated,),) = self._server.rows("SELECT count(*) FROM history WHERE op = 'TRUNCATE'")
        if not (report.records and report.transactions):
            report.wrong.append("nothing was written: nothing is shown")
        report.wrong += list(problems(self._server, records))[:20]
        report.fenced = self._ingesters.log().count("another ingester has started")
        if PASSWORD in self._ingesters.log():
            report.wrong.append("the password is in the ingesters' log")
        for reason in _STOPS:
            if reason in self._ingesters.log():
                report.wrong.append(f"an ingester was stopped: {reason}")
        if "Traceback" in self._ingesters.log():
            report.wrong.append("an ingester has ended with a traceback")


def main() -> int:
    options = with_keep(parser(__doc__, kills=200))
    options.add_argument("--large", type=int, default=20_000, help="rows of a large transaction")
    asked = options.parse_args()
    return not run_in_folder(
        "cdc", asked, lambda folder: CaptureCampaign(folder, asked.seed, asked.large).run(asked.kills)
    )


if __name__ == "__main__":
    sys.exit(main())
