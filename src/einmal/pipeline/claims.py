"""One writer per target partition and transaction: the driver's table of claims.

All executors write under the same producer id and epoch, so sequences do not keep two writers of a partition apart:
the second one's records would be acknowledged without being written. Hence a task must claim a partition before its
first record, and only the first claimant gets it. A task attempt is identified by an id that is unique in the
application (Spark's ``taskAttemptId``): attempt numbers start again at 0 when a stage is run again.
Knows nothing of how claims travel; ``spark.output.claim_service`` has the theory.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field

from einmal.types import TopicPartition


@dataclass(frozen=True, slots=True)
class Granted:
    """``add``: the partition is new to the transaction; under TV0 and TV1 the driver adds it before it answers."""

    add: bool


@dataclass(frozen=True, slots=True)
class Denied:
    """``by``: the attempt that owns the partition, if the asking attempt may wait for its end: only an attempt without
    partitions may, so no two wait for each other."""

    reason: str
    by: int | None = None


@dataclass(frozen=True, slots=True, order=True)
class Output:
    """What one task has written to one partition, as the broker acknowledged it: offsets inclusive."""

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
    _owners: dict[TopicPartition, int] = field(default_factory=dict)
    _outputs: dict[TopicPartition, Output] = field(default_factory=dict)
    _closed: bool = False

    def claim(self, token: str, attempt_id: int, target: TopicPartition) -> Granted | Denied:
        """Idempotent for the attempt that owns the partition; denied to every other one."""
        if refusal := self._refusal(token):
            return refusal
        owner = self._owners.get(target)
        if owner is None:
            self._owners[target] = attempt_id
            return Granted(add=True)
        if owner == attempt_id and target not in self._outputs:
            return Granted(add=False)
        return Denied(
            f"{target} is being written by task attempt {owner} in this transaction; attempt {attempt_id} is a "
            "retry, a speculative copy or a re-run of it, and the batch has to be written again as a whole",
            by=None if attempt_id in self._owners.values() else owner,
        )

    def is_reported(self, target: TopicPartition) -> bool:
        return target in self._outputs

    def report(self, token: str, attempt_id: int, output: Output) -> Granted | Denied:
        """The owner of a partition has every acknowledgement for it."""
        if refusal := self._refusal(token):
            return refusal
        target = TopicPartition(output.topic, output.partition)
        if self._owners.get(target) != attempt_id:
            return Denied(f"{target} is not claimed by task attempt {attempt_id}")
        if self._outputs.setdefault(target, output) != output:
            return Denied(f"{target} was reported before, with other offsets")
        return Granted(add=False)

    def close(self, collected: Iterable[Output]) -> tuple[Output, ...] | Denied:
        """No claim is granted any more. The outputs in order, if every claim was reported and Spark's own result
        (``collected``, from the attempts that it counted as successful) agrees."""
        self._closed = True
        missing = sorted(target for target in self._owners if target not in self._outputs)
        if missing:
            return Denied(f"{len(missing)} claimed partitions were never reported, first {missing[0]}")
        outputs = tuple(sorted(self._outputs.values()))
        if tuple(sorted(collected)) != outputs:
            return Denied("the tasks that Spark counts as successful are not those that wrote")
        return outputs

    def _refusal(self, token: str) -> Denied | None:
        if token != self.token:
            return Denied("the claim belongs to a transaction that has ended")
        if self._closed:
            return Denied("the transaction is being committed")
        return None


def digest(outputs: Iterable[Output]) -> str:
    """A digest over what was written where, offsets aside: equal for two runs that wrote the same."""
    lines = [f"{o.topic}-{o.partition}:{o.count}:{o.crc:08x}" for o in sorted(outputs)]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()
