"""Leads the campaign: fills the topics, lets drivers live and die by the plan, and computes the verdict.

``python -m tests.spark.campaign`` is its entry point. Every kill is one line; in the end comes a table of all kills,
and the verdict.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from einmal.chaos.campaign import Campaign
from einmal.chaos.processes import kill as kill_pids
from einmal.chaos.reporting import ProcessEnded
from einmal.chaos.waiting import holds_within
from einmal.client import Admin, Producer
from einmal.clusters.kafka_cluster import KafkaCluster
from einmal.spark.operate.ownership import KafkaOwnership
from tests.spark.campaign import plan, verdict
from tests.spark.campaign.cluster import Driver, Theatre
from tests.spark.campaign.pipelines import NAMES, SOURCES, Place, closing_number, expected, is_in, key_of, output_topic
from tests.spark.campaign.plan import Kill, Life
from tests.spark.campaign.report import PipelinesReport
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


class PipelinesCampaign(Campaign[PipelinesReport]):
    def __init__(self, theatre: Theatre, directory: Path, *, seed: int, guarantee: str = "exactly_once_v2") -> None:
        super().__init__(PipelinesReport(seed=seed), seed)
        self._theatre = theatre
        self._place = Place(theatre.brokers.bootstrap, str(directory / "checkpoints"), guarantee)
        self._drivers: list[Driver] = []
        self._feeder: Feeder | None = None
        self._count = 0
        self._ends: verdict.Offsets = {}

    def start(self) -> None:
        self._feeder = Feeder(self._place.bootstrap)

    def disturb(self, kills: int) -> None:
        """Until something is wrong: then the rest shows nothing."""
        every = list(plan.lives(self.chance, kills, on_cluster=self._theatre.spark is not None))
        # The last one lives.
        if every[-1].kills[-1].victim == plan.DRIVER:
            every.append(Life(self._theatre.spark is None, ()))
        self._drivers = [self._theatre.launch(asdict(self._place), local=every[0].local)]
        for number, life in enumerate(every):
            following = every[number + 1] if number + 1 < len(every) else None
            self._live(self._drivers[number], life, following)
            if self.report.wrong:
                return
            if number:
                # What the driver before has left running had this one's life to find out in.
                self._drivers[number - 1].sweep()

    def close(self) -> None:
        if self._feeder is not None:
            self._feeder.close()
        for driver in self._drivers:
            driver.sweep()

    # --- a life ---------------------------------------------------------------------------------------------------

    def _live(self, driver: Driver, life: Life, following: Life | None) -> None:
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
                self._strike(driver, kill, held=held)
                held = False
                if self.report.wrong:
                    return
        except ProcessEnded as error:
            self.report.wrong.append(f"a driver ended by itself: {error}")
        self._hear_out(driver)

    def _hear_out(self, driver: Driver) -> None:
        self.report.commits += driver.commits
        self.report.restarts += driver.restarts
        for end in driver.ends:
            self.report.ends.append(f"{end['ended']}: {end['why']}")
            if end["refused"]:
                self.report.wrong.append(f"{end['ended']} was refused: {end['why']}")

    def _strike(self, driver: Driver, kill: Kill, *, held: bool) -> None:
        moment, port = self._wait_for(driver, kill, held=held)
        before = driver.commits[kill.pipeline]
        self.report.killed.append(Kill(kill.victim, moment, kill.pipeline))
        began = time.monotonic()
        self._kill(driver, kill, port)
        waited = ""
        if kill.victim != plan.DRIVER:
            driver.let_go()
            self._bring_back()
            if kill.waits:
                if not driver.wait_for(lambda: driver.commits[kill.pipeline] > before, PROGRESS_S):
                    self.report.wrong.append(f"{kill.pipeline} stands still after {kill}")
                self.report.waits.append(time.monotonic() - began)
                waited = f"goes on after {self.report.waits[-1]:.1f} s"
        where = "by itself" if driver.is_local else "on the cluster"
        details = f"{moment:<16} {kill.pipeline:<8} driver {self.report.drivers} {where:<15} {waited}"
        self.report.note(kill.victim, details)

    def _wait_for(self, driver: Driver, kill: Kill, *, held: bool) -> tuple[str, int | None]:
        """The moment that has come, and where a writer's connection comes from."""
        if kill.moment == plan.ANY_TIME:
            time.sleep(self.chance.uniform(0, _ANY_TIME_S))
            return kill.moment, None
        if not held:
            driver.hold(plan.BEFORE if kill.moment == plan.AROUND else kill.moment, kill.pipeline)
        if not driver.wait_for(lambda: driver.reached is not None, _MOMENT_S):
            self.report.missed[kill.moment] += 1
            driver.let_go()
            return plan.ANY_TIME, None
        if kill.moment == plan.AROUND:
            driver.let_go()
            time.sleep(self.chance.uniform(0, _AROUND_S))
        assert driver.reached is not None
        return kill.moment, driver.reached["port"]

    def _kill(self, driver: Driver, kill: Kill, port: int | None) -> None:
        match kill.victim:
            case plan.DRIVER:
                driver.kill()
            case plan.EXECUTOR:
                self._kill_one(lambda: driver.executor(self.chance, port))
            case plan.PYTHON_WORKER:
                self._kill_one(lambda: driver.python_worker(self.chance, port))
            case plan.SPARK_WORKER:
                assert self._theatre.spark is not None
                name = self._theatre.spark_worker(self.chance)
                kill_pids(self._theatre.spark.pids[name])
            case part:
                self._theatre.brokers.kill(self._theatre.broker(part, kill.pipeline, self.chance))
                time.sleep(self.chance.uniform(0, _DOWN_S))

    def _kill_one(self, find: Callable[[], int | None]) -> None:
        found: list[int] = []

        def is_there() -> bool:
            found.extend(pid for pid in [find()] if pid is not None)
            return bool(found)

        if holds_within(PROGRESS_S, is_there, pause_s=_POLL_S):
            kill_pids(found[0])
        else:
            self.report.wrong.append("there is nobody to kill: the driver's queries stand still")

    def _bring_back(self) -> None:
        for node_id in list(self._theatre.brokers.dead):
            self._theatre.brokers.start_node(node_id)
        if self._theatre.spark is not None:
            for name in self._theatre.workers:
                self._theatre.spark.ensure_worker(name)

    # --- the end --------------------------------------------------------------------------------------------------

    def finish(self) -> None:
        """Wait until everything is through, and stop."""
        if self.report.wrong:
            return
        assert self._feeder is not None
        self._count = self._feeder.finish()
        print(f"{time.strftime('%H:%M:%S')} {self._count} numbers in each topic; waiting for the end", flush=True)
        self._ends = self._input_ends()
        holds_within(PROGRESS_S, self._is_through, pause_s=0.5)
        self._drivers[-1].stop()
        self._hear_out(self._drivers[-1])

    def _is_through(self) -> bool:
        positions = self._positions()
        if any(
            each.get("commit record") != {t: self._ends[t] for t in SOURCES[name]} for name, each in positions.items()
        ):
            return False
        return all(len(self._outputs(name)) >= expected(name, self._count).total() for name in ("windows", "join"))

    def check(self) -> None:
        if self.report.wrong:
            return
        count, wrong = self._count, self.report.wrong
        wrong += verdict.moments_that_never_came(self.report.missed, [kill.moment for kill in self.report.killed])
        for topic in _TOPICS:
            numbers = [int(value) for _, value in _read(self._place.bootstrap, topic)]
            self.report.records[topic] = len(numbers)
            wrong += verdict.wrong_with_input(topic, numbers, count)
        for name in NAMES:
            outputs = self._outputs(name)
            self.report.records[output_topic(name)] = len(outputs)
            wrong += verdict.wrong_with_output(name, outputs, count)
        wrong += verdict.wrong_with_positions(self._positions(), self._ends)
        state = self._drivers[-1].state
        assert state is not None
        wrong += verdict.wrong_with_state(state, self._outputs("state"))

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
