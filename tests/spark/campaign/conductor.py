"""Leads the campaign: fills the topics, lets drivers live and die by the plan, and computes the verdict.

``python -m tests.spark.campaign`` is its entry point. Every kill is one line; in the end comes a table of all kills,
and the verdict.
"""

from __future__ import annotations

import json
import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from einmal.client import Admin, Producer
from einmal.clusters.kafka_cluster import KafkaCluster
from einmal.spark.operate.ownership import KafkaOwnership
from tests.spark.campaign import plan, verdict
from tests.spark.campaign.cluster import Driver, DriverDied, Theatre
from tests.spark.campaign.pipelines import NAMES, SOURCES, Place, closing_number, expected, is_in, key_of, output_topic
from tests.spark.campaign.plan import Kill, Life
from tests.spark.standalone import kill as kill_pids
from tests.spark.topics import records

_TOPICS: Final = tuple(topic for topics in SOURCES.values() for topic in topics)
_CHUNK: Final = 10
_CHUNK_S: Final = 0.5
_MOMENT_S: Final = 15.0
"""How long a moment is waited for; a victim that does not come to it dies where it is."""
_ANY_TIME_S: Final = 1.5
_AROUND_S: Final = 0.04
_DOWN_S: Final = 1.0
_POLL_S: Final = 0.02
PROGRESS_S: Final = 120.0
"""A pipeline that commits nothing for so long after a kill stands still."""


class Feeder:
    """Writes numbers into all source topics, the same to each: a chunk when the one before it is acknowledged."""

    def __init__(self, bootstrap: str) -> None:
        self._producer = Producer({"bootstrap.servers": bootstrap})
        self._over = threading.Event()
        self._failure: BaseException | None = None
        self.count = 0
        self._thread = threading.Thread(target=self._feed, daemon=True)
        self._thread.start()

    def finish(self) -> int:
        """How many numbers there are. Writes the one that closes every window."""
        self.close()
        if self._failure is not None:
            raise self._failure
        with self._producer as producer:
            self._send(producer, closing_number(self.count))
        return self.count

    def close(self) -> None:
        self._over.set()
        self._thread.join()

    def _feed(self) -> None:
        try:
            while not self._over.wait(_CHUNK_S):
                for number in range(self.count, self.count + _CHUNK):
                    self._send(self._producer, number)
                self._producer.flush()
                self.count += _CHUNK
        except BaseException as error:  # noqa: BLE001 - reported by ``finish``
            self._failure = error

    def _send(self, producer: Producer, number: int) -> None:
        for topic in _TOPICS:
            if is_in(topic, number):
                producer.send(topic, str(number), key_of(number))


@dataclass
class Report:
    """What was done, and what is wrong."""

    kills: list[Kill] = field(default_factory=list)
    drivers: int = 0
    missed: Counter[str] = field(default_factory=Counter)
    """Moments that did not come, and how often; their victims died at any time."""
    restarts: list[str] = field(default_factory=list)
    """Why the sink itself started queries again."""
    ends: list[str] = field(default_factory=list)
    """Why queries ended; the program started them again."""
    waits: list[float] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    records: dict[str, int] = field(default_factory=dict)
    commits: Counter[str] = field(default_factory=Counter)
    took_s: float = 0.0


class Conductor:
    def __init__(self, theatre: Theatre, directory: Path, *, seed: int, guarantee: str = "exactly_once_v2") -> None:
        self._theatre = theatre
        self._place = Place(theatre.brokers.bootstrap, str(directory / "checkpoints"), guarantee)
        self._chance = random.Random(seed)
        self._drivers: list[Driver] = []
        self.report = Report()

    def run(self, kills: int) -> Report:
        """Kill so often, then let everything come to its end, and check."""
        began = time.monotonic()
        every = list(plan.lives(self._chance, kills, on_cluster=self._theatre.spark is not None))
        # The last one lives.
        if every[-1].kills[-1].victim == plan.DRIVER:
            every.append(Life(self._theatre.spark is None, ()))
        self._drivers = [self._theatre.launch(asdict(self._place), local=every[0].local)]
        feeder = Feeder(self._place.bootstrap)
        try:
            for number, life in enumerate(every):
                following = every[number + 1] if number + 1 < len(every) else None
                self._live(self._drivers[number], life, following, kills)
                if self.report.wrong:
                    return self.report
                if number:
                    # What the driver before has left running had this one's life to find out in.
                    self._drivers[number - 1].sweep()
            self._end(self._drivers[-1], feeder.finish())
        finally:
            feeder.close()
            for driver in self._drivers:
                driver.sweep()
            self.report.took_s = time.monotonic() - began
        return self.report

    # --- a life ---------------------------------------------------------------------------------------------------

    def _live(self, driver: Driver, life: Life, following: Life | None, total: int) -> None:
        self.report.drivers += 1
        first = life.kills[0] if life.kills else None
        held = first is not None and first.moment in (plan.NAME_TAKEN, plan.MENDING)
        driver.wait_until_ready()
        if first is not None and held:
            driver.hold(first.moment, first.pipeline)
        driver.begin()
        try:
            for kill in life.kills:
                if following is not None and (not held or kill.victim == plan.DRIVER):
                    # Not while this one begins: both would be slow.
                    self._drivers.append(self._theatre.launch(asdict(self._place), local=following.local))
                    following = None
                self._strike(driver, kill, total, held=held)
                held = False
                if self.report.wrong:
                    return
        except DriverDied as error:
            self.report.wrong.append(f"a driver ended by itself: {error}")
        self._hear_out(driver)

    def _hear_out(self, driver: Driver) -> None:
        self.report.commits += driver.commits
        self.report.restarts += driver.restarts
        for end in driver.ends:
            self.report.ends.append(f"{end['ended']}: {end['why']}")
            if end["refused"]:
                self.report.wrong.append(f"{end['ended']} was refused: {end['why']}")

    def _strike(self, driver: Driver, kill: Kill, total: int, *, held: bool) -> None:
        moment, port = self._wait_for(driver, kill, held=held)
        before = driver.commits[kill.pipeline]
        self.report.kills.append(Kill(kill.victim, moment, kill.pipeline))
        began = time.monotonic()
        self._kill(driver, kill, port)
        waited = ""
        if kill.victim != plan.DRIVER:
            driver.let_go()
            self._bring_back()
            if kill.waits:
                if not driver.wait(lambda: driver.commits[kill.pipeline] > before, PROGRESS_S):
                    self.report.wrong.append(f"{kill.pipeline} stands still after {kill}")
                self.report.waits.append(time.monotonic() - began)
                waited = f"goes on after {self.report.waits[-1]:.1f} s"
        number = len(self.report.kills)
        where = "by itself" if driver.is_local else "on the cluster"
        print(
            f"{time.strftime('%H:%M:%S')} {number:>4} of {total}  {kill.victim:<24} {moment:<16} "
            f"{kill.pipeline:<8} driver {self.report.drivers} {where:<15} {waited}",
            flush=True,
        )

    def _wait_for(self, driver: Driver, kill: Kill, *, held: bool) -> tuple[str, int | None]:
        """The moment that has come, and where a writer's connection comes from."""
        if kill.moment == plan.ANY_TIME:
            time.sleep(self._chance.uniform(0, _ANY_TIME_S))
            return kill.moment, None
        if not held:
            driver.hold(plan.BEFORE if kill.moment == plan.AROUND else kill.moment, kill.pipeline)
        if not driver.wait(lambda: driver.reached is not None, _MOMENT_S):
            self.report.missed[kill.moment] += 1
            driver.let_go()
            return plan.ANY_TIME, None
        if kill.moment == plan.AROUND:
            driver.let_go()
            time.sleep(self._chance.uniform(0, _AROUND_S))
        assert driver.reached is not None
        return kill.moment, driver.reached["port"]

    def _kill(self, driver: Driver, kill: Kill, port: int | None) -> None:
        match kill.victim:
            case plan.DRIVER:
                driver.kill()
            case plan.EXECUTOR:
                self._kill_one(lambda: driver.executor(self._chance, port))
            case plan.PYTHON_WORKER:
                self._kill_one(lambda: driver.python_worker(self._chance, port))
            case plan.SPARK_WORKER:
                assert self._theatre.spark is not None
                name = self._theatre.spark_worker(self._chance)
                kill_pids(self._theatre.spark.pids[name])
            case part:
                self._theatre.brokers.kill(self._theatre.broker(part, kill.pipeline, self._chance))
                time.sleep(self._chance.uniform(0, _DOWN_S))

    def _kill_one(self, find: Callable[[], int | None]) -> None:
        deadline = time.monotonic() + PROGRESS_S
        while (pid := find()) is None and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        if pid is None:
            self.report.wrong.append("there is nobody to kill: the driver's queries stand still")
        else:
            kill_pids(pid)

    def _bring_back(self) -> None:
        for node_id in list(self._theatre.brokers.dead):
            self._theatre.brokers.start_node(node_id)
        if self._theatre.spark is not None:
            for name in self._theatre.workers:
                self._theatre.spark.ensure_worker(name)

    # --- the end --------------------------------------------------------------------------------------------------

    def _end(self, driver: Driver, count: int) -> None:
        """Wait until everything is through, stop, and check."""
        print(f"{time.strftime('%H:%M:%S')} {count} numbers in each topic; waiting for the end", flush=True)
        ends = self._input_ends()
        deadline = time.monotonic() + PROGRESS_S
        while not self._is_through(ends, count) and time.monotonic() < deadline:
            time.sleep(0.5)
        driver.stop()
        self._hear_out(driver)
        self.report.wrong += self._judge(driver, ends, count)

    def _is_through(self, ends: verdict.Offsets, count: int) -> bool:
        positions = self._positions()
        if any(each.get("commit record") != {t: ends[t] for t in SOURCES[name]} for name, each in positions.items()):
            return False
        return all(len(self._outputs(name)) >= expected(name, count).total() for name in ("windows", "join"))

    def _judge(self, driver: Driver, ends: verdict.Offsets, count: int) -> list[str]:
        wrong = verdict.moments_that_never_came(self.report.missed, [kill.moment for kill in self.report.kills])
        for topic in _TOPICS:
            numbers = [int(value) for _, value in _read(self._place.bootstrap, topic)]
            self.report.records[topic] = len(numbers)
            wrong += verdict.wrong_with_input(topic, numbers, count)
        for name in NAMES:
            outputs = self._outputs(name)
            self.report.records[output_topic(name)] = len(outputs)
            wrong += verdict.wrong_with_output(name, outputs, count)
        wrong += verdict.wrong_with_positions(self._positions(), ends)
        assert driver.state is not None
        return wrong + verdict.wrong_with_state(driver.state, self._outputs("state"))

    def _outputs(self, name: str) -> list[tuple[str, str]]:
        return _read(self._place.bootstrap, output_topic(name))

    def _input_ends(self) -> verdict.Offsets:
        cluster = KafkaCluster({"bootstrap.servers": self._place.bootstrap})
        try:
            found = cluster.latest(cluster.partitions(_TOPICS), committed=True)
        finally:
            cluster.close()
        return {topic: {each.partition: found[each] for each in found if each.topic == topic} for topic in _TOPICS}

    def _positions(self) -> dict[str, dict[str, verdict.Offsets]]:
        client = {"bootstrap.servers": self._place.bootstrap}
        with KafkaOwnership(client) as owned, Admin(client) as admin:
            committed = owned.committed()
            return {
                name: {
                    "commit record": _of_record(committed[name].record) if name in committed else {},
                    "group": _of_group(admin.list_group_offsets(name)),
                    "checkpoint": _of_checkpoint(self._place.checkpoint(name)),
                }
                for name in NAMES
            }


def _read(bootstrap: str, topic: str) -> list[tuple[str, str]]:
    return [((each.key or b"").decode(), (each.value or b"").decode()) for _, each in records(bootstrap, topic)]


def _of_record(record: Any) -> verdict.Offsets:
    return verdict.offsets_in(record.end)


def _of_checkpoint(checkpoint: Path) -> verdict.Offsets:
    """Of the last batch that Spark believes done."""
    names = [path.name for path in (checkpoint / "commits").iterdir() if path.name.isdecimal()]
    lines = (checkpoint / "offsets" / max(names, key=int)).read_text().split("\n")
    return verdict.offsets_in(json.loads(line) for line in lines[2:])


def _of_group(positions: Any) -> verdict.Offsets:
    found: verdict.Offsets = {}
    for place, position in positions.items():
        found.setdefault(place.topic, {})[place.partition] = position.offset
    return found
