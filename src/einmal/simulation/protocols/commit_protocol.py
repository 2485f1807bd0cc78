"""The pipeline's commit protocol, simulated: the real ``Committer`` and ``Claims`` between models of Kafka and Spark.

A schedule is a seed. Drivers die between any two steps, continue as zombies beside their successor, lose their
checkpoint; answers are lost and requests are late; markers are delayed; another pipeline holds the last stable offset
back; the leader of the commit records is replaced, and keeps sending stale answers. Checkpoints are copied, and the
copy is run beside its original, adopted or not; queries restart in their process; the transactional id expires.
At the end, when the faults are over and a driver has reached the end of the input, what a ``read_committed`` reader
sees must be f(input): every input offset once, each batch's part of a partition from one attempt, and for a stateful
query the state that Spark keeps is the state that the committed output was made with. No driver acquires the name again
that a newer one has acquired since.
"""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from collections.abc import Generator
from dataclasses import dataclass, field
from itertools import product
from typing import Final

from einmal.commit_protocol import effects as protocol
from einmal.commit_protocol.batch_plan import Batch
from einmal.commit_protocol.claims import Claims, Denied
from einmal.commit_protocol.commit_record import CommitRecord
from einmal.commit_protocol.committer import Committer
from einmal.commit_protocol.run_state import Held, Query
from einmal.simulation.protocols.kafka_model import KafkaModel
from einmal.simulation.protocols.model_requests import RECORDS, ModelRequests, Request
from einmal.simulation.protocols.spark_model import (
    TARGETS,
    TASK_COUNT,
    ModelCheckpoint,
    ModelJob,
    ModelWorld,
    Row,
    Steps,
)
from einmal.simulation.result import Result
from einmal.types import ProducerIdAndEpoch, TransactionVersion

INPUT_END: Final = 24
STEPS_MAX: Final = 60_000
RUNS_MAX: Final = 3
"""Maximum number of runs of a query in one process."""
_TERMINAL: Final = (protocol.Ready, protocol.Refused, protocol.RestartQuery, protocol.Dead)


class RestartedInPlace(Exception):
    """The query has ended, and its process starts it again."""


class DriverCrash(Exception):
    """The driver's process has died, or its query has ended with an error."""


@dataclass(slots=True)
class Pipeline:
    """The query under test, over all its drivers."""

    world: ModelWorld
    stateful: bool
    checkpoint: ModelCheckpoint
    latest: int
    finished: bool = False
    incarnations: int = 0
    refusals: list[str] | None = None
    copies: dict[str, ModelCheckpoint] = field(default_factory=dict)
    """By location."""
    owner: int = 0
    """The incarnation that acquired the name last."""
    anomalies: list[str] = field(default_factory=list)

    def follow_the_record(self) -> None:
        """The operator's reaction to a refusal: run the checkpoint that the commit record names."""
        records = self.world.kafka.committed(RECORDS)
        if records and records[-1].checkpoint in self.copies:
            self.checkpoint = self.copies[records[-1].checkpoint]


class SimulatedDriver:
    """One process: Spark's micro-batch loop around our sink."""

    def __init__(self, pipeline: Pipeline, checkpoint: ModelCheckpoint, *, adopt: bool = False) -> None:
        self._pipeline = pipeline
        self._world = pipeline.world
        self._checkpoint = checkpoint
        self._adopt = adopt
        self._incarnation = pipeline.incarnations
        self._has_started = self._is_restarted = False
        self._requests = ModelRequests(pipeline.world, self._acquired)
        self._run = ""
        self._state = ""

    def run(self) -> Steps:
        held: Held | None = None
        for number in range(RUNS_MAX):
            self._run = f"{self._incarnation}.{number}"
            committer = self._new_committer(held)
            try:
                yield from self._run_query(committer)
                return
            except RestartedInPlace:
                held = committer.held
                self._is_restarted = True
                yield

    def _new_committer(self, held: Held | None) -> Committer:
        checkpoint = self._checkpoint
        query = Query(
            transactional_id="pipeline",
            query_id=checkpoint.query_id,
            checkpoint=checkpoint.location,
            is_fresh=not checkpoint.offsets,
            stateful=self._pipeline.stateful,
            next_batch_id=checkpoint.next_batch_id,
            adopt=self._adopt,
        )
        return Committer(query, held)

    def _run_query(self, committer: Committer) -> Steps:
        checkpoint = self._checkpoint
        self._check((yield from self._converse(committer, committer.start())))
        self._has_started = True
        checkpoint.runs.append(self._run)
        resume = committer.resume_from()
        if resume is not None:
            # As our sink does: Spark begins with batch 1 where the committed output ends.
            checkpoint.offsets[0] = int(resume[0])
            checkpoint.commits[0] = ""
        while True:
            batch = yield from self._next_batch()
            if batch is None:
                self._pipeline.finished, self._pipeline.checkpoint = True, checkpoint
                return
            outcome = yield from self._converse(committer, committer.batch(batch))
            self._check(outcome)
            yield
            if batch.batch_id in checkpoint.commits:
                raise DriverCrash("commits/N exists already: another driver runs on this checkpoint")
            checkpoint.commits[batch.batch_id] = self._state

    def _next_batch(self) -> Generator[None, None, Batch | None]:
        """The batch that Spark would run: the last one again if its commit file is absent, else a new one."""
        checkpoint, world = self._checkpoint, self._world
        last = max(checkpoint.offsets, default=-1)
        if last >= 0 and last not in checkpoint.commits:
            batch_id = last
        else:
            batch_id = last + 1
            if batch_id == 0:
                end = self._pipeline.latest  # The source's first batch is empty: it stores startingOffsets=latest.
            else:
                while (start := checkpoint.offsets[last]) >= self._pipeline.latest:
                    if start >= INPUT_END:
                        return None
                    yield
                end = world.rng.randint(start + 1, self._pipeline.latest)
            yield
            if batch_id in checkpoint.offsets:
                raise DriverCrash("offsets/N exists already: another driver runs on this checkpoint")
            checkpoint.offsets[batch_id] = end
        yield
        return Batch(
            query_id=checkpoint.query_id,
            checkpoint=checkpoint.location,
            batch_id=batch_id,
            start=(checkpoint.offsets[batch_id - 1],) if batch_id else None,
            end=(checkpoint.offsets[batch_id],),
            run=self._run,
        )

    def _check(self, outcome: protocol.Effect) -> None:
        if isinstance(outcome, protocol.Ready):
            return
        assert isinstance(outcome, protocol.Refused | protocol.RestartQuery | protocol.Dead)
        if isinstance(outcome, protocol.Refused) and self._pipeline.refusals is not None:
            self._pipeline.refusals.append(outcome.reason)
            self._pipeline.follow_the_record()
        if isinstance(outcome, protocol.RestartQuery) and self._has_started and self._world.rng.random() < 0.5:
            raise RestartedInPlace
        raise DriverCrash(outcome.reason)

    def _converse(self, committer: Committer, effect: protocol.Effect) -> Generator[None, None, protocol.Effect]:
        while not isinstance(effect, _TERMINAL):
            yield
            if self._world.fault(0.03):
                raise DriverCrash("killed")
            event = yield from self._perform(effect)
            if self._world.fault(0.03):
                raise DriverCrash("killed")
            effect = committer.step(event)
        return effect

    def _perform(self, effect: protocol.Effect) -> Generator[None, None, protocol.Event]:
        if isinstance(effect, Request):
            return (yield from self._requests.perform(effect))
        match effect:
            case protocol.FinishSparkCommit(record):
                return self._finish_spark_commit(record)
            case protocol.WriteBatch(identity):
                return (yield from self._write_batch(identity))
            case protocol.CommitSourcePositions():
                return protocol.Done()
            case _:
                raise AssertionError(effect)

    def _acquired(self) -> None:
        pipeline = self._pipeline
        if self._is_restarted and self._incarnation != pipeline.owner and not self._world.kafka.has_expired:
            pipeline.anomalies.append(f"driver {self._incarnation} restarts and fences {pipeline.owner}")
        pipeline.owner = self._incarnation

    def _finish_spark_commit(self, record: CommitRecord) -> protocol.Event:
        checkpoint = self._checkpoint
        if record.batch_id in checkpoint.commits:
            return protocol.Finished()
        if checkpoint.offsets.get(record.batch_id) != record.end[0] or record.batch_id + 1 in checkpoint.offsets:
            return protocol.Failed("the checkpoint is not at the commit record's batch")
        assert record.commit_text is not None
        if not self._has_its_state(record):
            return protocol.Failed("the batch was committed from a copy")
        checkpoint.commits[record.batch_id] = record.commit_text
        return protocol.Finished()

    def _has_its_state(self, record: CommitRecord) -> bool:
        checkpoint = self._checkpoint
        return record.run in checkpoint.runs and record.commit_text in checkpoint.states.get(record.batch_id, [])

    def _write_batch(self, identity: ProducerIdAndEpoch) -> Generator[None, None, protocol.Event]:
        checkpoint = self._checkpoint
        batch_id = max(checkpoint.offsets)
        end = checkpoint.offsets[batch_id]
        start = checkpoint.offsets.get(batch_id - 1, end)
        token = f"{identity.producer_epoch}:{self._world.next_attempt()}"
        claims = Claims(token)
        job = ModelJob(self._world, claims, token, identity, range(start, end))
        job.start()
        while job.result is None and not job.failure:
            yield
            if self._world.fault(0.005):
                raise DriverCrash("killed between tasks")
        if job.result is None:
            return protocol.Failed(job.failure)
        outputs = claims.close(job.result)
        if isinstance(outputs, Denied):
            return protocol.Failed(outputs.reason)
        if not self._pipeline.stateful:
            return protocol.Acknowledged(outputs)
        if any(len(ids) != 1 for ids in job.state_ids.values()):
            return protocol.Failed("a state stage ran twice: state and output may disagree")
        # Spark keeps the state of each task's first attempt.
        self._state = ",".join(str(ids[0]) for _task, ids in sorted(job.state_ids.items()))
        checkpoint.states.setdefault(batch_id, []).append(self._state)
        return protocol.Acknowledged(outputs, self._state)


def run_seed(seed: int, *, verifies: bool = True) -> Result:
    """One schedule, decided by ``seed`` alone. ``verifies``: see ``KafkaModel``; without it late requests can leave
    hanging transactions, which is why KIP-890 exists."""
    rng = random.Random(seed)
    version = rng.choice((TransactionVersion.TV_1, TransactionVersion.TV_2))
    world = ModelWorld(rng, KafkaModel(version, verifies=verifies), is_shared=seed % 2 == 1)
    stateful = rng.random() < 0.4
    pipeline = Pipeline(world, stateful, ModelCheckpoint("query-0"), latest=rng.randrange(0, 4), refusals=[])
    trace = hashlib.sha256()
    anomalies = pipeline.anomalies
    drivers: list[Steps] = []
    foreign: tuple[int, int] | None = None
    steps = 0
    while not pipeline.finished and steps < STEPS_MAX:
        steps += 1
        if not drivers or (len(drivers) == 1 and world.fault(0.0005)):
            drivers.append(_start(pipeline))
        pipeline.latest = min(INPUT_END, pipeline.latest + (rng.random() < 0.02))
        choice = rng.randrange(len(drivers) + len(world.running) + 2)
        if choice < len(drivers):
            if not _advance(drivers, choice):
                continue
        elif choice < len(drivers) + len(world.running):
            _advance(world.running, choice - len(drivers))
        elif choice == len(drivers) + len(world.running):
            world.kafka.write_one_marker(rng.randrange(8))
        else:
            foreign = _disturb(world, foreign, steps)
        trace.update(f"{choice},{world.kafka.high_watermark(RECORDS)};".encode())
    if not pipeline.finished:
        anomalies.append(f"liveness: not finished after {steps} steps; last refusals {(pipeline.refusals or [])[-2:]}")
    else:
        _settle(world, foreign)
        anomalies += check(pipeline)
    return Result(seed, tuple(anomalies), steps / 1000, trace.hexdigest())


def _start(pipeline: Pipeline) -> Steps:
    """A new driver process; sometimes it finds its checkpoint deleted (only where it can recover from that)."""
    pipeline.incarnations += 1
    world, checkpoint = pipeline.world, pipeline.checkpoint
    pipeline.copies[checkpoint.location] = checkpoint
    if checkpoint.offsets and world.fault(0.1):
        copied = checkpoint.copy(f"copy-{pipeline.incarnations}")
        pipeline.copies[copied.location] = copied
        return SimulatedDriver(pipeline, copied, adopt=world.rng.random() < 0.7).run()
    if not pipeline.stateful and checkpoint.offsets and world.fault(0.1):
        checkpoint = ModelCheckpoint(f"query-{pipeline.incarnations}", checkpoint.location)
        pipeline.checkpoint = pipeline.copies[checkpoint.location] = checkpoint
    return SimulatedDriver(pipeline, checkpoint, adopt=checkpoint.location != "cp" and world.fault(0.3)).run()


def _advance(processes: list[Steps], index: int) -> bool:
    """One step of one process, which is removed when it has ended."""
    try:
        next(processes[index])
    except (StopIteration, DriverCrash):
        del processes[index]
        return False
    return True


def _disturb(world: ModelWorld, foreign: tuple[int, int] | None, step: int) -> tuple[int, int] | None:
    """Events around the pipeline: transactions time out, another's stay open, a leader is replaced."""
    if world.fault(0.005):
        world.kafka.depose(RECORDS)
    if foreign is not None:
        transaction, until = foreign
        if step < until:
            return foreign
        world.kafka.foreign_end(RECORDS, transaction)
        return None
    if world.fault(0.01):
        world.kafka.time_out()
    if world.fault(0.003):
        world.kafka.expire()
    if world.fault(0.02):
        return world.kafka.foreign_begin(RECORDS), step + world.rng.randrange(400)
    return None


def _settle(world: ModelWorld, foreign: tuple[int, int] | None) -> None:
    """Faults are over: late requests and markers arrive, and open transactions time out."""
    for process in world.running:
        for _ in process:
            pass
    if foreign is not None:
        world.kafka.foreign_end(RECORDS, foreign[0])
    while world.kafka.write_one_marker(0):
        pass
    world.kafka.time_out()
    while world.kafka.write_one_marker(0):
        pass


def check(pipeline: Pipeline) -> list[str]:
    """The committed output against f(input); for a stateful query, Spark's state against that of the output."""
    kafka = pipeline.world.kafka
    begin = int(kafka.committed(RECORDS)[0].end[0])
    rows = [row for name in sorted(kafka.logs) if name != RECORDS for row in kafka.committed(name)]
    counts = Counter(row.offset for row in rows)
    anomalies = [f"lost: input offset {o}" for o in range(begin, INPUT_END) if not counts[o]]
    anomalies += [f"duplicated: input offset {o}, {n} times" for o, n in sorted(counts.items()) if n > 1]
    anomalies += [f"not of the input: offset {o}" for o in sorted(counts) if not begin <= o < INPUT_END]
    anomalies += [f"left out: {name} had records of a transaction that was committed" for name in kafka.left_out]
    begin_of_batch = begin
    for record in kafka.committed(RECORDS):
        written = [row for row in rows if begin_of_batch <= row.offset < record.end[0]]
        begin_of_batch = max(begin_of_batch, int(record.end[0]))
        anomalies += _check_attempts(pipeline.world, record, written)
        kept = pipeline.checkpoint.commits.get(record.batch_id)
        if pipeline.stateful and kept != record.commit_text:
            anomalies.append(
                f"state: batch {record.batch_id} is committed with {record.commit_text}, Spark keeps {kept}"
            )
        if pipeline.stateful and kept is not None and kept not in pipeline.checkpoint.states.get(record.batch_id, []):
            anomalies.append(f"state: commits/{record.batch_id} names {kept}, which the checkpoint does not have")
    return anomalies


def _check_attempts(world: ModelWorld, record: CommitRecord, written: list[Row]) -> list[str]:
    """A task's output of a batch comes from one attempt: for a stateful query, the one whose state is kept."""
    anomalies = []
    kept = [int(text) for text in record.commit_text.split(",")] if record.commit_text else None
    for target, task in product(range(len(TARGETS)), range(TASK_COUNT)):
        mine = [row for row in written if row.offset % len(TARGETS) == target and world.task_of(row.offset) == task]
        attempts = sorted({row.attempt for row in mine})
        if len(attempts) > 1:
            anomalies.append(f"torn: batch {record.batch_id}, out-{target} comes from attempts {attempts}")
        if kept and attempts and attempts[0] != kept[task]:
            anomalies.append(f"state: batch {record.batch_id}, out-{target} is not of the attempts {kept}")
        # Records that one task has read of a partition stay in their order.
        if [row.offset for row in mine] != sorted(row.offset for row in mine):
            anomalies.append(f"reordered: batch {record.batch_id}, out-{target}, of task {task}")
    return anomalies
