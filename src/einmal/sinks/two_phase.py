"""Topics and a database as one sink: a two-phase commit whose decision is the database's (KIP-939).

Theory of operation. The batch's rows for topics are in a Kafka transaction that can be prepared: it has no timeout, and
only its owner ends it. The database commits its own rows, the commit record, and in the record the name of that
transaction (producer id and epoch). Then, and only then, the Kafka transaction is committed. So the record in the
database is the one decision:

    stage    both
    record   source positions into the Kafka transaction, which is complete now; its name into the database's record
    commit   COMMIT in the database, then EndTxn
    acquire  the database's name first, then InitProducerId that keeps what is open, then the record: what it names is
             committed, anything else is aborted

Invariants, and the ordering that keeps them:

1. *A transaction ends as the database has decided.* Nobody ends it before the database's answer is certain: an error of
   its COMMIT leaves it open, and the next ``acquire`` reads the record.
2. *No predecessor commits after its transaction was aborted.* The database is acquired before Kafka is asked: from then
   on the predecessor's COMMIT is refused, so the record that is read is the last one.
3. *A transaction's name is never used again*: every transaction has an epoch of its own. A batch that has nothing for
   the topics has no transaction there, and uses up no epoch: its record names none. In another cluster the name is of
   another transaction, so the record names the cluster, too.
4. *Where topics and database were committed apart before, the topics are not ahead.* Then the database has the last
   batch of the topics, which would be written to them again. The commit point of the topics sees to the reverse: it
   aborts no transaction that can be prepared.

Between COMMIT and the last marker of EndTxn a reader sees the batch in the database, and not yet in the topics; readers
of the topics wait there (last stable offset), until the transaction is ended by this run or by the next one.

Dead letters of rows that the database rejects are not in this transaction: it is complete before the database is asked.
They have a commit point of their own after it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace

from einmal.client import PreparedTxnState
from einmal.commit_protocol.batch_plan import ADOPT_ONCE, BATCH_WRITES, NOBODY
from einmal.commit_protocol.claims import Output
from einmal.commit_protocol.commit_record import CommitRecord, UnreadableCommitRecord
from einmal.options.sink import TWO_PHASE_COMMIT
from einmal.pipeline.dead_letters import RejectedRow
from einmal.pipeline.errors import PipelineRefused
from einmal.schemas.settings import ErrorSettings
from einmal.sinks.batch_rows import BatchRows
from einmal.sinks.commit_point import Committed, Identity, OutcomeUnknown, RowCommitPoint, SinkError, SinkFailed
from einmal.sinks.kafka.commit_point import KafkaRowCommitPoint
from einmal.sinks.kafka.sink import KafkaRowSink
from einmal.sinks.sink import Opening, RowSink

Divided = Callable[[BatchRows], AbstractContextManager[tuple[BatchRows, BatchRows]]]
"""From the rows of a batch to those for the topics and those for the database. Both come of one evaluation: where the
query is not deterministic, two would have two results."""


class TwoPhaseCommitPoint(RowCommitPoint):
    """See ``RowCommitPoint``. Identities are the database's; those of Kafka's transactions stay inside."""

    def __init__(self, topics: KafkaRowCommitPoint, database: RowCommitPoint, divided: Divided) -> None:
        self._topics = topics
        self._database = database
        self._divided = divided
        self._transaction: Identity | None = None
        """Identity of the Kafka transaction that is open, or comes next."""

    def look(self) -> CommitRecord | None:
        record = self._database.look()
        self._check(record, self._topics.look())
        return record

    def acquire(self, held: Identity | None) -> Identity:
        identity = self._database.acquire(held)
        kept = self._topics.keep()
        try:
            record = self._database.read()
        except UnreadableCommitRecord as error:
            raise SinkFailed(
                f"{error}. It decides how the transaction in the topics ends, which stays open. Hint: restore the "
                "record; or commit or abort that transaction by hand, and delete the record"
            ) from error
        self._check(record, self._topics.read())
        committed = PreparedTxnState.parse("" if record is None else record.prepared)
        self._transaction = self._topics.complete(kept, committed)
        return identity

    def _check(self, record: CommitRecord | None, of_topics: CommitRecord | None) -> None:
        """``of_topics``: the record of the time before both were committed together. Raises PipelineRefused."""
        cluster = self._topics.cluster_id()
        if record is not None and record.prepared and record.prepared_in not in ("", cluster):
            raise PipelineRefused(
                f"the last batch of the database has the transaction {record.prepared} in the topics of cluster "
                f"{record.prepared_in}, this is cluster {cluster}",
                "check kafka.bootstrap.servers; once the transaction has ended there (einmal txn describe), another "
                f"cluster needs another transactional.id: with it {ADOPT_ONCE}",
            )
        if of_topics is None or of_topics.query_id in (NOBODY, BATCH_WRITES):
            return
        if record is None or (record.query_id == of_topics.query_id and record.batch_id < of_topics.batch_id):
            has = "no batch" if record is None else f"batch {record.batch_id}"
            name = of_topics.transactional_id
            raise PipelineRefused(
                f"the topics have batch {of_topics.batch_id}, the database has {has}: they were not committed "
                "together, and the topics would have it twice",
                f"start once without kafka.{TWO_PHASE_COMMIT}: that writes a batch only where it is missing; or, where "
                f"the database was reset: einmal pipeline reset {name}, without --file, forgets that of the topics",
            )

    def read(self) -> CommitRecord | None:
        return self._database.read()

    def check(self, identity: Identity) -> None:
        self._database.check(identity)

    def stage(self, identity: Identity, batch_id: int, rows: BatchRows) -> tuple[Output, ...]:
        with self._divided(rows) as (of_topics, of_database):
            topics = self._topics.stage(self._kafka, batch_id, of_topics)
            return topics + self._database.stage(identity, batch_id, of_database)

    def record(self, identity: Identity, record: CommitRecord | None) -> None:
        if record is not None:
            self._topics.positions(self._kafka, record.batch_id, record.end)
            prepared = str(self._topics.prepared(self._kafka))
            record = replace(record, prepared=prepared, prepared_in=prepared and (self._topics.cluster_id() or ""))
        self._database.record(identity, record)

    def commit(self, identity: Identity) -> Identity | None:
        following = self._database.commit(identity)
        try:
            self._transaction = self._topics.commit(self._kafka) or self._kafka
        except SinkError as error:
            raise OutcomeUnknown(
                f"the database has committed the batch, its transaction in the topics stays prepared: {error}"
            ) from error
        return following

    def abort(self, identity: Identity) -> Identity | None:
        if self._transaction is None:
            # It is the transaction of the run before this one: ``acquire`` finds out what it is in the topics.
            return self._database.abort(identity)
        following = self._database.abort(identity)
        self._transaction = self._topics.abort(self._kafka) or self._kafka
        return following

    def rejected(self, batch_id: int) -> Sequence[RejectedRow]:
        return self._database.rejected(batch_id)

    def abandon(self) -> None:
        # The transaction in the topics may be prepared: only the database knows how it ends.
        self._database.abandon()

    def close(self) -> None:
        self._topics.close()
        self._database.close()

    @property
    def _kafka(self) -> Identity:
        if self._transaction is None:
            raise SinkFailed("no transaction in the topics was begun: start the run again")
        return self._transaction


class TwoPhaseSink(RowSink):
    """Topics and one database, for a query that has rows for both."""

    def __init__(self, topics: KafkaRowSink, database: RowSink, divided: Divided) -> None:
        self._topics = topics
        self._database = database
        self._divided = divided

    @property
    def table(self) -> str:
        return self._database.table

    @property
    def errors(self) -> ErrorSettings:
        return self._database.errors

    def identity(self) -> str | None:
        return self._database.identity()

    def commit_point(self, opening: Opening) -> RowCommitPoint:
        topics, database = self._topics.commit_point(opening), self._database.commit_point(opening)
        return TwoPhaseCommitPoint(topics, database, self._divided)

    def committed(self) -> Mapping[str, Committed]:
        return self._database.committed()

    def close(self) -> None:
        self._topics.close()
        self._database.close()
