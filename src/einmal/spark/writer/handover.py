"""Which batch is open, and what may become of it: a batch is planned in one process and committed from another.

Theory of operation. Spark plans a batch in a *planning worker*, runs its tasks, and lets a *commit worker* finish it.
Both are Python processes of the driver's machine, neither knows the other, and each may be killed, replaced, or shared
with other queries at any time; an idle one is ended after a minute. So neither has the transaction: a third process has
it, the *keeper* (``keeper``), which does what the driver of ``write_stream`` does.

    planning worker         keeper                                    tasks                commit worker
    plan                ->  batch N of the checkpoint; committed?
                            InitProducerId, or the epoch at hand
                        <-  work: token, identity, claims
                            claims                                <-  write, report
                                                                      proof (N, token,
                                                                      outputs)         ->  commit(proofs, N)
                            token and N are those of what is open,
                            outputs those of the claims           <-                       commit
                            record, positions, EndTxn             ->                       committed

Invariants:

1. *A batch is committed once.* Before a batch is opened its number and offsets are compared with the commit record,
   read under the epoch that will commit it (``commit_protocol.committer``). A batch that is in gets work without a
   token: its tasks read their rows and write nothing.
2. *A proof commits the attempt that it was written in, and no other.* Every plan opens a transaction with a token of
   its own. A commit must name the open token, and the number under which Spark commits must be the one that was
   planned: another run on the same checkpoint could have planned in between.
3. *A batch has one verdict.* Whoever comes first decides: the commit with its proofs, or a later plan, which means that
   Spark has begun again. A later plan waits for the outcome of a commit under way, and reads it from the record.
4. *A keeper that dies leaves nothing that counts*: the next one acquires the name, which aborts what is open, and reads
   the record. So the keeper is the only one that asks the coordinator for anything.

5. *Nobody waits long for an attempt that everybody has forgotten.* Its planning worker may die with the keeper's
   answer in its hands, its commit worker before it asks. The keeper gives nothing up by a clock of its own, because it
   cannot know a forgotten batch from one whose tasks are slow. It need not: before the first claim nothing is open at
   the coordinator, and no reader waits; after it the coordinator aborts after transaction.timeout.ms, which bounds
   slow tasks, too, and fences a commit that comes later. What stays until the driver ends or plans again is a process
   without work.

This module is the keeper's memory. It has no I/O.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final

from einmal.commit_protocol.claims import Denied, Output
from einmal.pipeline.errors import PipelineError

STATE_CAVEAT: Final = (
    'Spark\'s commit of the state is not in the transaction of format("einmal"): if the driver dies between the two, '
    "state is computed again, and agrees with the committed output only where the query is deterministic; "
    "write_stream(df) has no such gap"
)
"""Limit of the promise, for users."""


@dataclass(frozen=True, slots=True)
class Proof:
    """Proof of what one task has written, or all of a batch. ``token``: of the transaction; empty where the batch was
    in already and nothing was written."""

    batch_id: int
    token: str
    outputs: tuple[Output, ...] = ()


def proof_of(batch_id: int, proofs: Sequence[Proof | None]) -> Proof | Denied:
    """Return what all tasks prove together. ``batch_id``: the one that Spark commits. None: a task without a report."""
    reported = [proof for proof in proofs if proof is not None]
    if not reported or len(reported) != len(proofs):
        return Denied(f"{len(proofs) - len(reported)} of {len(proofs)} tasks have not reported what they wrote")
    if {(proof.batch_id, proof.token) for proof in reported} != {(reported[0].batch_id, reported[0].token)}:
        return Denied("the tasks have written for several attempts of the batch")
    if reported[0].batch_id != batch_id:
        return Denied(
            f"Spark commits batch {batch_id}, and its tasks have written batch {reported[0].batch_id}: another query "
            "runs on the same checkpoint"
        )
    return Proof(batch_id, reported[0].token, tuple(output for proof in reported for output in proof.outputs))


class AttemptEnd(Enum):
    COMMIT = auto()
    GIVE_UP = auto()


@dataclass(slots=True)
class Attempt:
    """A batch with an open transaction. ``verdict``: the first one counts."""

    batch_id: int
    token: str
    verdict: AttemptEnd | None = None
    outputs: tuple[Output, ...] = ()
    reason: str = ""
    """Why it is given up."""
    is_over: bool = False
    failure: PipelineError | None = None
    """Why it was not committed."""


@dataclass(slots=True)
class Handover:
    """The batches of one keeper, one at a time."""

    attempt: Attempt | None = None
    _last: tuple[str, int] | None = field(default=None)
    """Query and number of the last batch that this keeper knows to be committed."""

    def continues(self, query_id: str, batch_id: int) -> bool:
        """Whether the batch follows what this keeper has committed. Every other one is of a query that was started
        again, or of another one."""
        return self._last == (query_id, batch_id - 1)

    def open(self, batch_id: int, token: str) -> Attempt:
        assert self.attempt is None, "one batch at a time"
        self.attempt = Attempt(batch_id, token)
        return self.attempt

    def commit(self, proof: Proof) -> Attempt | Denied:
        """Let the open batch be committed, if that is what the tasks have written."""
        attempt = self.attempt
        if attempt is None or attempt.token != proof.token or attempt.batch_id != proof.batch_id:
            return Denied(f"the transaction in which batch {proof.batch_id} was written has ended")
        if attempt.verdict is not None:
            return Denied(f"batch {proof.batch_id} is {_VERDICTS[attempt.verdict]} already")
        attempt.verdict, attempt.outputs = AttemptEnd.COMMIT, proof.outputs
        return attempt

    def give_up(self, reason: str, batch_id: int | None = None) -> None:
        """Give the open batch up, unless it is being committed. ``batch_id``: only if it is this one."""
        attempt = self.attempt
        if attempt is not None and attempt.verdict is None and batch_id in (None, attempt.batch_id):
            attempt.verdict, attempt.reason = AttemptEnd.GIVE_UP, reason

    def close(self, query_id: str, batch_id: int, failure: PipelineError | None) -> None:
        """The batch has an outcome. ``failure`` None: it is committed, now or before."""
        attempt, self.attempt = self.attempt, None
        if attempt is not None:
            attempt.is_over, attempt.failure = True, failure
        self._last = (query_id, batch_id) if failure is None else None


_VERDICTS: Final = {AttemptEnd.COMMIT: "being committed", AttemptEnd.GIVE_UP: "given up"}
