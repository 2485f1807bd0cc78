"""One run of an exactly-once query: a ``TransactionRun`` on each of its sinks, and the checkpoint beside them.

A run begins with ``start``, before Spark plans anything, and then takes one micro-batch after the other. It ends with
the query; after an error it cannot continue, and a new run reads the outcome from the commit record.

A query with several sinks has several commit points, one after the other, each with a commit record of its own. A
driver that dies between two of them runs the batch again, and writes it only where it is not in. So each sink has
each batch once; where a query is not deterministic, two sinks may have it from two different runs. The last sink's
record is the one that Spark's state belongs to.

Where sinks tolerate rows that they reject, the dead letters of these rows are one more commit point, the last one of
a batch. What they are made of is in the sinks' own records (``CommitPoint.rejected``), so the batch is not computed
for them again. A batch begins only when they are committed: Spark runs the batch again until then, and the commit file
of its state is not completed before.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from typing import Any

from einmal.client.errors import KafkaError
from einmal.clusters.kafka_cluster import KafkaCluster
from einmal.commit_protocol.batch_plan import Batch
from einmal.commit_protocol.commit_record import CommitRecord
from einmal.commit_protocol.effects import Failed, Finished
from einmal.commit_protocol.positions import are_same, is_identified, short, topics_in
from einmal.commit_protocol.run_state import Query
from einmal.commit_protocol.source_offsets import SourcePosition
from einmal.options.source import topics_of
from einmal.options.values import client_settings
from einmal.pipeline import events
from einmal.pipeline.errors import PipelineFenced, PipelineRefused
from einmal.sinks.commit_point import SinkError
from einmal.sinks.kafka.source_positions import SELF_CONTAINED
from einmal.sinks.sink import Opening
from einmal.spark.environment.plans.source_nodes import source_names
from einmal.spark.environment.plans.streaming_query import offset_metadata
from einmal.spark.protocol.checkpoint import CheckpointError, CheckpointTaken
from einmal.spark.protocol.execution import Execution, empty_commit_file, sources, state_format
from einmal.spark.protocol.run import CurrentBatch, Kept, Setting, SinkBatch
from einmal.spark.protocol.spark_commit import SparkCommit
from einmal.spark.protocol.transaction_run import Additions, NoAdditions, TransactionRun
from einmal.spark.sinks.frame_rows import FrameRows


class ExactlyOnce:
    """See ``run.Run``."""

    def __init__(self, setting: Setting, held: Kept = ()) -> None:
        """``held``: by the run before this one, where the query is restarted. Raises PipelineRefused."""
        options, checkpoint = setting.options, setting.checkpoint
        assert options.transactional_id is not None
        self._setting = setting
        self._id = options.transactional_id
        self._query_id = checkpoint.ensure_query_id()
        try:
            self._cluster_id = setting.parts[-1].sink.identity()
        except SinkError as error:
            raise PipelineRefused(str(error)) from error
        self._sources = sources(setting.frame)
        self._token = ""
        """Token of this run, in the checkpoint and in its commit records."""
        query = Query(
            transactional_id=self._id,
            query_id=self._query_id,
            checkpoint=checkpoint.name,
            is_fresh=checkpoint.latest_batch_id() is None,
            stateful=setting.stateful,
            next_batch_id=checkpoint.next_batch_id(),
            others=checkpoint.used_by_others(self._id, self._cluster_id),
            adopt=options.adopt,
        )
        self._runs: list[TransactionRun] = []
        self._letters: TransactionRun | None = None
        keeps = iter(held)
        for part in setting.parts:
            has_state = setting.stateful and part is setting.parts[-1]
            additions = self._with_state() if has_state else self._without_state()
            name = part.name or self._id
            own_query = replace(query, transactional_id=name, stateful=has_state)
            commit_point = part.sink.commit_point(
                Opening(name=name, runtime=setting.spark, notify=setting.notify, sources=self._sources)
            )
            self._runs.append(TransactionRun(commit_point, own_query, additions, setting.notify, next(keeps, None)))
        if setting.letters is not None:
            name = setting.letters.name
            commit_point = setting.letters.sink.commit_point(
                Opening(name=name, runtime=setting.spark, notify=setting.notify)
            )
            query = replace(query, transactional_id=name, stateful=False)
            self._letters = TransactionRun(commit_point, query, NoAdditions(), setting.notify, next(keeps, None))

    def _with_state(self) -> Additions:
        commit = SparkCommit(self._setting.checkpoint, stateful=True)
        return commit if self._setting.letters is None else _LettersFirst(commit, self._complete_letters)

    def _without_state(self) -> Additions:
        # Where a later sink has the state, this one has nothing to check.
        return NoAdditions() if self._setting.stateful else SparkCommit(self._setting.checkpoint, stateful=False)

    @property
    def _all(self) -> list[TransactionRun]:
        return [*self._runs, *([] if self._letters is None else [self._letters])]

    @property
    def held(self) -> Kept:
        return tuple(run.held for run in self._all)

    @property
    def is_undecided(self) -> bool:
        return any(run.is_undecided for run in self._all)

    def check(self) -> None:
        """See ``run.Run``."""
        for run in self._all:
            run.check()

    def close(self) -> None:
        for run in self._all:
            run.close()

    def start(self) -> None:
        """Acquire the transactional.id, find the pipeline's position, repair the checkpoint. Raises PipelineError."""
        try:
            self._start()
        except CheckpointTaken as error:
            raise PipelineFenced(
                f"another driver runs on the same checkpoint: {error}", "let only one of them run"
            ) from error
        except CheckpointError as error:
            raise PipelineRefused(str(error), "restore the newest checkpoint") from error

    def _start(self) -> None:
        if self._letters is not None:
            # Before the sink with the state, whose last batch it may have to complete.
            self._letters.start()
        ready = [run.start() for run in self._runs][-1]
        checkpoint = self._setting.checkpoint
        self._token = checkpoint.begin_run(self._id, self._cluster_id)
        if ready.record is not None and ready.record.run:
            checkpoint.forget_runs_before(ready.record.run)
        resume = self._resume_from()
        if resume is not None:
            self._resume(resume)

    def _resume_from(self) -> tuple[Any, ...] | None:
        """See ``Committer.resume_from``."""
        ends = [run.resume_from() for run in self._all]
        if any((end is None) != (ends[0] is None) or not are_same(end, ends[0]) for end in ends[1:]):
            raise PipelineRefused(
                f"the checkpoint {self._setting.checkpoint.name} is new, and the sinks of {self._id!r} are committed "
                f"up to different positions: {', '.join('nothing' if end is None else short(end) for end in ends)}",
                "restore the checkpoint: only it knows the batch that one of them has and another has not",
            )
        return ends[0]

    def batch(self, batch: CurrentBatch) -> None:
        """Write one micro-batch, once. Raises PipelineError."""
        planned = self._planned(batch.batch_id)
        self._setting.notify(events.BatchStarted(planned.batch_id, planned.start, planned.end))
        parts = self._setting.parts
        # Each of several parts reads the batch; computed twice, its state would be that of the first.
        frame = batch.frame if len(parts) == 1 else batch.frame.persist()
        already_in = []
        try:
            for part, run in zip(parts, self._runs, strict=True):
                ready = run.batch(planned, SinkBatch(batch.batch_id, FrameRows(part.rows(frame)), batch.execution))
                already_in.append(ready.already_in)
        finally:
            if frame is not batch.frame:
                frame.unpersist()
        has_letters = self._write_letters(planned, batch.execution)
        if all(already_in):
            if not has_letters:
                self._setting.notify(events.BatchAlreadyIn(planned.batch_id))
            # Sources that count on being read are read; nothing is written.
            batch.frame.write.format("noop").mode("append").save()

    def _write_letters(self, planned: Batch, execution: Execution | None) -> bool:
        """The dead letters of the rows that the sinks have rejected; whether they were not in yet."""
        letters = self._setting.letters
        if letters is None or self._letters is None:
            return False
        batch_id = planned.batch_id
        rejected = {number: self._runs[number].rejected(batch_id) for number in letters.sinks}
        frame = letters.frame(self._setting.spark, batch_id, planned.end, rejected)
        if self._letters.batch(planned, SinkBatch(batch_id, FrameRows(frame), execution)).already_in:
            return False
        for event in letters.written(batch_id, rejected):
            self._setting.notify(event)
        return True

    def _complete_letters(self, record: CommitRecord) -> None:
        """Write the dead letters of the last batch of a predecessor. Spark will not run it again, because its state is
        complete."""
        if self._setting.checkpoint.latest_batch_id() == record.batch_id:
            self._write_letters(self._planned(record.batch_id), None)

    def _planned(self, batch_id: int) -> Batch:
        try:
            return self._setting.checkpoint.planned(batch_id, self._token, begins_empty=self._begins_empty())
        except CheckpointError as error:
            raise PipelineRefused(str(error), "restore the newest checkpoint, or please report this query") from error

    def _resume(self, end: tuple[Any, ...]) -> None:
        """Let a fresh checkpoint begin where the committed output ends."""
        kinds = [kind for kind, _ in self._sources]
        if not kinds or not SELF_CONTAINED.issuperset(kinds) or len(kinds) != len(end):
            raise PipelineRefused(
                f"the checkpoint {self._setting.checkpoint.name} is new, but output up to {end} is committed under "
                f"{self._id!r}, and sources {kinds} cannot be started there",
                "restore the checkpoint, or give the pipeline another transactional.id",
            )
        for (_, options), position in zip(self._sources, end, strict=True):
            read, committed = set(topics_of(options)), topics_in(position or {})
            if read and committed and read.isdisjoint(committed):
                raise PipelineRefused(
                    f"output of {', '.join(sorted(committed))} is committed under {self._id!r}, where the query now "
                    f"has a source of {', '.join(sorted(read))}: the order, or the names, of its sources have changed",
                    "restore the checkpoint, or the order of the sources",
                )
        checkpoint, spark, names = self._setting.checkpoint, self._setting.spark, source_names(self._setting.frame)
        if not self._setting.stateful:
            checkpoint.begin_at(end, empty_commit_file(state_format(spark)), names)
            return
        if not self._begins_empty():
            raise PipelineRefused(
                f"a query with state begins with its batch 0, which Spark's own source fills from startingOffsets on; "
                f"output up to {end} is committed under {self._id!r}",
                f"reset the pipeline, and set startingOffsets to {json.dumps(topics_in(end[0]))}",
            )
        # Its batch 0 is run, so that there is state, and empty, so that it is empty.
        checkpoint.plan_first(self._identified(end), offset_metadata(spark), names)

    def _identified(self, end: tuple[Any, ...]) -> tuple[Any, ...]:
        """Positions with the clusters that they are in: those that ``pipeline reset`` has set have none. Raises
        PipelineRefused."""
        positions = []
        for (_, options), position in zip(self._sources, end, strict=True):
            if position is not None and not is_identified(position):
                try:
                    with closing(KafkaCluster(client_settings(options))) as cluster:
                        cluster_id = cluster.cluster_id()
                except KafkaError as error:
                    raise PipelineRefused(str(error)) from error
                position = replace(SourcePosition.from_json(position), cluster_id=cluster_id).to_json()
            positions.append(position)
        return tuple(positions)

    def _begins_empty(self) -> bool:
        """Whether batch 0 has no rows, as with our source always."""
        return all(kind == "einmal" for kind, _ in self._sources)


class _LettersFirst:
    """See ``transaction_run.Additions``: Spark's commit file, once the dead letters of its batch are committed."""

    def __init__(self, commit: SparkCommit, complete: Callable[[CommitRecord], None]) -> None:
        self._commit = commit
        self._complete = complete

    def finish_spark_commit(self, record: CommitRecord) -> Finished | Failed:
        self._complete(record)
        return self._commit.finish_spark_commit(record)

    def commit_text(self, batch: SinkBatch) -> str | None:
        return self._commit.commit_text(batch)
