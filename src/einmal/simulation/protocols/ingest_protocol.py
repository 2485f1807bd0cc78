"""An ingester, simulated: the real machine between a model of a source and a model of Kafka.

A schedule is a seed. The ingester dies before and after any effect, restarts in its process or in another one,
continues as a zombie beside its successor; answers are lost, requests are late, the source fails in the middle of a
batch, returns other batches each time, forgets what was confirmed, and is another one for a while. In every other
schedule it also repeats records itself, within the window in which they are removed and beyond it. At the end, what a
``read_committed`` reader sees must be the source's records, each once and in order; and at no time may a position be
confirmed that is not committed.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Generator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from einmal.commit_protocol import effects as protocol
from einmal.commit_protocol.claims import Output
from einmal.commit_protocol.run_state import Held
from einmal.ingest import effects
from einmal.ingest.deduplication.business_key import Deduplicate
from einmal.ingest.deduplication.key_window import Keys, KeyWindow, record_key, remember
from einmal.ingest.deduplication.recorded import RecordedWindow, decode_window
from einmal.ingest.effects import IngestEffect, IngestEvent
from einmal.ingest.machine import IngestMachine
from einmal.ingest.source import IngestRecord
from einmal.simulation.protocols.kafka_model import KafkaModel, ModelRecord
from einmal.simulation.protocols.model_requests import RECORDS, ModelRequests, Request
from einmal.simulation.protocols.spark_model import ModelWorld, Steps
from einmal.simulation.result import Result
from einmal.types import ErrorCode, Offset, TransactionVersion
from einmal.wire.record_batch import Record

STEPS_MAX: Final = 60_000
PARTITIONS: Final = ("out-0", "out-1")
_NAME: Final = "numbers"
_FAULTS_MAX: Final = 16
_RUNS_MAX: Final = 3
"""Maximum number of runs of the machine in one process."""
_END: Final = 40
"""Records of the source: the numbers below this."""
_OTHER: Final = 1_000
"""The records of another source begin here."""
_WINDOW_MS: Final = 8
"""Window of the deduplication: record number n has the timestamp n."""


class IngestCrash(Exception):
    """The ingester's process has died, or has ended."""


@dataclass(slots=True)
class NumbersModel:
    """The source. ``written``: records that exist; ``released``: those below were confirmed, and are gone."""

    written: int = 0
    released: int = 0
    is_other: bool = False
    """Another source has its address."""
    events: tuple[int, ...] = ()
    """Event that each record is about, where the source repeats itself; else empty."""

    @property
    def origin(self) -> str:
        return "other" if self.is_other else "numbers"

    def record(self, number: int) -> IngestRecord:
        """With its number as value and timestamp, and its event as key."""
        event = self.events[number] if self.events else number
        return IngestRecord("out", b"%d" % number, b"%d" % event, timestamp=number)

    def wanted(self) -> list[int]:
        """The records that readers must find: those that are not within a window of a written one with their event."""
        last: dict[int, int] = {}
        numbers = []
        for number in range(_END):
            event = self.events[number] if self.events else number
            if event not in last or number - last[event] > _WINDOW_MS:
                last[event] = number
                numbers.append(number)
        return numbers


@dataclass(slots=True)
class Ingestion:
    """The ingester under test, over all its processes."""

    world: ModelWorld
    source: NumbersModel
    incarnations: int = 0
    finished: bool = False
    anomalies: list[str] = field(default_factory=list)
    stops: list[str] = field(default_factory=list)

    def committed_position(self) -> int:
        """Up to which the coordinator has decided that the records are committed."""
        kafka = self.world.kafka
        ends = [
            e.value.end for e in kafka.log(RECORDS).entries if e.value is not None and kafka.decided.get(e.transaction)
        ]
        return int(ends[-1][0]["position"]["next"]) if ends else 0


class SimulatedIngest:
    """One process."""

    def __init__(self, ingestion: Ingestion) -> None:
        self._ingestion = ingestion
        self._world = ingestion.world
        self._source = ingestion.source
        self._requests = ModelRequests(ingestion.world, lambda: None)
        self._next = 0
        self._origin = ""
        self._batch = range(0)
        self._idle_rounds = 0
        self.window = KeyWindow(Deduplicate("key", _WINDOW_MS)) if self._source.events else None

    def run(self) -> Steps:
        held: Held | None = None
        incarnation = self._ingestion.incarnations
        for number in range(_RUNS_MAX):
            machine = IngestMachine(_NAME, f"{incarnation}.{number}", held)
            yield from self._converse(machine)
            held = machine.held
            yield

    def _converse(self, machine: IngestMachine) -> Steps:
        effect = machine.start()
        while True:
            yield
            if isinstance(effect, effects.IngestStops):
                self._ingestion.stops.append(effect.reason)
                if effect.may_restart:
                    return
                raise IngestCrash(effect.reason)
            self._die_at_times()
            event = yield from self._perform(effect)
            self._die_at_times()
            if isinstance(effect, protocol.EndTxn) and effect.committed and isinstance(event, protocol.Ended):
                self.committed()
            effect = machine.step(event)

    def _die_at_times(self) -> None:
        if self._world.fault(0.02):
            raise IngestCrash("killed")

    def _perform(self, effect: IngestEffect) -> Generator[None, None, IngestEvent]:
        if isinstance(effect, Request):
            return (yield from self._requests.perform(effect))
        match effect:
            case effects.AppendRecords():
                return (yield from self._append(effect))
            case effects.RestoreKeys(recorded):
                yield
                self.restore(recorded)
                return effects.SourceReady()
            case effects.Idle():
                return (yield from self._idle())
            case _:
                return (yield from self._ask_source(effect))

    # --- the source -------------------------------------------------------------------------------------------------

    def _ask_source(self, effect: IngestEffect) -> Generator[None, None, IngestEvent]:
        yield
        if self._world.fault(0.02):
            return effects.SourceDown("no answer", "")
        if isinstance(effect, effects.AskOrigin):
            self._origin = self._source.origin
            return effects.OriginKnown(self._origin)
        if self._origin != self._source.origin:
            return effects.SourceDown("another source", "")
        match effect:
            case effects.OpenSource(position):
                return self._open(0 if position is None else int(position["next"]))
            case effects.NextPart():
                return self._cut()
            case effects.ConfirmPosition(position):
                self.confirm(int(position["next"]))
                return effects.SourceReady()
            case _:
                raise AssertionError(effect)

    def _open(self, position: int) -> IngestEvent:
        if position < self._source.released:
            self._ingestion.anomalies.append(f"lost: read from {position}, but {self._source.released} was confirmed")
        self._next = position
        return effects.SourceReady()

    def _cut(self) -> IngestEvent:
        end = min(self._source.written, self._next + self._world.rng.randint(1, 5))
        if end <= self._next:
            return effects.NothingNew()
        self._batch, self._next = range(self._next, end), end
        return effects.BatchFound({"next": end})

    def confirm(self, position: int) -> None:
        if position > self._ingestion.committed_position():
            self._ingestion.anomalies.append(f"confirmed: {position} is not committed")
        # An older process may confirm late.
        self._source.released = max(self._source.released, position)

    # --- the target -------------------------------------------------------------------------------------------------

    def _append(self, effect: effects.AppendRecords) -> Generator[None, None, IngestEvent]:
        begin = _OTHER if self._source.is_other else 0
        deduplicated = None if self.window is None else self.window.batch(_END)
        records = map(self._source.record, self._batch)
        numbers = [int(record.value or b"") for record in (deduplicated.written(records) if deduplicated else records)]
        outputs = []
        for index, partition in enumerate(PARTITIONS):
            values = [begin + number for number in numbers if number % len(PARTITIONS) == index]
            sequence, offsets = 0, list[int]()
            while sequence < len(values):
                if self._world.fault(0.02) or self._origin != self._source.origin:
                    return effects.SourceDown("the connection broke", "")
                chunk = tuple(values[sequence : sequence + self._world.rng.randint(1, 3)])
                answer = yield from self._requests.produce(effect.identity, partition, sequence, chunk)
                if isinstance(answer, ErrorCode):
                    return protocol.Failed(answer.name)
                offsets += answer
                sequence += len(chunk)
            if values:
                outputs.append(Output("out", index, offsets[0], offsets[-1], len(values)))
        # These are the records that a second attempt would get.
        self._batch = range(self._batch.start, self._world.rng.randint(self._batch.start, self._source.written))
        if self.window is None or deduplicated is None:
            return effects.RecordsAppended(tuple(outputs))
        staged = self.window.stage(deduplicated, outputs, effect.identity.producer_id)
        return effects.RecordsAppended(tuple(outputs), staged.recorded.encode())

    # --- duplicates of the source -----------------------------------------------------------------------------------

    def committed(self) -> None:
        if self.window is not None:
            self.window.committed()

    def restore(self, recorded: Any) -> None:
        if self.window is not None:
            recorded_window = RecordedWindow(_WINDOW_MS) if recorded is None else decode_window(recorded)
            self.window.restore(recorded_window, partial(self.written_keys, self.window))

    def written_keys(self, window: KeyWindow, recorded: RecordedWindow) -> dict[int, Keys]:
        """Return the keys of the committed records that were recorded."""
        kafka = self._world.kafka
        keys: dict[int, Keys] = {span.number: {} for span in recorded.spans}
        for partition, start in recorded.start().items():
            entries = kafka.log(f"{partition.topic}-{partition.partition}").entries
            for offset in range(start, recorded.reached[partition]):
                entry = entries[offset]
                if self.is_committed(entry):
                    written = self._source.record(entry.value)
                    record = Record(Offset(offset), written.timestamp or 0, written.key, written.value, ())
                    key = record_key(window, "out", record)
                    if key is not None:
                        remember(keys[recorded.span_of(partition, offset)], *key)
        return keys

    def is_committed(self, entry: ModelRecord) -> bool:
        return self._world.kafka.decided.get(entry.transaction, False)

    def _idle(self) -> Generator[None, None, IngestEvent]:
        """The ingester is finished when it has found nothing more in a source that has everything."""
        self._idle_rounds = self._idle_rounds + 1 if self._source.written == _END else 0
        if self._idle_rounds > 2:
            self._ingestion.finished = True
        for _ in range(self._world.rng.choice((1, 10, 50))):
            yield
        return effects.Resumed()


def run_seed(seed: int) -> Result:
    """One schedule, decided by ``seed`` alone."""
    rng = random.Random(seed)
    world = ModelWorld(rng, KafkaModel(rng.choice((TransactionVersion.TV_1, TransactionVersion.TV_2))))
    world.faults_left = rng.randrange(_FAULTS_MAX)
    ingestion = Ingestion(world, NumbersModel(written=rng.randrange(10), events=_events(rng) if seed % 2 else ()))
    trace = hashlib.sha256()
    processes: list[Steps] = []
    steps = 0
    while not ingestion.finished and not ingestion.anomalies and steps < STEPS_MAX:
        steps += 1
        if not processes or (len(processes) == 1 and world.fault(0.001)):
            ingestion.incarnations += 1
            processes.append(SimulatedIngest(ingestion).run())
        choice = rng.randrange(len(processes) + len(world.running) + 1)
        if choice < len(processes):
            _advance(processes, choice)
        elif choice < len(processes) + len(world.running):
            _advance(world.running, choice - len(processes))
        else:
            world.kafka.write_one_marker(rng.randrange(8))
            _disturb(ingestion)
        trace.update(f"{choice},{world.kafka.high_watermark(RECORDS)};".encode())
    anomalies = ingestion.anomalies
    if not anomalies and not ingestion.finished:
        anomalies.append(f"liveness: not finished after {steps} steps; last stops {ingestion.stops[-2:]}")
    elif not anomalies:
        anomalies += check(world.kafka, ingestion.source.wanted())
    return Result(seed, tuple(anomalies), steps / 1000, trace.hexdigest())


def _events(rng: random.Random) -> tuple[int, ...]:
    """Every third record or so repeats an event, sooner or later."""
    events: list[int] = []
    for number in range(_END):
        is_repeated = number and rng.random() < 0.3
        events.append(events[max(0, number - rng.randint(1, 3 * _WINDOW_MS))] if is_repeated else number)
    return tuple(events)


def _disturb(ingestion: Ingestion) -> None:
    """The source grows, or is another one for a while; the coordinator and the leader of the records change."""
    world, source = ingestion.world, ingestion.source
    source.written = min(_END, source.written + (world.rng.random() < 0.1))
    # Without a position every source is the right one.
    if source.is_other:
        source.is_other = world.rng.random() < 0.98
    elif ingestion.committed_position() and world.fault(0.002):
        source.is_other = True
    if world.fault(0.002):
        world.kafka.time_out()
    if world.fault(0.002):
        world.kafka.depose(RECORDS)
    if world.fault(0.001):
        world.kafka.expire()


def _advance(processes: list[Steps], index: int) -> None:
    """One step of one process, which is removed when it has ended."""
    try:
        next(processes[index])
    except (StopIteration, IngestCrash):
        del processes[index]


def check(kafka: KafkaModel, records: list[int]) -> list[str]:
    """Compare what is committed with the records of the source that are to be written, by partition."""
    anomalies = []
    for index, partition in enumerate(PARTITIONS):
        values = [entry.value for entry in kafka.log(partition).entries if kafka.decided.get(entry.transaction)]
        wanted = [record for record in records if record % len(PARTITIONS) == index]
        anomalies += [f"lost: {record}" for record in wanted if record not in values]
        anomalies += [f"duplicated: {value}" for value in sorted(set(values)) if values.count(value) > 1]
        anomalies += [f"not to be written: {value}" for value in sorted(set(values) - set(wanted))]
        if not anomalies and values != wanted:
            anomalies.append(f"order: {partition} has {values}")
    return anomalies
