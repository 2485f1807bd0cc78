"""Committers of a test, brought to a phase by answers."""

from __future__ import annotations

from dataclasses import replace

from einmal.commit_protocol.batch_plan import BATCH_WRITES, Batch
from einmal.commit_protocol.claims import Output
from einmal.commit_protocol.commit_record import CommitRecord
from einmal.commit_protocol.committer import Committer
from einmal.commit_protocol.effects import (
    Acknowledged,
    CommitSourcePositions,
    Done,
    Ended,
    EndTxn,
    IdentityGranted,
    InitProducerId,
    ReadRecord,
    Ready,
    RecordRead,
    WriteBatch,
    WriteCommitRecord,
)
from einmal.commit_protocol.run_state import Held, Query
from einmal.types import ProducerEpoch, ProducerId, ProducerIdAndEpoch

QUERY = Query(transactional_id="t", query_id="q", checkpoint="cp", is_fresh=True, stateful=False)
WRITE = Query(transactional_id="t", query_id=BATCH_WRITES, checkpoint="", is_fresh=False, stateful=False, version=3)
BATCH = Batch(query_id="q", checkpoint="cp", batch_id=0, start=None, end=(10,))
FOLLOWING = replace(BATCH, batch_id=1, start=(10,), end=(20,))
OUTPUTS = (Output("out", 0, 0, 4, 5),)


def identity(epoch: int, producer_id: int = 1) -> ProducerIdAndEpoch:
    return ProducerIdAndEpoch(ProducerId(producer_id), ProducerEpoch(epoch))


def record_of(batch: Batch, commit_text: str | None = None) -> CommitRecord:
    return CommitRecord(
        transactional_id="t",
        query_id=batch.query_id,
        checkpoint=batch.checkpoint,
        batch_id=batch.batch_id,
        end=batch.end,
        commit_text=commit_text,
    )


def started(query: Query = QUERY, record: CommitRecord | None = None) -> Committer:
    committer = Committer(query)
    assert committer.start() == ReadRecord(certain=False)
    assert committer.step(RecordRead(record)) == InitProducerId(None)
    assert committer.step(IdentityGranted(identity(0))) == ReadRecord(certain=True)
    assert committer.step(RecordRead(record)) == Ready(record)
    return committer


def at_end_txn(committer: Committer, batch: Batch = BATCH) -> None:
    assert committer.batch(batch) == WriteBatch(identity(0))
    assert isinstance(committer.step(Acknowledged(OUTPUTS)), WriteCommitRecord)
    assert isinstance(committer.step(Done()), CommitSourcePositions)
    assert committer.step(Done()) == EndTxn(identity(0), committed=True)


def committed_under_tv1() -> Committer:
    """Batch 0 is committed, and the next transaction needs an epoch."""
    committer = started()
    at_end_txn(committer)
    assert isinstance(committer.step(Ended(None)), Ready)
    return committer


def restarted(held: Held) -> Committer:
    committer = Committer(QUERY, held)
    committer.start()
    return committer
