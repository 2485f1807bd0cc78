"""What a pipeline's owner changes while a transaction in the topics is decided, and not ended: a driver of a two-phase
commit died between COMMIT and EndTxn."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from einmal.client.descriptions import TransactionDescription
from einmal.commit_protocol.commit_record import COMMIT_TOPIC
from einmal.options.sink import TWO_PHASE_COMMIT
from einmal.pipeline.errors import PipelineRefused
from einmal.sinks.commit_point import Identity, OutcomeUnknown, SinkFailed, SinkFenced
from einmal.sinks.sink import Opening
from einmal.sinks.two_phase import TwoPhaseCommitPoint
from einmal.spark.operate.ownership import KafkaOwnership
from einmal.spark.sinks.frame_rows import FrameRows
from einmal.spark.sinks.kafka.commit_point import KafkaFrameCommitPoint
from einmal.spark.sinks.kafka.sink import KafkaFrameSink
from einmal.spark.sinks.part import Part
from einmal.spark.sinks.two_phase import FrameTwoPhaseSink
from tests.cli.running import Cli
from tests.interop.einmal_broker import EinmalBroker
from tests.sinks.postgres.rig import Rig, record
from tests.sinks.postgres.server import PASSWORD
from tests.spark.topics import create, values
from tests.suite.shared import unique

pytestmark = [pytest.mark.spark, pytest.mark.slow]

DECLARED = """
transactional.id = "{name}"
checkpointLocation = "{directory}/checkpoint"
kafka.bootstrap.servers = "{bootstrap}"
{setting}
[sources.numbers]
subscribe = "topic"
[sinks.events]
from = "numbers"
topic = "{name}"
[sinks.rows]
type = "postgres"
from = "numbers"
url = "{url}"
password = "{password}"
table = "numbers"
"""
SETTING = f'kafka.{TWO_PHASE_COMMIT} = "true"'


class Decided:
    """Batch 0 is committed in the database, and prepared in the topic. ``driver``: which has died, or only sleeps."""

    def __init__(self, broker: EinmalBroker, rig: Rig, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.broker, self.rig = broker, rig
        self.name = unique("decided")
        self.cli = Cli(broker.bootstrap)
        self.file = directory / "pipeline.toml"
        self.directory = directory
        self.declare(SETTING)
        # As the preflight makes it.
        create(broker.bootstrap, self.name, COMMIT_TOPIC)
        self.driver = self.opened()
        self.identity: Identity = self.driver.acquire(None)
        self.driver.read()
        frame = rig.spark.sql("SELECT named_struct('value', 'n') AS topics, named_struct('n', 1L) AS rows")
        self.driver.stage(self.identity, 0, FrameRows(frame))
        self.driver.record(self.identity, record(0, 2, self.name))
        with monkeypatch.context() as patched:
            patched.setattr(KafkaFrameCommitPoint, "commit", _lost)
            with pytest.raises(OutcomeUnknown):
                self.driver.commit(self.identity)
        assert (self.in_topic(), rig.numbers()) == ([], [1])

    def declare(self, setting: str) -> None:
        self.file.write_text(
            DECLARED.format(
                name=self.name,
                directory=self.directory,
                bootstrap=self.broker.bootstrap,
                url=self.rig.server.url_of(self.rig.database),
                password=PASSWORD,
                setting=setting,
            )
        )

    def opened(self) -> TwoPhaseCommitPoint:
        client = {"bootstrap.servers": self.broker.bootstrap, TWO_PHASE_COMMIT: "true"}
        topics = Part(KafkaFrameSink(client, self.name), "topics")
        commit_point = FrameTwoPhaseSink(topics, Part(self.rig.sink(), "rows")).commit_point(
            Opening(name=self.name, runtime=self.rig.spark)
        )
        assert isinstance(commit_point, TwoPhaseCommitPoint)
        return commit_point

    def in_topic(self) -> list[str]:
        return values(self.broker.bootstrap, self.name)

    def transaction(self) -> TransactionDescription | None:
        with KafkaOwnership({"bootstrap.servers": self.broker.bootstrap}) as owned:
            return owned.transaction(self.name)

    def change(self, verb: str, *arguments: str, status: int = 0) -> list[str]:
        return self.cli(
            "pipeline", verb, self.name, *arguments, "--file", str(self.file), "--yes", status=status
        ).errors


def _lost(*_: object) -> None:
    raise SinkFailed("lost answer")


@pytest.fixture
def decided(
    two_phase: EinmalBroker, rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spark: SparkSession
) -> Iterator[Decided]:
    decided = Decided(two_phase, rig, tmp_path, monkeypatch)
    with closing(decided.driver):
        yield decided


CHANGES: dict[str, Callable[[Decided], list[str]]] = {
    "reset": lambda decided: decided.change("reset"),
    "reset to a position": lambda decided: decided.change("reset", "--to", '{"topic":{"0":0}}'),
    "adopt": lambda decided: decided.change("adopt", "--checkpoint", str(decided.directory / "other")),
}


@pytest.mark.representatives(1)
@pytest.mark.parametrize("how", CHANGES)
def test_a_transaction_that_the_database_has_committed_is_committed_before_its_record_is_changed(
    decided: Decided, how: str
) -> None:
    (decided.directory / "other").mkdir()
    said = CHANGES[how](decided)
    assert any("in the topics, as the database has" in line for line in said), said
    assert decided.in_topic() == ["n"]
    # And the next run finds nothing to abort, and the driver of before does nothing any more.
    with closing(decided.opened()) as following:
        following.acquire(None)
        found = following.read()
    assert found is None if how == "reset" else found is not None and not found.prepared
    assert decided.in_topic() == ["n"]
    with pytest.raises(SinkFenced):
        decided.driver.record(decided.identity, record(1, 0, decided.name))


def test_the_record_is_not_changed_without_the_topics_that_it_decides_about(decided: Decided) -> None:
    decided.declare("")
    said = decided.change("reset", status=1)
    assert any("transaction" in line and TWO_PHASE_COMMIT in line for line in said), said
    with closing(decided.opened()) as following:
        following.acquire(None)
        assert following.read() is not None
    assert decided.in_topic() == ["n"]


def test_an_unreadable_record_decides_nothing_and_the_transaction_stays_open(decided: Decided) -> None:
    decided.rig.rows('UPDATE einmal_commits SET record = \'{"version": 99, "batch_id": 0}\'')
    said = decided.change("reset", status=1)
    assert any("which stays open" in line for line in said), said
    transaction = decided.transaction()
    assert transaction is not None and transaction.partitions


def test_after_a_reset_of_the_database_a_reset_forgets_the_batch_that_the_topics_had_before_two_phase_commit(
    two_phase: EinmalBroker, rig: Rig
) -> None:
    name = unique("apart")
    create(two_phase.bootstrap, name)
    client = {"bootstrap.servers": two_phase.bootstrap}
    apart = record(3, 2, name)
    with KafkaOwnership(client) as owned:
        owned.change(name, None, apart)
    topics = Part(KafkaFrameSink(client | {TWO_PHASE_COMMIT: "true"}, name), "topics")

    def acquire() -> None:
        sink = FrameTwoPhaseSink(topics, Part(rig.sink(), "rows"))
        with closing(sink.commit_point(Opening(name=name, runtime=rig.spark))) as commit_point:
            commit_point.acquire(None)

    with pytest.raises(PipelineRefused) as refused:
        acquire()
    assert f"einmal pipeline reset {name}, without --file" in refused.value.hint
    Cli(two_phase.bootstrap)("pipeline", "reset", name, "--yes")
    acquire()
