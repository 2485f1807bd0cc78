"""Leads the campaign: rows into the topic, drivers that die by the plan, a replay that dies, and the comparison."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from einmal.chaos.campaign import Campaign
from einmal.chaos.processes import kill_group, launch
from einmal.chaos.report import CampaignReport, differences
from einmal.client import OffsetRange, Producer, RangeReader
from einmal.clusters.kafka_cluster import KafkaCluster
from tests.campaigns.spark_driver import REPOSITORY, SparkDriver
from tests.sinks.postgres.server import PostgresServer
from tests.spark.bad_rows import Letter, Payments, letter_of
from tests.spark.bad_rows_campaign.rows import BAD_IN, TABLE, is_bad, output, reason, sent
from tests.spark.topics import create

_LIFE_S: Final = 600.0
_TOGETHER: Final = 10_000
"""Records that are sent before their outcome is looked at."""
_MOMENTS: Final = {
    "NameTaken": 3,
    "BatchStarted": 2,
    "PartitionClaimed": 4,
    "PartitionWritten": 4,
    "OutputWritten": 6,
    "BatchWritten": 6,
    "TransactionEnded": 6,
    "BatchFinished": 2,
    "any": 1,
}
"""And how many of each a driver has in about two batches: of decoded dead letters, of the table, and of the dead
letters of the rows that it rejects."""
_ANY_S: Final = 8.0


@dataclass(kw_only=True)
class BadRowsReport(CampaignReport):
    rows: int
    lives: int = 0
    dead_letters: int = 0
    replayed: int = 0


class BadRowsCampaign(Campaign[BadRowsReport]):
    """``bootstrap``: of a cluster; ``server``: of the table; ``directory``: for checkpoints and logs."""

    def __init__(self, bootstrap: str, server: PostgresServer, directory: Path, *, rows: int, seed: int) -> None:
        super().__init__(BadRowsReport(rows=rows), seed)
        self._server = server
        self._directory = directory
        self._rows = rows
        self._batch = rows
        self._payments = Payments(bootstrap, directory)
        self._client = {"bootstrap.servers": bootstrap}

    def start(self) -> None:
        self._payments.create()
        self._server.rows(TABLE)
        create(self._payments.bootstrap, f"{self._payments.name}-repair")
        self._fill()

    def disturb(self, kills: int) -> None:
        # Every driver that is killed has a batch of its own to be killed in.
        self._batch = max(20, self._rows // (2 * kills + 2))
        for _ in range(kills):
            self._live("load", self._plan())
        self._live("load", None)
        self._check_first()
        self._replay()
        self._live("repair", ["BatchWritten", 0])
        self._live("repair", None)
        self._live("load", ["TransactionEnded", 0])

    def finish(self) -> None:
        self._live("load", None)

    def close(self) -> None:
        """Nothing: each driver is followed to its end."""

    def _fill(self) -> None:
        # A busy machine may take longer than the two minutes that a record has by default.
        with Producer(self._client, delivery_timeout_ms=int(_LIFE_S * 1_000)) as producer:
            for first in range(0, self._rows, _TOGETHER):
                some = range(first, min(first + _TOGETHER, self._rows))
                written = [producer.send(self._payments.topic, sent(number), str(number)) for number in some]
                for each in written:
                    each.result(_LIFE_S)

    def _plan(self) -> list[Any]:
        moment = self.chance.choice(list(_MOMENTS))
        if moment == "any":
            return [moment, self.chance.uniform(0, _ANY_S)]
        return [moment, self.chance.randrange(_MOMENTS[moment])]

    def _live(self, kind: str, kill: list[Any] | None) -> None:
        """One driver, to its end: by kill, or because its input is done."""
        number = self.report.lives
        settings = {
            "bootstrap": self._payments.bootstrap,
            "url": self._server.url,
            "directory": str(self._directory),
            "name": self._payments.name,
            "kind": kind,
            "batch": self._batch,
            "kill": kill,
        }
        module = "tests.spark.bad_rows_campaign.driver"
        driver = SparkDriver(self._directory / f"driver-{number}", module, settings)
        try:
            driver.order(begin=True)
            status = driver.process.wait(_LIFE_S)
        finally:
            # Python workers outlive their JVM for a moment.
            driver.sweep()
        self.report.lives += 1
        if status == -signal.SIGKILL:
            self.report.note(str(kill and kill[0]), f"driver {number}, {kind}")
        elif status != 0:
            self.report.wrong.append(f"driver {number} ended with {status}: {driver.log_tail()}")

    def _replay(self) -> None:
        """As the command does; killed once, some time after its start."""
        for kill_s in (self.chance.uniform(0.5, 3.0), None):
            command = [sys.executable, "-m", "einmal", "dlq", "replay", self._payments.letters, "--yes"]
            command += ["--to", f"{self._payments.name}-repair", "-b", self._payments.bootstrap]
            process = launch(command, self._directory / "replay.log", cwd=REPOSITORY)
            try:
                process.wait(kill_s if kill_s is not None else _LIFE_S)
            except subprocess.TimeoutExpired:
                self.report.note("replay")
            finally:
                kill_group(process)

    # --- checks -------------------------------------------------------------------------------------------------

    def _check_first(self) -> None:
        """Good rows loaded once, and each bad row in the dead-letter topic once."""
        good = Counter(output(number) for number in range(self._rows) if not is_bad(number))
        self._compare("table", self._table(), good)
        letters = [letter_of(each) for each in self._records(self._payments.letters)]
        self.report.dead_letters = len(letters)
        bad = {number for number in range(self._rows) if is_bad(number)}
        self._compare(
            "dead letters",
            Counter((_text(each.key), each.reason, each.value) for each in letters),
            Counter((str(number), reason(number), sent(number)) for number in bad),
        )
        self._check_positions(letters)

    def _check_positions(self, letters: list[Letter]) -> None:
        positions = Counter(each.position for each in letters)
        if any(count > 1 for count in positions.values()):
            self.report.wrong.append("a position has two dead letters")

    def check(self) -> None:
        """After the repair the sink equals that of clean input."""
        repaired = list(self._records(f"{self._payments.name}-repair"))
        self.report.replayed = len(repaired)
        if len(repaired) != self._rows // BAD_IN:
            self.report.wrong.append(f"{len(repaired)} records are replayed, not {self._rows // BAD_IN}")
        clean = Counter(output(number) for number in range(self._rows))
        self._compare("table", self._table(), clean)
        again = sum(1 for _ in self._records(self._payments.letters))
        if again != self.report.dead_letters:
            self.report.wrong.append(f"{again} dead letters, {self.report.dead_letters} before the repair")

    def _table(self) -> Counter[str]:
        return Counter(f"{number}:{amount}" for number, amount in self._server.rows("SELECT id, amount FROM payments"))

    def _compare(self, what: str, found: Counter[Any], wanted: Counter[Any]) -> None:
        self.report.wrong += differences(what, found.elements(), wanted.elements())

    def _records(self, topic: str) -> Iterator[Any]:
        cluster = KafkaCluster(self._client)
        try:
            partitions = cluster.partitions([topic])
            first, last = cluster.earliest(partitions), cluster.latest(partitions, committed=True)
        finally:
            cluster.close()
        bounds = {each: OffsetRange(first[each], last[each]) for each in partitions if first[each] < last[each]}
        with RangeReader({**self._client, "isolation.level": "read_committed"}) as reader:
            for batch in reader.read(bounds):
                yield from batch.records(bounds[batch.topic_partition])


def _text(value: bytes | None) -> str:
    return (value or b"").decode()
