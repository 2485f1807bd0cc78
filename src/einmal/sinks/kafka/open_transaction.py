"""The transaction that is open, as tasks see it: its topics, its claims, and who waits for a claim.

The state behind ``claim_service``, whose docstring has the theory and the invariants. Every question is answered under
one lock.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from einmal.commit_protocol.claims import Claims, Denied, Granted, Output, Task
from einmal.commit_protocol.commit_record import RESERVED_TOPICS
from einmal.options.values import reserved
from einmal.sinks.kafka.claim_client import Claimant, ClaimRefused
from einmal.sinks.kafka.claim_messages import (
    CLAIMS_MAX,
    Answer,
    AskAgain,
    Claim,
    ClaimDenied,
    ClaimingAttempt,
    ClaimPartitions,
    ClaimsGranted,
    LeaveService,
    LookUpTopic,
    Noted,
    Question,
    ReportOutputs,
    TopicNumbers,
)
from einmal.types import ProducerIdAndEpoch, TopicPartition, TransactionVersion

_WAIT_S: Final = 120.0
"""How long attempts wait while nothing is reported: a writer that hangs must fail the batch eventually."""
_WAIT_STEP_S: Final = 10.0
_COUNTED_S: Final = 5.0
"""From a writer's last report until Spark has counted its success, and has ended the other attempts."""


@dataclass(frozen=True, slots=True)
class WriteAs:
    """Under which identity tasks write. ``identity`` None: plain records, at least once, or (``sends_once``) at most
    once."""

    transactional_id: str | None = None
    identity: ProducerIdAndEpoch | None = None
    transaction_version: TransactionVersion = TransactionVersion.TV_1
    sends_once: bool = False


class TopicTable:
    """The partition counts of one batch. A count is looked up once and does not change until the batch has ended.

    Every partition gets a number, its topic's base plus its own, by which rows are routed.
    """

    def __init__(self, count_of: Callable[[str], int]) -> None:
        self._count_of = count_of
        self._topics: dict[str, TopicNumbers] = {}
        self._partitions: list[TopicPartition] = []

    def look_up(self, topic: str) -> TopicNumbers:
        """Raises ClaimRefused for an internal topic, and what ``count_of`` raises."""
        known = self._topics.get(topic)
        if known is None:
            if topic in RESERVED_TOPICS:
                raise ClaimRefused(reserved(topic))
            known = TopicNumbers(len(self._partitions), self._count_of(topic))
            self._topics[topic] = known
            self._partitions += (TopicPartition(topic, index) for index in range(known.size))
        return known

    def partition(self, number: int) -> TopicPartition:
        if not 0 <= number < len(self._partitions):
            raise ClaimRefused(f"no partition has the number {number} in this batch")
        return self._partitions[number]


class OpenTransaction:
    """The transaction that is open, as the service sees it.

    ``add`` adds a partition to it (TV0 and TV1) before its claim is granted; ``reported`` is called with every result.
    Without ``exclusive`` every attempt may write every partition: at least once, no transaction at all.
    """

    def __init__(
        self,
        topics: TopicTable,
        *,
        add: Callable[[TopicPartition], None],
        reported: Callable[[Output], None],
        exclusive: bool = True,
    ) -> None:
        self.token: Final = secrets.token_hex(8)
        self._claims = Claims(self.token) if exclusive else None
        self._topics = topics
        self._add = add
        self._reported = reported
        self._lock = threading.Condition()
        self._at_work: dict[int, set[object]] = {}
        """The connections of every task attempt; none where it has left."""
        self._left: dict[int, float] = {}
        self._waiting: dict[int, float] = {}
        """Since when each attempt waits."""
        self._reported_at = 0.0

    def look_up(self, topic: str) -> int:
        """The topic's number of partitions, fixed from now on."""
        with self._lock:
            return self._topics.look_up(topic).size

    def close(self, collected: Iterable[Output]) -> tuple[Output, ...] | Denied:
        """No claim is granted any more; the outputs, if all claims were reported and ``collected`` agrees."""
        with self._lock:
            self._lock.notify_all()
            return tuple(sorted(collected)) if self._claims is None else self._claims.close(collected)

    def leave(self, connection: object) -> None:
        """The task attempt behind a connection is done, or dead."""
        with self._lock:
            for attempt_id, connections in self._at_work.items():
                if connection in connections:
                    connections.remove(connection)
                    self._left[attempt_id] = time.monotonic()
            self._lock.notify_all()

    def answer(self, question: LookUpTopic | ClaimPartitions | ReportOutputs, connection: object) -> Answer:
        # One request at a time: a grant must not overtake the AddPartitionsToTxn it stands for.
        with self._lock:
            self._at_work.setdefault(question.attempt.attempt_id, set()).add(connection)
            match question:
                case LookUpTopic(_, topic):
                    return self._topics.look_up(topic)
                case ClaimPartitions():
                    return self._claim(question)
                case ReportOutputs():
                    return self._report(question)

    def _claim(self, question: ClaimPartitions) -> Answer:
        """Those of the wanted partitions that are free, at most as many as asked for; waits a while for the first."""
        attempt_id = question.attempt.attempt_id
        wanted = [(number, self._topics.partition(number)) for number in question.numbers[:CLAIMS_MAX]]
        if self._claims is not None:
            # If the answer to an earlier question was lost, the attempt must learn what it has already.
            claims = self._claims
            wanted.sort(key=lambda candidate: claims.holder(candidate[1]) != attempt_id)
        until = time.monotonic() + _WAIT_STEP_S
        while True:
            granted, denied = self._granted(question.attempt, wanted, question.most)
            if granted:
                self._waiting.pop(attempt_id, None)
                return ClaimsGranted(tuple(granted))
            wait_s = self._may_wait(attempt_id, denied)
            if wait_s <= 0:
                assert denied is not None, "no partition was asked for"
                return ClaimDenied(denied.reason)
            if (step_s := min(wait_s, until - time.monotonic())) <= 0:
                return AskAgain()
            self._lock.wait(step_s)

    def _granted(
        self, attempt: ClaimingAttempt, wanted: list[tuple[int, TopicPartition]], most: int
    ) -> tuple[list[Claim], Denied | None]:
        """Return what the attempt may write now, and why another partition was denied."""
        granted: list[Claim] = []
        denied: Denied | None = None
        for number, partition in wanted:
            if len(granted) == most:
                break
            answer = Granted(0, add=False)
            if self._claims is not None:
                if denied is not None and self._claims.holder(partition) not in (None, attempt.attempt_id):
                    # Every report wakes all who wait: one refusal is enough for each of them.
                    continue
                decision = self._claims.claim(self.token, attempt.task, attempt.attempt_id, partition)
                if isinstance(decision, Denied):
                    denied = denied or decision
                    continue
                answer = decision
            if answer.add:
                self._add_to_transaction(partition)
            granted.append(Claim(number, partition, answer.sequence))
        return granted, denied

    def _add_to_transaction(self, partition: TopicPartition) -> None:
        """Raises what ``add`` raises; then the transaction grants nothing any more."""
        try:
            self._add(partition)
        except Exception as error:
            assert self._claims is not None, "only claims add"
            self._claims.fail(f"{partition} could not be added to the transaction: {error}")
            self._lock.notify_all()
            raise

    def _may_wait(self, attempt_id: int, denied: Denied | None) -> float:
        """How long an attempt may wait now, in seconds."""
        if self._claims is None or denied is None or denied.by is None:
            return 0.0
        now = time.monotonic()
        patience = max(self._waiting.setdefault(attempt_id, now), self._reported_at) + _WAIT_S - now
        if not self._at_work.get(denied.by):
            # Without a claim it may have succeeded; with one it never will.
            counted = self._left.get(denied.by, now) + _COUNTED_S - now
            patience = min(patience, 0.0 if self._claims.has_claims(denied.by) else counted)
        return patience

    def _report(self, question: ReportOutputs) -> Answer:
        attempt_id = question.attempt.attempt_id
        for output in question.outputs:
            if self._claims is not None and (denied := self._claims.report(self.token, attempt_id, output)):
                return ClaimDenied(denied.reason)
            self._reported(output)
        self._reported_at = time.monotonic()
        self._lock.notify_all()
        return Noted()


class OwnClaimant(Claimant):
    """In the driver's process: the transaction answers without a service. Its questions raise what it raises."""

    def __init__(self, transaction: OpenTransaction, task: Task, attempt_id: int) -> None:
        super().__init__(transaction.token, task, attempt_id)
        self._transaction = transaction

    def __exit__(self, kind: object, *_: object) -> None:
        self._transaction.leave(self)

    def _answer(self, question: Question) -> Answer:
        assert not isinstance(question, LeaveService), "leaves by __exit__"
        return self._transaction.answer(question, self)


@dataclass(frozen=True, slots=True)
class OwnTurn:
    """``Turn`` of a task in the driver's process."""

    transaction: OpenTransaction
    task: Task
    attempt_id: int

    @property
    def token(self) -> str:
        return self.transaction.token

    def claims(self) -> OwnClaimant:
        return OwnClaimant(self.transaction, self.task, self.attempt_id)
