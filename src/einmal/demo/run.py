"""The demo's story: load, count, kill, compare.

While Spark warms up, an idempotent producer loads ``sentences`` and its broker is killed twice. Then a driver runs both
queries and dies right after an EndTxn; its successor recognises the committed batch, and dies between two tasks; the
last one aborts what that left open, and ends. Every successor is warm before its predecessor dies.
"""

from __future__ import annotations

import queue
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, Protocol

from einmal.client import Admin, Consumer, KafkaError, NewTopic, Producer
from einmal.demo.pipeline_names import AFTER_END_TXN, BETWEEN_TASKS, CONTROL, EXACTLY_ONCE
from einmal.demo.processes import Broker, Driver, ProcessFailed
from einmal.demo.report import Report
from einmal.demo.text import count_words
from einmal.demo.timeline import Moment, Timeline
from einmal.demo.verdict import Comparison, compare, verdict
from einmal.types import TopicPartition

SENTENCES: Final = "sentences"
PARTITIONS: Final = 4
BROKER_KILLS: Final = 2
DRIVER_KILLS: Final = ((AFTER_END_TXN, 2), (BETWEEN_TASKS, 4))
BATCHES: Final = 6
_KILL_POINT_SECONDS_MAX: Final = 20.0
_FENCED: Final = "the killed driver is fenced, what it left open is aborted"


class Stage(Protocol):
    """Where progress is shown. ``total`` None: no end is known."""

    def begin(self, name: str, text: str, total: int | None) -> None: ...

    def advance(self, name: str, done: int, text: str | None = None) -> None: ...


class Demo:
    def __init__(self, folder: Path, source: str, lines: Sequence[str], stage: Stage) -> None:
        self._folder = folder
        self._source = source
        self._lines = lines
        self._stage = stage
        self._started = time.monotonic()
        self._timeline = Timeline()
        self._broker = Broker(folder / "data", folder / "broker.log")
        self._drivers: list[Driver] = []
        self._acknowledged = 0
        self._kills = 0
        self._replayed = 0
        self._committed: Counter[str] = Counter()

    def run(self) -> tuple[Report, Timeline]:
        """Raises ProcessFailed or KafkaError when the demo itself cannot go on."""
        self._prepare_folder()
        try:
            self._broker.start()
            self._say("broker ready")
            self._create_topics()
            with self._drivers_warming(1 + len(DRIVER_KILLS)):
                expected = count_words(self._lines)
                words = sum(expected.values())
                with self._watching(words):
                    self._load()
                    self._count()
            return self._compare(expected), self._timeline
        finally:
            for driver in self._drivers:
                driver.kill()
            self._broker.stop()

    def _prepare_folder(self) -> None:
        for name in ("data", "checkpoints"):
            shutil.rmtree(self._folder / name, ignore_errors=True)
        self._folder.mkdir(parents=True, exist_ok=True)
        for name in ("broker.log", "driver.log"):
            (self._folder / name).unlink(missing_ok=True)

    def _create_topics(self) -> None:
        with Admin({"bootstrap.servers": self._broker.bootstrap_servers}) as admin:
            admin.create_topics([NewTopic(name, PARTITIONS) for name in (SENTENCES, EXACTLY_ONCE, CONTROL)])

    # --- loading --------------------------------------------------------------------------------------------

    def _load(self) -> None:
        """Load every line under its number, while the broker is killed and started again."""
        lines = self._lines
        self._stage.begin("load", "loading sentences", len(lines))
        kill_at = [len(lines) * (n + 1) // (BROKER_KILLS + 1) for n in range(BROKER_KILLS)]
        done = threading.Event()
        killer = threading.Thread(target=self._kill_broker_at, args=(kill_at, done), daemon=True)
        killer.start()
        with Producer({"bootstrap.servers": self._broker.bootstrap_servers, "enable.idempotence": True}) as producer:
            futures = []
            for number, line in enumerate(lines):
                futures.append(producer.send(SENTENCES, line.encode(), key=str(number).encode()))
                if len(futures) == 2_000:
                    self._await(futures)
            self._await(futures)
        done.set()
        killer.join()
        self._say("sentences loaded")

    def _await(self, futures: list[Any]) -> None:
        for future in futures:
            future.result()
        self._acknowledged += len(futures)
        futures.clear()
        self._stage.advance("load", self._acknowledged)

    def _kill_broker_at(self, kill_at: list[int], done: threading.Event) -> None:
        for count in kill_at:
            while self._acknowledged < count and not done.wait(0.002):
                pass
            self._broker.kill()
            self._killed(f"broker killed (SIGKILL) after {self._acknowledged:,} acknowledged sentences")
            self._stage.advance(
                "load", self._acknowledged, "loading sentences: the broker was killed, and starts again"
            )
            self._broker.start()
            self._say("broker started again")
            self._stage.advance("load", self._acknowledged, "loading sentences")

    # --- counting -------------------------------------------------------------------------------------------

    @contextmanager
    def _drivers_warming(self, count: int) -> Iterator[None]:
        """Start drivers one after another in the background: each costs seconds of both cores."""
        self._warm: queue.SimpleQueue[Driver | ProcessFailed] = queue.SimpleQueue()

        def warm() -> None:
            for _ in range(count):
                driver = Driver(self._folder / "driver.log")
                self._drivers.append(driver)
                try:
                    driver.wait_until_warm()
                except ProcessFailed as error:
                    self._warm.put(error)
                    return
                self._warm.put(driver)

        thread = threading.Thread(target=warm, daemon=True)
        thread.start()
        yield

    def _next_driver(self) -> Driver:
        driver = self._warm.get(timeout=300)
        if isinstance(driver, ProcessFailed):
            raise driver
        return driver

    def _count(self) -> None:
        self._stage.begin("count", "waiting for Spark to start", BATCHES)
        for kill_at, batch_id in (*DRIVER_KILLS, ("", 0)):
            driver = self._next_driver()
            self._say("Spark driver takes over")
            driver.obey(
                {
                    "bootstrap_servers": self._broker.bootstrap_servers,
                    "checkpoints": str(self._folder / "checkpoints"),
                    "lines_per_batch": -(-len(self._lines) // BATCHES),
                    "kill_at": kill_at,
                    "kill_batch_id": batch_id,
                }
            )
            if kill_at:
                self._follow_to_kill_point(driver, kill_at)
            else:
                self._follow(driver, lambda event: event["event"] == "Finished")
                driver.stop()
        self._say("all batches are in")

    def _follow_to_kill_point(self, driver: Driver, kill_at: str) -> None:
        """Kill when both queries stand still (the control may have ended before)."""
        standing: dict[str, int] = {}

        def is_there(event: dict[str, Any]) -> bool:
            if event["event"] == "AtKillPoint":
                standing[event["query"]] = event["batch_id"]
            return len(standing) == 2

        self._follow(driver, lambda event: is_there(event) or EXACTLY_ONCE in standing)
        if len(standing) < 2:
            with suppress(queue.Empty):
                self._follow(driver, is_there, _KILL_POINT_SECONDS_MAX)
        driver.kill()
        self._killed(f"Spark driver killed (SIGKILL) {kill_at} of batch {standing[EXACTLY_ONCE]}")
        self._stage.advance("count", self._committed[EXACTLY_ONCE], "counting words: the driver was killed")

    def _follow(self, driver: Driver, until: Callable[[dict[str, Any]], bool], timeout: float = 120.0) -> None:
        while not until(event := driver.next_event(timeout)):
            self._note(event)

    def _note(self, event: dict[str, Any]) -> None:
        if event.get("query") != EXACTLY_ONCE:
            return
        batch_id = event.get("batch_id")
        match event["event"]:
            case "NameTaken" if self._drivers and self._kills > BROKER_KILLS:
                self._mark("fence", f"the successor took the transactional.id (epoch {event['epoch']}): {_FENCED}")
            case "BatchAlreadyIn":
                self._replayed += 1
                self._mark("already-in", f"batch {batch_id} was committed by the killed driver: not written again")
            case "TransactionEnded" if event["committed"]:
                self._committed[EXACTLY_ONCE] = int(event["batch_id"])
                self._stage.advance("count", int(event["batch_id"]), f"counting words: batch {batch_id} is committed")
            case "TransactionEnded":
                self._mark("abort", f"an attempt of batch {batch_id} was aborted")
            case "BatchStarted":
                self._stage.advance("count", self._committed[EXACTLY_ONCE], f"counting words: batch {batch_id}")
            case _:
                pass

    # --- comparing ------------------------------------------------------------------------------------------

    def _compare(self, expected: Counter[str]) -> Report:
        self._stage.begin("compare", "comparing, word by word", 3)
        keys = Counter(key for key, _value in self._read(SENTENCES))
        loaded = compare({str(number): 1 for number in range(len(self._lines))}, keys)
        self._stage.advance("compare", 1)
        counted, visible = self._compare_counts(EXACTLY_ONCE, expected)
        self._stage.advance("compare", 2)
        control, _visible = self._compare_counts(CONTROL, expected)
        written = sum(1 for _record in self._read(EXACTLY_ONCE, "read_uncommitted"))
        self._stage.advance("compare", 3)
        return Report(
            source=self._source,
            input_records=len(self._lines),
            input_words=sum(expected.values()),
            loaded=loaded,
            counted=counted,
            control=control,
            kills=self._kills,
            replayed_batches=self._replayed,
            aborted_records=written - visible,
            seconds=self._now(),
            verdict=verdict(loaded, counted, control, self._kills, BROKER_KILLS + len(DRIVER_KILLS)),
        )

    def _compare_counts(self, topic: str, expected: Counter[str]) -> tuple[Comparison, int]:
        seen: Counter[str] = Counter()
        records = 0
        for word, count in self._read(topic):
            seen[word] += int(count)
            records += 1
        return compare(expected, seen), records

    def _read(self, topic: str, isolation: str = "read_committed") -> Iterator[tuple[str, bytes]]:
        """Key and value of every record up to the end."""
        partitions = [TopicPartition(topic, partition) for partition in range(PARTITIONS)]
        with Consumer({"bootstrap.servers": self._broker.bootstrap_servers, "isolation.level": isolation}) as consumer:
            consumer.assign(partitions)
            consumer.seek_to_beginning(*partitions)
            ends = consumer.end_offsets(*partitions)
            while any(consumer.position(partition) < ends[partition] for partition in partitions):
                for record in consumer.poll(1_000):
                    assert record.key is not None and record.value is not None
                    yield record.key.decode(), record.value

    # --- what is seen on the way ----------------------------------------------------------------------------

    @contextmanager
    def _watching(self, words: int) -> Iterator[None]:
        """Sample what a read_committed reader could see, until the block ends."""
        done = threading.Event()
        thread = threading.Thread(target=self._sample, args=(words, done), daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()

    def _sample(self, words: int, done: threading.Event) -> None:
        readers: dict[str, Consumer] = {}
        totals: Counter[str] = Counter()
        names = {EXACTLY_ONCE: "words counted, exactly once", CONTROL: "words counted, at least once"}
        while not done.wait(0.2):
            self._timeline.series["sentences acknowledged"].append((self._now(), self._acknowledged / len(self._lines)))
            for topic, name in names.items():
                try:
                    reader = readers.get(topic) or self._reader(topic)
                    readers[topic] = reader
                    totals[topic] += sum(int(record.value or 0) for record in reader.poll(0))
                except KafkaError:
                    continue
                self._timeline.series[name].append((self._now(), totals[topic] / words))
        for reader in readers.values():
            reader.close()

    def _reader(self, topic: str) -> Consumer:
        reader = Consumer({"bootstrap.servers": self._broker.bootstrap_servers, "isolation.level": "read_committed"})
        partitions = [TopicPartition(topic, partition) for partition in range(PARTITIONS)]
        reader.assign(partitions)
        reader.seek_to_beginning(*partitions)
        return reader

    def _now(self) -> float:
        return time.monotonic() - self._started

    def _killed(self, text: str) -> None:
        self._kills += 1
        self._mark("kill", text)

    def _say(self, text: str) -> None:
        self._mark("step", text)

    def _mark(self, kind: str, text: str) -> None:
        self._timeline.moments.append(Moment(self._now(), kind, text))
