"""Leads the campaign: rows into the topic, drivers that die by the plan, a replay that dies, and the comparison."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from einmal.client import OffsetRange, Producer, RangeReader
from einmal.clusters.kafka_cluster import KafkaCluster
from tests.sinks.postgres.server import PostgresServer
from tests.spark.bad_rows import Letter, Payments, letter_of
from tests.spark.bad_rows_campaign.rows import BAD_IN, TABLE, is_bad, output, reason, sent
from tests.spark.topics import create

_REPOSITORY: Final = Path(__file__).parents[3]
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


@dataclass(slots=True)
class Report:
    rows: int
    kills: Counter[str] = field(default_factory=Counter)
    lives: int = 0
    dead_letters: int = 0
    replayed: int = 0
    seconds: float = 0.0
    wrong: list[str] = field(default_factory=list)


class Conductor:
    """``bootstrap``: of a cluster; ``server``: of the table; ``directory``: for checkpoints and logs."""

    def __init__(
        self, bootstrap: str, server: PostgresServer, directory: Path, *, rows: int, kills: int, seed: int
    ) -> None:
        self._server = server
        self._directory = directory
        self._random = random.Random(seed)
        self._kills = kills
        self._rows = rows
        # Every driver that is killed has a batch of its own to be killed in.
        self._batch = max(20, rows // (2 * kills + 2))
        self._payments = Payments(bootstrap, directory)
        self._client = {"bootstrap.servers": bootstrap}
        self.report = Report(rows)

    def run(self) -> Report:
        began = time.monotonic()
        payments = self._payments
        payments.create()
        self._server.rows(TABLE)
        create(payments.bootstrap, f"{payments.name}-repair")
        self._fill()
        for number in range(self._kills):
            self._live(number, "load", self._plan())
        self._live(self._kills, "load", None)
        self._check_first()
        self._replay()
        self._live(self._kills + 1, "repair", ["BatchWritten", 0])
        self._live(self._kills + 2, "repair", None)
        self._live(self._kills + 3, "load", ["TransactionEnded", 0])
        self._live(self._kills + 4, "load", None)
        self._check_last()
        self.report.seconds = time.monotonic() - began
        return self.report

    def _fill(self) -> None:
        # A busy machine may take longer than the two minutes that a record has by default.
        with Producer(self._client, delivery_timeout_ms=int(_LIFE_S * 1_000)) as producer:
            for first in range(0, self._rows, _TOGETHER):
                some = range(first, min(first + _TOGETHER, self._rows))
                written = [producer.send(self._payments.topic, sent(number), str(number)) for number in some]
                for each in written:
                    each.result(_LIFE_S)

    def _plan(self) -> list[Any]:
        moment = self._random.choice(list(_MOMENTS))
        if moment == "any":
            return [moment, self._random.uniform(0, _ANY_S)]
        return [moment, self._random.randrange(_MOMENTS[moment])]

    def _live(self, number: int, kind: str, kill: list[Any] | None) -> None:
        """One driver, to its end: by kill, or because its input is done."""
        settings = {
            "bootstrap": self._payments.bootstrap,
            "url": self._server.url,
            "directory": str(self._directory),
            "name": self._payments.name,
            "kind": kind,
            "batch": self._batch,
            "kill": kill,
        }
        status = _run(self._directory / f"driver-{number}", settings)
        self.report.lives += 1
        if status == -signal.SIGKILL:
            self.report.kills[str(kill and kill[0])] += 1
        elif status != 0:
            log = (self._directory / f"driver-{number}" / "driver.log").read_text(errors="replace")
            self.report.wrong.append(f"driver {number} ended with {status}: {log[-2000:]}")
        print(f"{time.strftime('%H:%M:%S')} driver {number} {kind:<6} {kill} -> {status}", flush=True)

    def _replay(self) -> None:
        """As the command does; killed once, some time after its start."""
        for kill_s in (self._random.uniform(0.5, 3.0), None):
            command = [sys.executable, "-m", "einmal", "dlq", "replay", self._payments.letters, "--yes"]
            command += ["--to", f"{self._payments.name}-repair", "-b", self._payments.bootstrap]
            process = subprocess.Popen(command, cwd=_REPOSITORY, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            try:
                process.wait(kill_s if kill_s is not None else _LIFE_S)
            except subprocess.TimeoutExpired:
                self.report.kills["replay"] += 1
            finally:
                process.kill()
                process.wait()

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

    def _check_last(self) -> None:
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
        lost, more = wanted - found, found - wanted
        if lost:
            self.report.wrong.append(f"{what}: {lost.total()} lost, such as {list(lost)[:3]}")
        if more:
            self.report.wrong.append(f"{what}: {more.total()} too many, such as {list(more)[:3]}")

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


def _run(directory: Path, settings: dict[str, Any]) -> int:
    directory.mkdir()
    path = directory / "settings.json"
    path.write_text(json.dumps(settings))
    with (directory / "driver.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", "tests.spark.bad_rows_campaign.driver", str(path)],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=_REPOSITORY,
            start_new_session=True,
        )
    assert process.stdin is not None
    try:
        process.stdin.write(b"begin\n")
        process.stdin.flush()
        return process.wait(_LIFE_S)
    except BrokenPipeError:
        return process.wait(_LIFE_S)
    finally:
        process.stdin.close()
        # Python workers outlive their JVM for a moment.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def _text(value: bytes | None) -> str:
    return (value or b"").decode()
