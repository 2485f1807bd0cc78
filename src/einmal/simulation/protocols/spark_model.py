"""As much of Spark as the commit protocol can see: a checkpoint, and jobs whose tasks are tried more than once.

Everything that runs is a generator; at every ``yield`` anything else may happen first, or the process may die.
Attempts of tasks crash, are declared lost and continue as zombies, run twice by speculation, and again after they had
succeeded (a stage retry, which starts attempt numbers at 0 again). Each task either has the target partitions that are
its own, or writes to all of them, in turn with the others.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Generator
from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from einmal.commit_protocol.claims import Claims, Denied, Granted, Output, Task
from einmal.simulation.protocols.kafka_model import KafkaModel
from einmal.types import ErrorCode, ProducerIdAndEpoch, TopicPartition, TransactionVersion

Steps = Generator[None, None, None]

TARGETS: Final = ("out-0", "out-1", "out-2")
TASK_COUNT: Final = 2
TASK_FAILURES_MAX: Final = 3
_WAITS_MAX: Final = 60
"""Steps that a task waits for a partition that another one writes."""
_RETRIABLE: Final = (ErrorCode.concurrent_transactions,)


@dataclass(frozen=True, slots=True, order=True)
class Row:
    """One input record's effect. ``attempt``: the result of a non-deterministic function."""

    offset: int
    attempt: int


@dataclass(slots=True)
class ModelCheckpoint:
    """Spark's folder of one query. ``commits`` names the state that a batch left (the query may keep none); ``states``:
    the existing state files, by batch; ``runs``: the drivers that have recorded themselves."""

    query_id: str
    location: str = "cp"
    offsets: dict[int, int] = field(default_factory=dict)
    commits: dict[int, str] = field(default_factory=dict)
    states: dict[int, list[str]] = field(default_factory=dict)
    runs: list[str] = field(default_factory=list)

    def copy(self, location: str) -> ModelCheckpoint:
        copied = deepcopy(self)
        copied.location = location
        return copied

    @property
    def next_batch_id(self) -> int:
        last = max(self.offsets, default=-1)
        return last if last >= 0 and last not in self.commits else last + 1


class ModelWorld:
    """Shared by all processes: the cluster, the processes themselves, and the seed. ``is_shared``: tasks write to the
    same partitions."""

    def __init__(self, rng: random.Random, kafka: KafkaModel, *, is_shared: bool = False) -> None:
        self.rng = rng
        self.kafka = kafka
        self.is_shared = is_shared
        self.running: list[Steps] = []
        self.faults_left = rng.randrange(0, 12)
        self._attempts = 0

    def fault(self, probability: float) -> bool:
        """Whether to inject a fault now. Faults end, so that every schedule can finish."""
        if self.faults_left and self.rng.random() < probability:
            self.faults_left -= 1
            return True
        return False

    def next_attempt(self) -> int:
        self._attempts += 1
        return self._attempts

    def task_of(self, offset: int) -> int:
        """The task that writes an input offset."""
        return (offset if self.is_shared else offset % len(TARGETS)) % TASK_COUNT


class TaskFailed(Exception):
    """The attempt ended with an error that Spark sees."""


@dataclass(slots=True)
class ModelJob:
    """The write job of one transaction. ``result`` is set when Spark has one; ``failure`` when it gives up."""

    world: ModelWorld
    claims: Claims
    token: str
    identity: ProducerIdAndEpoch
    rows: range
    result: list[Output] | None = None
    failure: str = ""
    state_ids: dict[int, list[int]] = field(default_factory=dict)
    """Per task: the attempts whose state was committed, in order. Spark keeps the first."""
    _outputs: dict[int, list[Output]] = field(default_factory=dict)
    _failures: dict[int, int] = field(default_factory=dict)

    def start(self) -> None:
        for task in range(TASK_COUNT):
            self._launch(task)

    def _launch(self, task: int) -> None:
        self.world.running.append(self._attempt(task, self.world.next_attempt()))

    def _attempt(self, task: int, attempt_id: int) -> Steps:
        """One attempt of one task, and Spark's reaction to its end."""
        world = self.world
        yield
        if world.fault(0.05):
            self._launch(task)
        is_zombie = False
        outputs: list[Output] = []
        steps = self._write(task, attempt_id, outputs)
        while True:
            try:
                next(steps)
            except StopIteration:
                break
            except TaskFailed as error:
                if not is_zombie:
                    self._failed(task, str(error))
                return
            if not is_zombie and world.fault(0.02):
                self._failed(task, "lost")
                if world.rng.random() < 0.5:
                    return
                is_zombie = True
            yield
        if not is_zombie:
            self._succeeded(task, attempt_id, outputs)

    def _failed(self, task: int, reason: str) -> None:
        if task in self._outputs:
            return
        self._failures[task] = self._failures.get(task, 0) + 1
        if self._failures[task] >= TASK_FAILURES_MAX:
            self.failure = self.failure or reason
        elif not self.failure:
            self._launch(task)

    def _succeeded(self, task: int, attempt_id: int, outputs: list[Output]) -> None:
        self.state_ids.setdefault(task, []).append(attempt_id)
        if self.result is not None or self.failure:
            return
        if task not in self._outputs and self.world.fault(0.05):
            self._launch(task)  # The stage is run again: this result is forgotten.
            return
        self._outputs.setdefault(task, outputs)
        if len(self._outputs) == TASK_COUNT:
            self.result = [output for item in self._outputs.values() for output in item]

    def _write(self, task: int, attempt_id: int, outputs: list[Output]) -> Steps:
        """Our writer in a task: claim, produce, report, for each target that the task has rows for."""
        rows = [Row(offset, attempt_id) for offset in self.rows if self.world.task_of(offset) == task]
        if not rows:
            return
        if not self.world.is_shared:
            yield from self._write_piece(task, attempt_id, rows, outputs)
            return
        for piece in _chunks(rows, self.world.rng.randint(1, 2)):
            yield from self._write_piece(task, attempt_id, piece, outputs)

    def _write_piece(self, task: int, attempt_id: int, rows: list[Row], outputs: list[Output]) -> Steps:
        """To each target in turn, the first that is free first."""
        waiting = [index for index in range(len(TARGETS)) if any(row.offset % len(TARGETS) == index for row in rows)]
        if self.world.is_shared and task:
            waiting.reverse()
        while waiting:
            index, granted = yield from self._claim(task, attempt_id, waiting)
            waiting.remove(index)
            mine = [row for row in rows if row.offset % len(TARGETS) == index]
            output = yield from self._write_to(index, granted.sequence, mine)
            yield from self._ask(partial(self.claims.report, self.token, attempt_id, output))
            outputs.append(output)

    def _claim(self, task: int, attempt_id: int, waiting: list[int]) -> Generator[None, None, tuple[int, Granted]]:
        """One of the targets that are free; waits a while for it."""
        for _ in range(_WAITS_MAX):
            for index in waiting:
                target = TopicPartition("out", index)
                answer = yield from self._ask(
                    partial(self.claims.claim, self.token, Task(0, task), attempt_id, target), TARGETS[index]
                )
                if isinstance(answer, Granted):
                    return index, answer
                assert isinstance(answer, Denied)
                if answer.by is None or not self.claims.has_claims(answer.by):
                    raise TaskFailed(answer.reason)
        raise TaskFailed("another task does not report")

    def _write_to(self, index: int, sequence: int, rows: list[Row]) -> Generator[None, None, Output]:
        first = last = -1
        for chunk in _chunks(rows, self.world.rng.randint(1, 3)):
            base, last = yield from self._produce(TARGETS[index], sequence, tuple(chunk))
            first = base if first < 0 else first
            sequence += len(chunk)
        crc = zlib.crc32(repr([row.offset for row in rows]).encode())
        return Output("out", index, first, last, len(rows), crc)

    def _ask(self, call: Callable[[], object], target: str | None = None) -> Generator[None, None, object]:
        """A request to the driver's claim server; retried when its answer is lost."""
        while True:
            yield
            answer = call()
            if isinstance(answer, Denied):
                if target is not None:
                    return answer
                raise TaskFailed(answer.reason)
            reason = ""
            if isinstance(answer, Granted) and target is not None:
                reason = yield from self._add(answer, target)
            yield
            if self.world.fault(0.03):
                continue
            if reason:
                raise TaskFailed(reason)
            return answer

    def _add(self, granted: Granted, target: str) -> Generator[None, None, str]:
        """The driver adds a new partition before it answers; why it could not."""
        kafka = self.world.kafka
        if not granted.add or kafka.version is TransactionVersion.TV_2:
            return ""
        reason = "not reached" if self.world.fault(0.03) else ""
        if not reason:
            while (error := kafka.add_partition(self.identity, target)) in _RETRIABLE:
                yield
            reason = error.name if error else "no answer" if self.world.fault(0.03) else ""
        if reason:
            self.claims.fail(reason)
        return reason

    def _produce(self, target: str, sequence: int, values: tuple[Row, ...]) -> Generator[None, None, tuple[int, int]]:
        """One batch; the identical batch again when the answer is lost or the error is retriable."""
        world = self.world
        while True:
            yield
            if world.fault(0.03):
                world.running.append(self._late_produce(target, sequence, values))
                if world.rng.random() < 0.5:
                    continue  # The connection broke: the first request may still arrive.
            answer = world.kafka.produce(self.identity, target, sequence, values)
            yield
            if isinstance(answer, tuple):
                if not world.fault(0.03):
                    return answer
            elif answer not in _RETRIABLE:
                raise TaskFailed(answer.name)

    def _late_produce(self, target: str, sequence: int, values: tuple[Row, ...]) -> Steps:
        for _ in range(self.world.rng.choice((1, 10, 200))):
            yield
        self.world.kafka.produce(self.identity, target, sequence, values)


def _chunks(rows: list[Row], count: int) -> list[list[Row]]:
    size = -(-len(rows) // count)
    return [rows[start : start + size] for start in range(0, len(rows), size)]
