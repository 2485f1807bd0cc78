"""One writer of a partition at a time, and one per task: the driver's table of claims.

All executors write under the same producer id and epoch, so sequences do not keep two writers of a partition apart:
the second one's records would be acknowledged without being written. Hence a task must claim a partition before it
writes there, and it alone has the partition until it reports that everything is acknowledged. The next claim continues
at the sequence that follows, which is in the grant (decision 0001: brokers accept that under TV1 and TV2).

Every task has one writing attempt: the first one with a claim. Another attempt would write the same rows again. An
attempt is identified by an id that is unique in the application (Spark's ``taskAttemptId``): attempt numbers start
again at 0 when a stage is run again.
Knows nothing of how claims travel; ``sinks.kafka.claim_service`` has the theory.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from einmal.types import Sequence, TopicPartition, next_sequence


@dataclass(frozen=True, slots=True)
class Granted:
    """``sequence``: of the first record. ``add``: the partition is new to the transaction; under TV0 and TV1 the driver
    adds it before it answers."""

    sequence: int
    add: bool


@dataclass(frozen=True, slots=True)
class Denied:
    """``by``: the attempt that is in the way, if the asking attempt may wait for it: only an attempt that has no
    partition may, so no two wait for each other."""

    reason: str
    by: int | None = None


@dataclass(frozen=True, slots=True, order=True)
class Task:
    """A task of a job, however often it is tried. ``job``: of the jobs of one transaction (Spark's stage)."""

    job: int
    number: int


@dataclass(frozen=True, slots=True, order=True)
class Output:
    """Records that one task has written to one partition under one claim, as the broker acknowledged it: offsets
    inclusive."""

    topic: str
    partition: int
    first_offset: int
    last_offset: int
    count: int
    crc: int = 0
    """CRC-32C over the record batches as sent, so that two runs of a deterministic batch can be compared."""


@dataclass(slots=True)
class Claims:
    """The claims of one transaction. A new transaction has a new table: late claims name the old one's ``token``."""

    token: str
    _writers: dict[Task, int] = field(default_factory=dict)
    """The attempt that writes for each task."""
    _holders: dict[TopicPartition, int] = field(default_factory=dict)
    """The attempt that has claimed each partition, and has not reported yet."""
    _sequences: dict[TopicPartition, Sequence] = field(default_factory=dict)
    """Sequence of the next record of each partition."""
    _outputs: Counter[tuple[Output, int]] = field(default_factory=Counter)
    """Reported outputs, with the attempt of each. Where offsets are unknown, several can be equal."""
    _closed: str = ""
    """Why no claim is granted and no report is accepted any more."""

    def claim(self, token: str, task: Task, attempt_id: int, partition: TopicPartition) -> Granted | Denied:
        """Idempotent for the attempt that has the partition; denied to every other one until it has reported."""
        if refusal := self._refusal(token):
            return refusal
        writer = self._writers.get(task, attempt_id)
        if writer != attempt_id:
            return Denied(
                f"task attempt {writer} writes in this transaction; attempt {attempt_id} is a retry, a speculative "
                "copy or a re-run of it, and the batch has to be written again as a whole",
                by=writer,
            )
        holder = self._holders.setdefault(partition, attempt_id)
        if holder != attempt_id:
            return Denied(
                f"{partition} is being written by task attempt {holder}, which does not report the end of it to "
                f"attempt {attempt_id}; the batch has to be written again as a whole",
                by=None if self.has_claims(attempt_id) else holder,
            )
        self._writers[task] = attempt_id
        is_new = partition not in self._sequences
        return Granted(self._sequences.setdefault(partition, Sequence(0)), is_new)

    def holder(self, partition: TopicPartition) -> int | None:
        """The attempt that has claimed the partition, and has not reported yet."""
        return self._holders.get(partition)

    def has_claims(self, attempt_id: int) -> bool:
        """Whether the attempt has a partition that it has not reported."""
        return attempt_id in self._holders.values()

    def report(self, token: str, attempt_id: int, output: Output) -> Denied | None:
        """The holder of a partition has every acknowledgement for it: the next one may claim it."""
        if refusal := self._refusal(token):
            return refusal
        partition = TopicPartition(output.topic, output.partition)
        if self._holders.get(partition) != attempt_id:
            if self._outputs[output, attempt_id]:
                return None
            return Denied(
                f"{partition} is not claimed by task attempt {attempt_id}, or was reported with other offsets"
            )
        del self._holders[partition]
        self._sequences[partition] = next_sequence(self._sequences[partition], output.count)
        self._outputs[output, attempt_id] += 1
        return None

    def fail(self, reason: str) -> None:
        """A partition that was claimed could not be added to the transaction, which cannot be committed any more: to
        whoever asks again the partition would look like one that was added."""
        self._closed = self._closed or reason

    def close(self, collected: Iterable[Output]) -> tuple[Output, ...] | Denied:
        """No claim is granted any more. The outputs in order, if every claim was reported and Spark's own result
        (``collected``, from the attempts that it counted as successful) agrees."""
        self._closed = self._closed or "the transaction is being committed, or has ended"
        if self._holders:
            return Denied(f"{len(self._holders)} claimed partitions were never reported, first {min(self._holders)}")
        outputs = tuple(sorted(output for output, _ in self._outputs.elements()))
        if tuple(sorted(collected)) != outputs:
            return Denied("the tasks that Spark counts as successful are not those that wrote")
        return outputs

    def _refusal(self, token: str) -> Denied | None:
        if token != self.token:
            return Denied("the claim belongs to a transaction that has ended")
        return Denied(self._closed) if self._closed else None


def digest(outputs: Iterable[Output]) -> str:
    """A digest over what was written where, offsets aside: equal for two runs that wrote the same."""
    # Tasks that share a partition write in turns, in another order in every run.
    lines = sorted(f"{o.topic}-{o.partition}:{o.count}:{o.crc:08x}" for o in outputs)
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()
