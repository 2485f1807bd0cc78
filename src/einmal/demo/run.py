"""The demo's story: load, count, kill, compare.

While Spark warms up, an idempotent producer loads ``sentences``, and the broker that leads most of it is killed. Then a
driver runs both queries: it finds its transaction coordinator killed at an EndTxn, and dies itself right after a later
one; its successor recognises the committed batch, and dies between two tasks; the last one aborts the transaction left
open, and ends. Every successor is ready before its predecessor dies.
"""

from __future__ import annotations

import queue
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, Protocol

from einmal.client import Producer
from einmal.demo.brokers import Brokers
from einmal.demo.driver import Driver, DriverFailed
from einmal.demo.pipeline_names import (
    AFTER_END_TXN,
    BETWEEN_TASKS,
    CONTROL,
    EXACTLY_ONCE,
    SENTENCES,
    transactional_id,
)
from einmal.demo.report import Report
from einmal.demo.text import count_words
from einmal.demo.timeline import Moment, Timeline
from einmal.demo.topics import read
from einmal.demo.verdict import compare_counts, compare_sentences, verdict
from einmal.demo.watch import watching
from einmal.evidence.environment import RunEnvironment

PARTITIONS: Final = 4
LEADER_KILL_SHARE: Final = 0.5
"""The share of the input that is acknowledged when the leader dies."""
COORDINATOR_KILL_BATCH: Final = 1
DRIVER_KILLS: Final = ((AFTER_END_TXN, 2), (BETWEEN_TASKS, 4))
LEADER, COORDINATOR, DRIVER = "leader of sentences", "transaction coordinator", "Spark driver"
VICTIMS: Final = (LEADER, COORDINATOR, DRIVER, DRIVER)
BATCHES: Final = 6
_EVENTS: Final = {"kill": "was killed", "failover": "takes over", "back": "is back"}
_SHOWN_EVERY_S: Final = 5.0
_WARM_SECONDS_MAX: Final = 300.0
_FENCED: Final = "the killed driver is fenced, what it left open is aborted"


class Stage(Protocol):
    """Where progress is shown. ``total`` None: no end is known."""

    def begin(self, name: str, text: str, total: int | None) -> None: ...

    def advance(self, name: str, done: int, text: str | None = None) -> None: ...


class Demo:
    def __init__(
        self, folder: Path, source: str, lines: Sequence[str], stage: Stage, environment: RunEnvironment
    ) -> None:
        self._environment = environment
        self._folder = folder
        self._source = source
        self._lines = lines
        self._stage = stage
        self._name, self._text, self._done = "", "", 0
        self._started = time.monotonic()
        self._timeline = Timeline()
        self._drivers: list[Driver] = []
        self._warm: queue.SimpleQueue[Driver | DriverFailed] = queue.SimpleQueue()
        self._killer = ThreadPoolExecutor(1)
        self._recovery: Future[None] | None = None
        self._acknowledged = 0
        self._killed: list[str] = []
        self._replayed = 0
        self._committed = 0

    def run(self) -> tuple[Report, Timeline]:
        """Raises BrokerFailed, DriverFailed or KafkaError when the demo itself cannot continue."""
        self._prepare_folder()
        self._brokers = Brokers(self._folder / "cluster", self._tell_of_broker)
        self._timeline.brokers = self._brokers.ids
        try:
            self._begin("start", "starting three brokers, and Spark", 1)
            # A driver needs no broker to start up, which takes longest.
            self._warm_driver()
            self._brokers.start()
            self._show(1)
            self._mark("step", "three brokers are ready")
            self._brokers.create_topics((SENTENCES, EXACTLY_ONCE, CONTROL), PARTITIONS)
            expected = count_words(self._lines)
            with watching(self._brokers, self._timeline, self._now, self._share_loaded, sum(expected.values())):
                self._load()
                self._count()
            return self._compare(expected), self._timeline
        finally:
            for driver in self._drivers:
                driver.kill()
            self._brokers.end()
            self._killer.shutdown()

    def _prepare_folder(self) -> None:
        for name in ("cluster", "checkpoints"):
            shutil.rmtree(self._folder / name, ignore_errors=True)
        self._folder.mkdir(parents=True, exist_ok=True)
        (self._folder / "driver.log").unlink(missing_ok=True)

    # --- loading --------------------------------------------------------------------------------------------

    def _load(self) -> None:
        """Load every line under its number; meanwhile the leader is killed and restarted."""
        self._begin("load", "loading sentences", len(self._lines))
        is_over = threading.Event()
        kill = self._killer.submit(self._kill_leader, int(len(self._lines) * LEADER_KILL_SHARE), is_over)
        try:
            with Producer(bootstrap_servers=self._brokers.bootstrap_servers, enable_idempotence=True) as producer:
                futures = []
                for number, line in enumerate(self._lines):
                    futures.append(producer.send(SENTENCES, line.encode(), key=str(number).encode()))
                    if len(futures) == 2_000:
                        self._await(futures)
                self._await(futures)
        finally:
            is_over.set()
        kill.result()
        self._mark("step", "sentences loaded")

    def _await(self, futures: list[Any]) -> None:
        for future in futures:
            future.result()
        self._acknowledged += len(futures)
        futures.clear()
        self._show(done=self._acknowledged)

    def _share_loaded(self) -> float:
        return self._acknowledged / len(self._lines)

    def _kill_leader(self, count: int, is_over: threading.Event) -> None:
        while self._acknowledged < count and not is_over.wait(0.002):
            pass
        self._brokers.kill_leader(SENTENCES, f"after {self._acknowledged:,} acknowledged sentences")
        self._killed.append(LEADER)

    # --- counting -------------------------------------------------------------------------------------------

    def _warm_driver(self) -> None:
        """Start one in the background: it costs seconds of both cores."""
        driver = Driver(self._folder / "driver.log")
        self._drivers.append(driver)

        def wait() -> None:
            try:
                driver.wait_until_warm()
            except DriverFailed as error:
                self._warm.put(error)
                return
            self._warm.put(driver)

        threading.Thread(target=wait, daemon=True).start()

    def _next_driver(self) -> Driver:
        """The next driver that is ready. Shows its progress meanwhile."""
        begun = time.monotonic()
        while True:
            try:
                driver = self._warm.get(timeout=_SHOWN_EVERY_S)
                break
            except queue.Empty:
                waited = time.monotonic() - begun
                if waited > _WARM_SECONDS_MAX:
                    raise DriverFailed(f"Spark has not started within {_WARM_SECONDS_MAX:.0f} s") from None
                self._show(text=f"{self._text}: waiting for Spark to start, {waited:.0f} s")
        if isinstance(driver, DriverFailed):
            raise driver
        return driver

    def _count(self) -> None:
        self._begin("count", "counting words", BATCHES)
        for kill_at, batch_id in (*DRIVER_KILLS, ("", 0)):
            driver = self._next_driver()
            self._mark("step", "Spark driver takes over")
            driver.obey(
                {
                    "bootstrap_servers": self._brokers.bootstrap_servers,
                    "checkpoints": str(self._folder / "checkpoints"),
                    "lines_per_batch": -(-len(self._lines) // BATCHES),
                    "kill_at": kill_at,
                    "kill_batch_id": batch_id,
                    "wait_batch_id": COORDINATOR_KILL_BATCH if COORDINATOR not in self._killed else -1,
                }
            )
            self._note(self._follow(driver, lambda event: event["event"] == "BatchStarted"))
            if kill_at:
                # Not before: Spark gives a query's first Python workers only ten seconds to get ready.
                self._warm_driver()
                self._follow_to_kill_point(driver, kill_at)
            else:
                self._follow(driver, lambda event: event["event"] == "Finished")
                driver.stop()
        if self._recovery is not None:
            self._recovery.result()
        self._mark("step", "all batches are in")

    def _follow_to_kill_point(self, driver: Driver, kill_at: str) -> None:
        """Kill when both queries are blocked: the control reaches its kill point first."""
        last = self._follow(driver, lambda event: (event["event"], event.get("query")) == ("AtKillPoint", EXACTLY_ONCE))
        driver.kill()
        self._killed.append(DRIVER)
        self._mark("kill", f"Spark driver killed (SIGKILL) {kill_at} of batch {last['batch_id']}")
        self._show(text="counting words: the driver was killed")

    def _follow(self, driver: Driver, until: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Process the driver's events, up to this one, and return it."""
        while not until(event := driver.next_event()):
            if event["event"] == "BeforeEndTxn":
                self._kill_coordinator(driver, event["batch_id"])
            else:
                self._note(event)
        return event

    def _kill_coordinator(self, driver: Driver, batch_id: int) -> None:
        """The driver continues as soon as the coordinator is dead."""
        when = f"right before EndTxn of batch {batch_id}"
        name = transactional_id(EXACTLY_ONCE)

        def then() -> None:
            self._killed.append(COORDINATOR)
            driver.resume()

        self._recovery = self._killer.submit(self._brokers.kill_coordinator, name, when, then)

    def _note(self, event: dict[str, Any]) -> None:
        if event.get("query") != EXACTLY_ONCE:
            return
        batch_id = event.get("batch_id")
        match event["event"]:
            case "NameTaken" if DRIVER in self._killed:
                self._mark("fence", f"the successor acquired the transactional.id (epoch {event['epoch']}): {_FENCED}")
            case "BatchAlreadyIn":
                self._replayed += 1
                self._mark("already-in", f"batch {batch_id} was committed by the killed driver: not written again")
            case "TransactionEnded" if event["committed"]:
                self._committed = int(event["batch_id"])
                self._mark("step", f"batch {batch_id} is committed")
                self._show(self._committed, f"counting words: batch {batch_id} is committed")
            case "TransactionEnded":
                self._mark("abort", f"an attempt of batch {batch_id} was aborted")
            case "BatchStarted":
                self._show(self._committed, f"counting words: batch {batch_id}")
            case _:
                pass

    # --- comparing ------------------------------------------------------------------------------------------

    def _compare(self, expected: Counter[str]) -> Report:
        self._begin("compare", "comparing, word by word", 3)
        servers = self._brokers.bootstrap_servers
        loaded = compare_sentences(self._lines, read(servers, SENTENCES))
        self._show(1)
        visible = list(read(servers, EXACTLY_ONCE))
        counted = compare_counts(expected, visible)
        self._show(2)
        control = compare_counts(expected, read(servers, CONTROL))
        written = sum(1 for _record in read(servers, EXACTLY_ONCE, "read_uncommitted"))
        self._show(3)
        return Report(
            source=self._source,
            input_records=len(self._lines),
            input_words=sum(expected.values()),
            loaded=loaded,
            counted=counted,
            control=control,
            killed=tuple(self._killed),
            replayed_batches=self._replayed,
            aborted_records=written - len(visible),
            seconds=self._now(),
            verdict=verdict(loaded, counted, control, self._killed, VICTIMS),
            environment=self._environment,
        )

    # --- progress -------------------------------------------------------------------------------------------

    def _now(self) -> float:
        return time.monotonic() - self._started

    def _mark(self, kind: str, text: str, broker: int | None = None) -> None:
        self._timeline.moments.append(Moment(self._now(), kind, text, broker))

    def _tell_of_broker(self, kind: str, text: str, broker: int) -> None:
        self._mark(kind, text, broker)
        self._show(text=f"{self._text}: broker {broker} {_EVENTS[kind]}")

    def _begin(self, name: str, text: str, total: int) -> None:
        self._name, self._text, self._done = name, text, 0
        self._stage.begin(name, text, total)

    def _show(self, done: int | None = None, text: str | None = None) -> None:
        self._done = self._done if done is None else done
        self._stage.advance(self._name, self._done, text)
