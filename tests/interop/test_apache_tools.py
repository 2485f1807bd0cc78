"""Apache Kafka's own command line tools look at, and operate, three brokers of ours."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest
from confluent_kafka import Consumer, Message, Producer

from tests.cli.running import Cli
from tests.interop.apache_kafka import KafkaUnavailable
from tests.interop.apache_tools import ApacheTools
from tests.interop.cluster import Cluster
from tests.interop.topics import at_last
from tests.suite.shared import unique

pytestmark = pytest.mark.interop

TOPICS: Final = "TopicCommand"
ELECTIONS: Final = "LeaderElectionCommand"
REASSIGNMENT: Final = "reassign.ReassignPartitionsCommand"
GROUPS: Final = "consumer.group.ConsumerGroupCommand"
TRANSACTIONS: Final = "TransactionsCommand"
CONFIGS: Final = "kafka.admin.ConfigCommand"


@pytest.fixture(scope="module")
def _tools(_three_brokers: Cluster) -> Iterator[ApacheTools]:
    try:
        tools = ApacheTools(_three_brokers.bootstrap)
    except KafkaUnavailable as reason:
        pytest.skip(str(reason))
    yield tools
    tools.close()


@pytest.fixture
def tools(_tools: ApacheTools, three_brokers: Cluster) -> ApacheTools:
    """They find all three brokers."""
    return _tools


@pytest.fixture
def cluster(three_brokers: Cluster) -> Cluster:
    return three_brokers


@pytest.fixture
def topic() -> str:
    return unique("topic")


def settled(ask: Callable[[], str], *signs: str) -> str:
    """Ask until the output contains all of these."""
    return at_last(ask, lambda said: all(sign in said for sign in signs))


def assignment(path: Path, *partitions: tuple[str, int, list[int]]) -> str:
    """A file that names these partitions' replicas."""
    told = [{"topic": topic, "partition": partition, "replicas": replicas} for topic, partition, replicas in partitions]
    path.write_text(json.dumps({"version": 1, "partitions": told}))
    return str(path)


# --- the cluster ------------------------------------------------------------------------------------------------------


def test_every_broker_and_the_quorum_are_described(cluster: Cluster, tools: ApacheTools) -> None:
    versions = tools("BrokerApiVersionsCommand")
    assert versions.count("isFenced: false") == 3
    assert "Produce(0): 0 to 13 [usable: 13]" in versions
    assert "UNKNOWN" not in versions
    assert re.search(r"Cluster ID: [\w-]{22}\n", tools("ClusterTool", "cluster-id"))
    assert tools("ClusterTool", "list-endpoints").count("unfenced") == 3

    status = tools.of("MetadataQuorumCommand", "describe", "--status")
    assert re.search(rf"LeaderId: +{cluster.controller()}\n", status)
    assert status.count("CONTROLLER://127.0.0.1:") == 3
    replication = tools.of("MetadataQuorumCommand", "describe", "--replication")
    assert len(re.findall(r"^[123] .*(?:Leader|Follower)", replication, re.M)) == 3
    assert replication.count("Leader") == 1


@pytest.mark.long
def test_features_are_described_and_moved(tools: ApacheTools) -> None:
    def finalized() -> str | None:
        found = re.search(r"transaction.version .* FinalizedVersionLevel: (\d)", tools.of("FeatureCommand", "describe"))
        return found and found[1]

    assert finalized() == "2"
    tools.of("FeatureCommand", "downgrade", "--feature", "transaction.version=1")
    at_last(finalized, lambda level: level == "1")
    tools.of("FeatureCommand", "upgrade", "--feature", "transaction.version=2")
    at_last(finalized, lambda level: level == "2")
    code, text = tools.run(
        "FeatureCommand", "--bootstrap-server", tools.bootstrap, "upgrade", "--feature", "no.such.feature=1"
    )
    assert code != 0 and "Invalid update version 1 for feature no.such.feature" in text


def test_settings_are_described_and_altered(cluster: Cluster, tools: ApacheTools, topic: str) -> None:
    cluster.create_topic(topic)
    of_topic = ("--entity-type", "topics", "--entity-name", topic)
    tools(CONFIGS, "--alter", *of_topic, "--add-config", "retention.ms=12345,cleanup.policy=[compact,delete]")
    settled(lambda: tools(CONFIGS, "--describe", *of_topic), "retention.ms=12345", "cleanup.policy=compact,delete")
    tools(CONFIGS, "--alter", *of_topic, "--delete-config", "retention.ms")
    at_last(lambda: tools(CONFIGS, "--describe", *of_topic), lambda told: "retention.ms" not in told)
    assert "Unknown topic config name: nonsense" in tools.refused(
        CONFIGS, "--alter", *of_topic, "--add-config", "nonsense=1"
    )
    of_all = ("--entity-type", "brokers", "--entity-default")
    tools(CONFIGS, "--alter", *of_all, "--add-config", "log.retention.ms=86400001")
    settled(lambda: tools(CONFIGS, "--describe", *of_all), "log.retention.ms=86400001")
    tools(CONFIGS, "--alter", *of_all, "--delete-config", "log.retention.ms")
    at_last(lambda: tools(CONFIGS, "--describe", *of_all), lambda told: "log.retention.ms" not in told)
    assert "dynamically" in tools.refused(CONFIGS, "--alter", *of_all, "--add-config", "num.partitions=5")
    of_broker = tools(CONFIGS, "--describe", "--entity-type", "brokers", "--entity-name", "1", "--all")
    assert "default.replication.factor=3 sensitive=false synonyms={STATIC_BROKER_CONFIG" in of_broker


def test_log_levels_of_each_broker_are_changed_at_run_time(cluster: Cluster, tools: ApacheTools) -> None:
    """Also of one that is not the active controller: the request is not forwarded."""
    logger = "einmal.broker.coordinators"
    for node_id in cluster.nodes:
        of_broker = ("--entity-type", "broker-loggers", "--entity-name", str(node_id))
        tools(CONFIGS, "--alter", *of_broker, "--add-config", f"{logger}=DEBUG")
        assert f"{logger}=DEBUG sensitive=false synonyms={{}}" in tools(CONFIGS, "--describe", *of_broker)
        tools(CONFIGS, "--alter", *of_broker, "--delete-config", logger)
        assert f"{logger}=INFO sensitive=false" in tools(CONFIGS, "--describe", *of_broker)
    assert "not a supported log level" in tools.refused(CONFIGS, "--alter", *of_broker, "--add-config", "root=LOUD")
    assert "no.such" in tools.refused(CONFIGS, "--alter", *of_broker, "--add-config", "no.such=DEBUG")


# --- topics and their replicas ----------------------------------------------------------------------------------------


def test_topics_are_created_described_and_widened(tools: ApacheTools, topic: str) -> None:
    named = ("--topic", topic)
    tools(TOPICS, "--create", *named, "--partitions", "2", "--replication-factor", "3", "--config", "segment.ms=9999")
    told = settled(lambda: tools(TOPICS, "--describe", *named), "PartitionCount: 2", "segment.ms=9999")
    assert len(re.findall(r"Leader: [123]\tReplicas: [123],[123],[123]\tIsr: [123],[123],[123]", told)) == 2
    tools(TOPICS, "--alter", *named, "--partitions", "4")
    settled(lambda: tools(TOPICS, "--describe", *named), "PartitionCount: 4", "Partition: 3\tLeader: ")
    assert "already exists" in tools.refused(TOPICS, "--create", *named)
    assert "only 3 broker(s)" in tools.refused(TOPICS, "--create", "--topic", "wide", "--replication-factor", "4")
    tools(TOPICS, "--delete", *named)
    at_last(lambda: tools(TOPICS, "--list").split(), lambda listed: topic not in listed)


@pytest.mark.long
def test_a_dead_broker_is_detected_and_leads_again_on_request(cluster: Cluster, tools: ApacheTools, topic: str) -> None:
    cluster.create_topic(topic)
    preferred = cluster.partition(topic).replica_nodes[0]
    election = ("--election-type", "preferred", "--topic", topic, "--partition", "0")
    cluster.kill(preferred)
    try:
        for sign in ("--under-replicated-partitions", "--at-min-isr-partitions"):
            settled(lambda sign=sign: tools(TOPICS, "--describe", sign), f"Topic: {topic}\t")  # type: ignore[misc]
        assert f"Topic: {topic}\t" not in tools(TOPICS, "--describe", "--under-min-isr-partitions")
        endpoints = tools("ClusterTool", "list-endpoints", "--include-fenced-brokers")
        assert re.search(rf"^{preferred} .* fenced ", endpoints, re.M)
        assert "preferred leader is not in sync" in tools.refused(ELECTIONS, *election)
    finally:
        cluster.start_node(preferred)
    cluster.wait_until_in_sync(topic)
    at_last(
        lambda: tools(TOPICS, "--describe", "--under-replicated-partitions"),
        lambda told: f"Topic: {topic}\t" not in told,
    )
    assert cluster.leader(topic) != preferred
    assert f"Successfully completed leader election (PREFERRED) for partitions {topic}-0" in tools(ELECTIONS, *election)
    at_last(lambda: cluster.leader(topic), lambda leader: leader == preferred)


@pytest.mark.long
def test_only_an_unclean_election_elects_a_replica_without_the_end_of_the_log(
    cluster: Cluster, tools: ApacheTools, topic: str, tmp_path: Path
) -> None:
    cluster.create_topic(topic, replicas=2, configs={"min.insync.replicas": "1"})
    lasts, lacks = (cluster.leader(topic), cluster.followers(topic)[0])
    cluster.stop_node(lacks)
    at_last(lambda: list(cluster.partition(topic).isr_nodes), lambda isr: isr == [lasts])
    lines = tmp_path / "lines"
    lines.write_text("lost\n")
    tools("ConsoleProducer", "--topic", topic, "--command-property", "acks=all", reads=lines)
    cluster.kill(lasts)
    cluster.start_node(lacks)
    try:
        settled(lambda: tools(TOPICS, "--describe", "--unavailable-partitions"), f"Topic: {topic}\t")
        assert "could not be elected" in tools.refused(
            ELECTIONS, "--election-type", "preferred", "--topic", topic, "--partition", "0"
        )
        tools(ELECTIONS, "--election-type", "unclean", "--topic", topic, "--partition", "0")
        assert cluster.leader(topic) == lacks
    finally:
        cluster.start_node(lasts)
    cluster.wait_until_in_sync(topic)
    assert tools("GetOffsetShell", "--topic", topic).split() == [f"{topic}:0:0"]


@pytest.mark.long
def test_partitions_are_reassigned(cluster: Cluster, tools: ApacheTools, topic: str, tmp_path: Path) -> None:
    cluster.create_topic(topic, 2)
    tools("VerifiableProducer", "--topic", topic, "--max-messages", "200", "--acks", "-1")
    wanted = assignment(tmp_path / "wanted.json", (topic, 0, [3, 2]), (topic, 1, [1]))
    moved = tools(REASSIGNMENT, "--execute", "--reassignment-json-file", wanted)
    assert f"Successfully started partition reassignments for {topic}-0,{topic}-1" in moved
    before = json.loads(next(line for line in moved.splitlines() if line.startswith('{"version"')))
    assert [sorted(each["replicas"]) for each in before["partitions"]] == [[1, 2, 3], [1, 2, 3]]
    settled(
        lambda: tools(REASSIGNMENT, "--verify", "--reassignment-json-file", wanted),
        f"Reassignment of partition {topic}-0 is completed.",
        f"Reassignment of partition {topic}-1 is completed.",
        f"Clearing topic-level throttles on topic {topic}",
    )
    assert "No partition reassignments found" in tools(REASSIGNMENT, "--list")
    told = tools(TOPICS, "--describe", "--topic", topic)
    assert "Partition: 0\tLeader: 3\tReplicas: 3,2\t" in told or "Leader: 2\tReplicas: 3,2\t" in told
    assert "Partition: 1\tLeader: 1\tReplicas: 1\tIsr: 1\t" in told
    listed = tools("LogDirsCommand", "--describe", "--topic-list", topic)
    folders = json.loads(next(line for line in listed.splitlines() if line.startswith("{")))["brokers"]
    held = {each["broker"]: [held["partition"] for held in each["logDirs"][0]["partitions"]] for each in folders}
    assert held == {1: [f"{topic}-1"], 2: [f"{topic}-0"], 3: [f"{topic}-0"]}


# --- data, groups, transactions ---------------------------------------------------------------------------------------


def test_what_its_producers_write_its_consumers_read_and_groups_are_operated(
    cluster: Cluster, tools: ApacheTools, topic: str, tmp_path: Path
) -> None:
    cluster.create_topic(topic, 2)
    lines = tmp_path / "lines"
    lines.write_text("".join(f"key {each}:line {each}\n" for each in range(20)))
    keys = ("--reader-property", "parse.key=true", "--reader-property", "key.separator=:")
    tools("ConsoleProducer", "--topic", topic, "--command-property", "acks=all", *keys, reads=lines)
    tools("VerifiableProducer", "--topic", topic, "--max-messages", "30", "--acks", "-1")
    group = f"g-{topic}"
    read = tools(
        "consumer.ConsoleConsumer", "--topic", topic, "--from-beginning", "--max-messages", "50", "--group", group
    )
    assert {*map(str, range(30)), *(f"line {each}" for each in range(20))} <= set(read.splitlines())

    assert re.search(rf"{group} +Empty", tools(GROUPS, "--list", "--state"))
    lag = r"(\d+) +(\d+) +(\d+) +- "
    told = re.findall(rf"{group} +{topic} +\d +{lag}", tools(GROUPS, "--describe", "--group", group))
    assert sum(int(position) for position, _, _ in told) == 50
    assert [lag for _, _, lag in told] == ["0", "0"]
    tools(GROUPS, "--group", group, "--reset-offsets", "--to-earliest", "--topic", topic, "--execute")
    told = re.findall(rf"{group} +{topic} +\d +{lag}", tools(GROUPS, "--describe", "--group", group, "--offsets"))
    assert sum(int(lag) for _, _, lag in told) == 50
    assert re.search(rf"{group} .* Empty +0\n", tools(GROUPS, "--describe", "--group", group, "--state"))
    assert "was successful" in tools(GROUPS, "--delete", "--group", group)
    assert group not in tools("GroupsCommand", "--list")


def test_lag_reaches_0_where_its_tool_counts_the_marker(cluster: Cluster, tools: ApacheTools, topic: str) -> None:
    cluster.create_topic(topic)
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "transactional.id": topic})
    producer.init_transactions()
    producer.begin_transaction()
    for number in range(10):
        producer.produce(topic, str(number))
    producer.commit_transaction()
    group = f"g-{topic}"
    consumer = Consumer(
        {"bootstrap.servers": cluster.bootstrap, "group.id": group, "auto.offset.reset": "earliest",
         "enable.auto.commit": False}
    )  # fmt: skip
    consumer.subscribe([topic])
    read: list[Message] = []
    while len(read) < 10:
        read += consumer.consume(10, 1.0)
    # As many programs do: the position after the last record that was processed.
    consumer.commit(message=read[-1], asynchronous=False)
    consumer.close()
    told = tools(GROUPS, "--describe", "--group", group)
    assert re.findall(rf"{group} +{topic} +0 +(\d+) +(\d+) +(\d+) ", told) == [("10", "11", "1")]
    lag = Cli(cluster.bootstrap)("group", "lag", group, "--format", "json").document
    assert (lag["unread"], lag["behind"], lag["partitions"][0]["markers"]) == (0, 0, 1)


def test_its_transactional_copier_copies_once(cluster: Cluster, tools: ApacheTools, topic: str) -> None:
    cluster.create_topic(topic)
    cluster.create_topic(f"{topic}-copy")
    tools("VerifiableProducer", "--topic", topic, "--max-messages", "60", "--acks", "-1")
    name = f"copier-{topic}"
    arguments = ["--input-topic", topic, "--input-partition", "0", "--output-topic", f"{topic}-copy"]
    arguments += ["--max-messages", "60", "--transaction-size", "7", "--enable-random-aborts"]
    arguments += ["--consumer-group", name, "--transactional-id", name]
    code, text = tools.run("TransactionalMessageCopier", "--broker-list", cluster.bootstrap, *arguments)
    assert code == 0 and '"ShutdownComplete"' in text
    read = tools(
        "consumer.ConsoleConsumer", "--topic", f"{topic}-copy", "--from-beginning", "--max-messages", "60",
        "--isolation-level", "read_committed", "--timeout-ms", "120000",
    )  # fmt: skip
    assert [line for line in read.splitlines() if line.isdigit()] == [str(each) for each in range(60)]
    assert re.search(rf"{name}\s+[123]\s+\d+\s+CompleteCommit", tools.of(TRANSACTIONS, "list"))
    assert "CompleteCommit" in tools.of(TRANSACTIONS, "describe", "--transactional-id", name)


def test_an_open_transaction_is_found_and_ended(cluster: Cluster, tools: ApacheTools, topic: str) -> None:
    cluster.create_topic(topic)
    name = f"open-{topic}"
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "transactional.id": name})
    producer.init_transactions(120)
    producer.begin_transaction()
    producer.produce(topic, b"x", partition=0)
    producer.flush(120)
    place = ("--topic", topic, "--partition", "0")
    assert re.search(
        rf"{name}\s.*\sOngoing\s.*\s{topic}-0", tools.of(TRANSACTIONS, "describe", "--transactional-id", name)
    )
    assert re.search(r"^\d+\s+\d+\s+-?\d+\s+0\s+\d+\s+0\s", tools.of(TRANSACTIONS, "describe-producers", *place), re.M)
    assert len(tools.of(TRANSACTIONS, "find-hanging", "--topic", topic).split("\n")) <= 4
    tools.of(TRANSACTIONS, "abort", *place, "--start-offset", "0")
    assert re.search(r"^\d+\s.*\sNone\s+$", tools.of(TRANSACTIONS, "describe-producers", *place), re.M)
    tools.of(TRANSACTIONS, "forceTerminateTransaction", "--transactionalId", name)
    # Its end is a new epoch: nothing is open under that one.
    settled(lambda: tools.of(TRANSACTIONS, "describe", "--transactional-id", name), "Empty")


def test_its_clients_find_what_they_need(cluster: Cluster, tools: ApacheTools, topic: str) -> None:
    cluster.create_topic(topic)
    can = {"offsets-for-times": True, "cluster-id": True, "create-topics": True, "describe-acls": True}
    can |= {"describe-configs": True, "idempotent-producer": True}
    arguments = [part for name, is_so in can.items() for part in (f"--{name}-supported", str(is_so))]
    arguments += ["--expect-record-too-large-exception", "False", "--num-cluster-nodes", "3", "--topic", topic]
    assert "SUCCESS" in tools("ClientCompatibilityTest", *arguments)


@pytest.mark.long
def test_quotas_are_set_described_and_removed(tools: ApacheTools) -> None:
    user = ("--entity-type", "users", "--entity-name", "quota-user")
    client = ("--entity-type", "clients", "--entity-name", "quota-client")
    by_default = ("--entity-type", "ips", "--entity-default")
    tools(CONFIGS, "--alter", *client, "--add-config", "producer_byte_rate=1024,request_percentage=150.5")
    tools(CONFIGS, "--alter", *user, *client, "--add-config", "consumer_byte_rate=2048")
    tools(CONFIGS, "--alter", *by_default, "--add-config", "connection_creation_rate=100000")
    settled(lambda: tools(CONFIGS, "--describe", *client), "producer_byte_rate=1024.0", "request_percentage=150.5")
    settled(lambda: tools(CONFIGS, "--describe", *user, *client), "consumer_byte_rate=2048.0")
    settled(lambda: tools(CONFIGS, "--describe", *by_default), "connection_creation_rate=100000.0")
    tools(CONFIGS, "--alter", *client, "--delete-config", "producer_byte_rate")
    at_last(lambda: tools(CONFIGS, "--describe", *client), lambda told: "producer_byte_rate" not in told)
    tools.refused(CONFIGS, "--alter", *client, "--add-config", "producer_byte_rate=-1")
    tools(CONFIGS, "--alter", *client, "--delete-config", "request_percentage")
    tools(CONFIGS, "--alter", *user, *client, "--delete-config", "consumer_byte_rate")
    tools(CONFIGS, "--alter", *by_default, "--delete-config", "connection_creation_rate")


@pytest.mark.long
def test_its_performance_tools_are_served_with_and_without_transactions(
    cluster: Cluster, tools: ApacheTools, topic: str
) -> None:
    cluster.create_topic(topic, 3)
    write = ("--topic", topic, "--num-records", "3000", "--record-size", "100", "--throughput", "-1")
    assert "3000 records sent" in tools("ProducerPerformance", *write)
    transactions = ("--transactional-id", f"perf-{topic}", "--transaction-duration-ms", "100")
    assert "3000 records sent" in tools("ProducerPerformance", *write, *transactions)
    assert ", 6000, " in tools("ConsumerPerformance", "--topic", topic, "--num-records", "6000")
