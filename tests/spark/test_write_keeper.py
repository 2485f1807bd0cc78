"""The keeper of a batch write without Spark: what it answers planning workers and commit workers, on our broker."""

from __future__ import annotations

from pathlib import Path
from queue import Queue
from threading import Thread

import pytest

from einmal.commit_protocol.claims import Output
from einmal.options.sink import new_write_name, write_options
from einmal.options.values import OptionError
from einmal.spark.writer.handover import Proof
from einmal.spark.writer.keeper import StreamKeeper, keeper_of
from einmal.spark.writer.messages import Answer, CommitBatch, GiveUp, PlanBatch, Refusal, Settled, Work
from einmal.spark.writer.write_keeper import WriteKeeper
from tests.ports import loopback_ports
from tests.spark.asked_keeper import ask, token_of
from tests.spark.topics import commit_record, create
from tests.suite.shared import unique

pytestmark = pytest.mark.spark

_ANSWER_S = 60.0


class Copy:
    """One copy of a job that writes a version of a series, as its keeper sees it."""

    def __init__(self, bootstrap: str, series: str, version: int | None) -> None:
        options = {"kafka.bootstrap.servers": bootstrap, "topic": series}
        if version is not None:
            options |= {"transactional.id": series, "txnVersion": str(version)}
        self.options = write_options(options, new_write_name)
        self.keeper = WriteKeeper(self.options)

    def plan(self) -> Answer:
        answers: Queue[Answer] = Queue()
        Thread(target=self.keeper.answer, args=(PlanBatch(), answers.put), daemon=True).start()
        return answers.get(timeout=_ANSWER_S)

    def token(self) -> str:
        """Plan a write that is not in."""
        return token_of(self.plan())

    def ask(self, question: CommitBatch | GiveUp) -> Answer:
        return ask(self.keeper, question)


@pytest.fixture
def series(bootstrap: str) -> str:
    name = unique("series")
    create(bootstrap, name)
    return name


def test_a_version_is_committed_once(bootstrap: str, series: str) -> None:
    first = Copy(bootstrap, series, 7)
    token = first.token()
    assert first.ask(CommitBatch(Proof(7, token))) == Settled()
    record = commit_record(bootstrap, series)
    assert record is not None
    assert record.batch_id == 7
    again = Copy(bootstrap, series, 7).plan()
    assert isinstance(again, Work)
    assert again.grant is None
    refused = Copy(bootstrap, series, 6).plan()
    assert isinstance(refused, Refusal)
    assert "txnVersion 6" in refused.reason


def test_claims_are_answered_at_the_port_of_the_option(bootstrap: str, series: str, tmp_path: Path) -> None:
    (port,) = loopback_ports(1)
    given = {"kafka.bootstrap.servers": bootstrap, "topic": series, "spark.einmal.claims.port": str(port)}
    stream = given | {"transactional.id": series, "checkpointLocation": str(tmp_path)}
    for options, kind in ((given, WriteKeeper), (stream, StreamKeeper)):
        keeper = keeper_of(options)
        assert isinstance(keeper, kind)
        assert port <= keeper.claims_port < port + 16
    with pytest.raises(OptionError, match="claims.port"):
        keeper_of(given | {"spark.einmal.claims.port": "any"})


def test_a_second_copy_fences_the_first(bootstrap: str, series: str) -> None:
    first, second = Copy(bootstrap, series, 1), Copy(bootstrap, series, 1)
    old, new = first.token(), second.token()
    refused = first.ask(CommitBatch(Proof(1, old)))
    assert isinstance(refused, Refusal)
    assert refused.kind == "PipelineFenced"
    assert second.ask(CommitBatch(Proof(1, new))) == Settled()


def test_a_write_without_a_version_leaves_no_record(bootstrap: str, series: str) -> None:
    copy = Copy(bootstrap, series, None)
    assert copy.ask(CommitBatch(Proof(0, copy.token()))) == Settled()
    assert commit_record(bootstrap, copy.options.transactional_id) is None


def test_outputs_that_were_never_claimed_are_not_committed(bootstrap: str, series: str) -> None:
    copy = Copy(bootstrap, series, 1)
    refused = copy.ask(CommitBatch(Proof(1, copy.token(), (Output(series, 0, 0, 3, 4),))))
    assert isinstance(refused, Refusal)
    assert commit_record(bootstrap, series) is None


def test_a_write_that_spark_gives_up_leaves_nothing(bootstrap: str, series: str) -> None:
    copy = Copy(bootstrap, series, 1)
    token = copy.token()
    assert copy.ask(GiveUp(1)) == Settled()
    assert isinstance(copy.ask(CommitBatch(Proof(1, token))), Refusal)
    assert commit_record(bootstrap, series) is None
