"""The keeper without Spark: what it answers planning workers and commit workers, on our broker."""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from einmal.client import Admin
from einmal.spark.writer.handover import Proof
from einmal.spark.writer.keeper import StreamKeeper, keeper_of
from einmal.spark.writer.messages import Answer, CommitBatch, GiveUp, PlanBatch, Refusal, Settled, Work
from tests.spark.asked_keeper import ask, token_of
from tests.spark.topics import commit_record, create
from tests.suite.shared import unique

pytestmark = pytest.mark.spark

_ANSWER_S = 60.0


class Query:
    """A query that keeps state, as its keeper sees it."""

    def __init__(
        self, bootstrap: str, directory: Path, guarantee: str = "exactly_once_v2", *, name: str | None = None
    ) -> None:
        self.bootstrap = bootstrap
        self.name = name or unique("kept")
        self.checkpoint = directory
        if name is None:
            create(bootstrap, self.name)
        (directory / "state").mkdir(parents=True)
        (directory / "offsets").mkdir()
        (directory / "metadata").write_text(json.dumps({"id": unique("query")}))
        keeper = keeper_of(
            {
                "kafka.bootstrap.servers": bootstrap,
                "topic": self.name,
                "transactional.id": self.name,
                "checkpointLocation": str(directory),
                "processing.guarantee": guarantee,
            }
        )
        assert isinstance(keeper, StreamKeeper)
        self.keeper = keeper

    @classmethod
    def again(cls, query: Query) -> Query:
        """Another query under the same name, whose new checkpoint is where that of ``query`` was."""
        return cls(query.bootstrap, query.checkpoint, name=query.name)

    def plan(self, batch_id: int, end: dict[str, Any] | None = None) -> Callable[[], Answer]:
        """Ask as a planning worker does; the answer."""
        text = json.dumps({"in": {"0": batch_id}} if end is None else end)
        (self.checkpoint / "offsets" / str(batch_id)).write_text(f"v1\n{{}}\n{text}")
        answers: list[Answer] = []
        threading.Thread(target=self.keeper.answer, args=(PlanBatch(), answers.append), daemon=True).start()

        def answer() -> Answer:
            deadline = time.monotonic() + _ANSWER_S
            while not answers and time.monotonic() < deadline:
                time.sleep(0.01)
            return answers[0]

        return answer

    def token(self, batch_id: int) -> str:
        """Plan a batch that is not in."""
        return token_of(self.plan(batch_id)())

    def ask(self, question: CommitBatch | GiveUp) -> Answer:
        return ask(self.keeper, question)


@pytest.fixture
def query(bootstrap: str, tmp_path: Path) -> Query:
    return Query(bootstrap, tmp_path)


def committed(query: Query, batch_id: int) -> Answer:
    return query.ask(CommitBatch(Proof(batch_id, query.token(batch_id))))


def test_a_batch_that_is_in_has_no_work(query: Query, bootstrap: str, caplog: pytest.LogCaptureFixture) -> None:
    for batch_id in (0, 1):
        assert committed(query, batch_id) == Settled()
    record = commit_record(bootstrap, query.name)
    assert record is not None
    assert (record.batch_id, record.end) == (1, ({"in": {"0": 1}},))
    again = query.plan(1)()
    assert isinstance(again, Work)
    assert again.grant is None
    assert committed(query, 2) == Settled()
    assert caplog.text.count("write_stream(df) has no such gap") == 1


def test_a_proof_of_another_attempt_is_refused(query: Query) -> None:
    first = query.token(0)
    second = query.token(0)
    assert first != second, "Spark has begun again: the first attempt is aborted"
    refused = query.ask(CommitBatch(Proof(0, first)))
    assert isinstance(refused, Refusal)
    assert "has ended" in refused.reason
    assert query.ask(CommitBatch(Proof(0, second))) == Settled()


def test_what_spark_gives_up_is_aborted_and_may_be_planned_again(query: Query) -> None:
    token = query.token(0)
    assert query.ask(GiveUp(0)) == Settled()
    assert isinstance(query.ask(CommitBatch(Proof(0, token))), Refusal)
    assert committed(query, 0) == Settled()


def test_nothing_is_open_for_a_batch_that_nobody_writes(query: Query, bootstrap: str) -> None:
    assert committed(query, 0) == Settled()
    query.token(1)
    with Admin({"bootstrap.servers": bootstrap}) as admin:
        (found,) = admin.describe_transactions([query.name]).values()
    assert (found.state, found.partitions) == ("CompleteCommit", ())


def test_a_batch_after_one_that_was_not_committed_is_refused(query: Query) -> None:
    assert committed(query, 0) == Settled()
    query.token(1)
    refused = query.plan(2)()
    assert isinstance(refused, Refusal)
    assert refused.kind == "PipelineRefused"
    assert "the last committed batch is 0" in refused.reason


@pytest.mark.parametrize(
    ("first", "is_written"),
    [
        ({"in": {"0": 0}, "@cluster=c": {}}, True),
        ({"in": {"0": 3}, "@cluster=c": {}}, False),
        # Of a source whose first batch may have rows: where they begin is not known.
        ({"in": {"0": 0}}, False),
    ],
    ids=["at the record", "elsewhere", "of another source"],
)
def test_a_new_checkpoint_continues_a_name_where_its_empty_first_batch_is_at_the_commit_record(
    query: Query, first: dict[str, Any], is_written: bool
) -> None:
    assert committed(query, 0) == Settled()
    shutil.rmtree(query.checkpoint)
    after = Query.again(query)
    answer = after.plan(0, first)()
    if is_written:
        assert isinstance(answer, Work)
        assert answer.grant is not None
    else:
        assert isinstance(answer, Refusal)
        assert answer.kind == "PipelineRefused"


@pytest.mark.representatives(1)
@pytest.mark.parametrize(("guarantee", "writes_again"), [("at_least_once", True), ("at_most_once", False)])
def test_a_batch_outside_transactions_that_is_planned_again_is_written_as_its_guarantee_has_it(
    bootstrap: str, tmp_path: Path, guarantee: str, writes_again: bool
) -> None:
    query = Query(bootstrap, tmp_path, guarantee)
    first = query.plan(0)()
    assert isinstance(first, Work) and first.grant is not None
    assert first.grant.write_as.identity is None
    assert first.grant.write_as.sends_once is not writes_again
    assert query.ask(CommitBatch(Proof(0, first.grant.token))) == Settled()
    again = query.plan(0)()
    assert isinstance(again, Work)
    assert (again.grant is not None) is writes_again
    assert isinstance(query.plan(1)(), Work)
    with Admin({"bootstrap.servers": bootstrap}) as admin:
        assert query.name not in [each.transactional_id for each in admin.list_transactions()]


def test_a_batch_at_most_once_that_spark_gives_up_is_lost_and_the_next_one_is_written(
    bootstrap: str, tmp_path: Path
) -> None:
    query = Query(bootstrap, tmp_path, "at_most_once")
    token = query.token(0)
    assert query.ask(GiveUp(0)) == Settled()
    refused = query.ask(CommitBatch(Proof(0, token)))
    assert isinstance(refused, Refusal)
    again = query.plan(0)()
    assert isinstance(again, Work) and again.grant is None
    assert committed(query, 1) == Settled()
