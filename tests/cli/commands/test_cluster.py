"""Claims about ``einmal cluster``, on our broker and on Apache Kafka."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from uuid import UUID

import jsonschema_rs
import pytest

from einmal.client import Consumer, Producer
from einmal.client.cores.metadata_cache import BrokerAddress, PartitionMetadata, TopicMetadata
from einmal.client.descriptions import ClusterDescription
from einmal.commit_protocol.commit_record import COMMIT_TOPIC, ingester_checkpoint, mirror_checkpoint
from einmal.inspection.document import schema
from einmal.inspection.health import health_of
from tests.cli.pipeline_owner import PipelineOwner
from tests.cli.running import Cli
from tests.suite.shared import shared, unique

pytestmark = pytest.mark.system


@pytest.fixture(params=["einmal-commands", pytest.param("apache", marks=pytest.mark.interop)])
def cli(request: pytest.FixtureRequest) -> Cli:
    return Cli(shared(request.param).bootstrap)


def test_the_whole_read_model_is_one_document_and_as_its_schema_has_it(cli: Cli) -> None:
    name = unique("looked-at")
    cli("topic", "create", name, "-p", "1")
    cli("topic", "produce", name, stdin="x\n")
    with (
        Producer(bootstrap_servers=cli.bootstrap, transactional_id=name) as producer,
        Consumer(bootstrap_servers=cli.bootstrap, group_id=name, auto_offset_reset="earliest") as consumer,
    ):
        consumer.subscribe([name])
        while not consumer.poll(100):
            pass
        consumer.commit()
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(name, "open").result()
        found = cli("cluster", "info", "--format", "json").document
        producer.abort_transaction()
    jsonschema_rs.validate(schema("ClusterView"), found)
    (partition,) = [each for each in found["partitions"] if each["topic"] == name]
    assert (partition["log_start_offset"], partition["last_stable_offset"], partition["high_watermark"]) == (0, 1, 2)
    assert [each["transaction_start_offset"] for each in partition["producers"]].count(1) == 1
    assert (partition["log_end_offset"], partition["unknown"]) == (2, {})
    (transaction,) = [each for each in found["transactions"] if each["transactional_id"] == name]
    assert (transaction["state"], transaction["partitions"]) == ("Ongoing", [f"{name}-0"])
    (group,) = [each for each in found["groups"] if each["group_id"] == name]
    assert [(each["offset"], each["unread_offsets"], each["held_back"]) for each in group["offsets"]] == [(1, 0, 1)]
    assert len(group["members"]) == 1


@pytest.fixture
def owner(cli: Cli) -> Iterator[PipelineOwner]:
    owner = PipelineOwner({"bootstrap.servers": cli.bootstrap}, unique("owned"))
    yield owner
    owner.close()


def pipeline(cli: Cli, name: str) -> Any:
    """A pipeline in the read model."""
    whole = cli("cluster", "info", "--format", "json").document
    jsonschema_rs.validate(schema("ClusterView"), whole)
    (only,) = [each for each in whole["pipelines"] if each["name"] == name]
    return only


def test_a_pipeline_has_its_batch_positions_and_transaction(cli: Cli, owner: PipelineOwner) -> None:
    topic = f"of-{owner.name}"
    cli("topic", "create", topic, "-p", "1")
    cli("topic", "produce", topic, stdin="a\nb\nc\n")
    owner.commit(4, {topic: {"0": 1}})
    owner.write(5, {topic: {"0": 2}})
    shown = pipeline(cli, owner.name)
    position = {"topic": topic, "partition": 0, "offset": 1, "unread_offsets": 2, "unknown": {}}
    assert (shown["kind"], shown["batch_id"], shown["records"], shown["checkpoint"]) == ("pipeline", 4, 5, "file:/c")
    assert (shown["positions"], shown["unread_offsets"], shown["unknown"]) == ([position], 2, {})
    assert shown["transaction_state"] == "Ongoing"
    assert shown["transaction_age_ms"] >= 0 and shown["committed_at"] > 0


@pytest.mark.parametrize(
    ("checkpoint", "kind"),
    [(ingester_checkpoint("app"), "ingester"), (mirror_checkpoint("A->B"), "mirror"), ("file:/mirror c", "pipeline")],
)
def test_ingesters_and_mirrors_are_named_so(cli: Cli, owner: PipelineOwner, checkpoint: str, kind: str) -> None:
    owner.commit(1, {}, checkpoint)
    assert pipeline(cli, owner.name)["kind"] == kind


def elsewhere(topic: str, *identity: str) -> dict[str, dict[str, int]]:
    return {topic: {"0": 1}} | {f"@{mark}": {} for mark in identity}


def test_a_position_that_is_not_one_of_this_cluster_has_no_lag_and_a_reason(cli: Cli, owner: PipelineOwner) -> None:
    topic = f"of-{owner.name}"
    cli("topic", "create", topic, "-p", "1")
    other_id = "AAAAAAAAAAAAAAAAAAAAAQ"
    for end, why in (
        (elsewhere(topic, "cluster=another"), "it is in the cluster another"),
        (elsewhere(f"gone-{topic}"), "there is no such topic here"),
        (elsewhere(topic, f"topic={topic}={other_id}"), "the topic was deleted, and created again"),
        ({topic: {"7": 1}}, "there is no such partition"),
    ):
        owner.commit(1, end)
        shown = pipeline(cli, owner.name)
        assert (shown["unread_offsets"], shown["unknown"]["unread_offsets"]) == (None, why)
        assert [each["unknown"] for each in shown["positions"]] == [{"unread_offsets": why}]


@pytest.mark.parametrize(
    "end", [{"origin": "file", "position": {"x": 1}}, {"t": {"0": "many"}}, {"t": {"first": 1}}, {"t": 7}]
)
def test_a_position_in_something_else_has_a_reason(cli: Cli, owner: PipelineOwner, end: Any) -> None:
    owner.commit(1, end)
    shown = pipeline(cli, owner.name)
    assert (shown["batch_id"], shown["positions"], shown["unread_offsets"]) == (1, None, None)
    assert "not Kafka topics" in shown["unknown"]["positions"]
    row = cli("pipeline", "status", owner.name, "--format", "json").document[0]
    assert (row["batch"], row["lag"]) == (1, None)
    assert cli("pipeline", "status", "--format", "json").document


def test_a_record_that_cannot_be_read_is_shown_with_the_reason(cli: Cli, owner: PipelineOwner) -> None:
    name = unique("broken")
    with Producer(bootstrap_servers=cli.bootstrap) as producer:
        producer.send(COMMIT_TOPIC, b"{}", key=name).result()
    shown = pipeline(cli, name)
    assert (shown["kind"], shown["batch_id"]) == (None, None)
    assert "outside of a transaction" in shown["unknown"]["batch_id"]


def test_a_topic_that_cannot_be_described_hides_no_other_pipeline(cli: Cli, owner: PipelineOwner) -> None:
    owner.commit(1, {"no topic's name": {"0": 1}})
    why = pipeline(cli, owner.name)["unknown"]["unread_offsets"]
    assert "INVALID_TOPIC" in why or "there is no such topic here" in why
    owner.commit(2, {})
    assert pipeline(cli, owner.name)["unread_offsets"] == 0


def test_a_misspelt_security_setting_is_refused_with_json_too(cli: Cli) -> None:
    for output in ("text", "json"):
        refused = cli("cluster", "info", "-X", "security.protcol=SSL", "--format", output, status=1)
        assert "security.protocol" in " ".join(refused.errors)


def test_brokers_are_listed(cli: Cli) -> None:
    lines = cli("cluster", "info").lines
    assert lines[0] == "CLUSTER"
    host, port = cli.bootstrap.split(":")
    assert any(line.split()[1:3] == [host, port] for line in lines)


def test_a_healthy_cluster_has_status_0(cli: Cli) -> None:
    found = cli("cluster", "health", "--format", "json").document
    jsonschema_rs.validate(schema("ClusterHealth"), found)
    assert found["is_healthy"] is True
    assert "have a leader and all their replicas in sync" in cli("cluster", "health").lines[0]


def test_a_broker_s_own_settings_are_shown_and_on_request_all(cli: Cli) -> None:
    own = {each["key"] for each in cli("cluster", "config", "--format", "json").document}
    every = {each["key"]: each for each in cli("cluster", "config", "--all", "--format", "json").document}
    assert own < every.keys()
    assert "log.dirs" in every or "log.dir" in every
    assert cli("cluster", "config", "--broker", "77", status=1).errors[0].startswith("error: BROKER_ID_NOT_REGISTERED")


def test_what_is_missing_is_named() -> None:
    cluster = ClusterDescription("id", -1, (BrokerAddress(1, "h", 1),), 2)
    partitions = {0: PartitionMetadata(0, -1, 0, (1, 2), (1,)), 1: PartitionMetadata(1, 1, 0, (1,), (1,))}
    found = health_of(cluster, [TopicMetadata("t", UUID(int=1), partitions)])
    assert (found.is_healthy, found.leaderless, found.under_replicated) == (False, ("t-0",), ("t-0",))
    assert (found.missing_brokers, found.controller) == ((2,), None)
    assert found.verdict.startswith("1 partitions have no leader, 1 lack replicas in sync, 1 brokers are missing")


def test_log_levels_are_shown_and_set_for_one_broker(cli: Cli) -> None:
    loggers = {row["logger"]: row for row in cli("cluster", "loggers", "--format", "json").document}
    broker, level = str(loggers["root"]["broker"]), loggers["root"]["level"]
    changed = cli("cluster", "loggers", "--broker", broker, "--set", f"root={level.lower()}", "--format", "json")
    assert changed.document == [loggers["root"]]
    unknown = cli("cluster", "loggers", "--broker", broker, "--set", "no.such=DEBUG", status=1)
    assert "INVALID_CONFIG" in unknown.errors[0] and "Logger no.such does not exist!" in unknown.errors[0]
    refused = cli("cluster", "loggers", "--broker", broker, "--unset", "root", status=1)
    assert "Removing the log level of the root logger is not allowed" in refused.errors[0]
    assert "need --broker" in "".join(cli("cluster", "loggers", "--set", "root=INFO", status=2).errors)
