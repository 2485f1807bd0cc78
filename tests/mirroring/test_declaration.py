from __future__ import annotations

import pytest

from einmal.declare.document import DeclarationError
from einmal.mirroring.declaration import MirrorDeclaration, flow_names, parse
from einmal.mirroring.mirrormaker import without_effect
from tests.suite.cases import each_case

CLUSTERS = """
clusters = ["A", "B"]
A.bootstrap.servers = "a:9092"
B.bootstrap.servers = "${TARGET:-b:9092}"
"""
FLOW = '["A->B"]\ntopics = ["orders.*"]\n'


def declared(text: str, **environment: str) -> MirrorDeclaration:
    return parse(text, environment, lambda path: "")


def problems(text: str) -> tuple[str, ...]:
    with pytest.raises(DeclarationError) as found:
        declared(text)
    return found.value.problems


def test_a_flow_has_mirrormakers_names_and_defaults() -> None:
    found = declared(CLUSTERS + FLOW)
    (flow,) = found.flows.values()
    assert (flow.source, flow.target, flow.remote_topic("orders")) == ("A", "B", "A.orders")
    assert [each for each in ("orders", "orders.replica", "other", "B.orders") if flow.accepts_topic(each)] == [
        "orders"
    ]
    assert not flow.groups.accepts("console-consumer-7")
    assert found.clusters == {"A": {"bootstrap.servers": "a:9092"}, "B": {"bootstrap.servers": "b:9092"}}
    assert declared(CLUSTERS + FLOW, TARGET="c:1").clusters["B"] == {"bootstrap.servers": "c:1"}


def test_lists_may_be_text_with_commas() -> None:
    text = (
        CLUSTERS.replace('["A", "B"]', '"A, B"') + '["A->B"]\ntopics = "orders, payments"\ngroups.exclude = "test.*"\n'
    )
    flow = declared(text).flows["A->B"]
    assert [flow.accepts_topic(each) for each in ("orders", "payments", "other")] == [True, True, False]
    assert not flow.groups.accepts("test-1")
    assert not flow.by_partition
    assert declared(text + 'transactions = "by-partition"').flows["A->B"].by_partition


def test_a_flow_that_is_not_enabled_is_none() -> None:
    text = CLUSTERS + FLOW + '["B->A"]\nenabled = false\n'
    assert list(declared(text).flows) == ["A->B"]


def test_all_problems_are_reported_at_once_with_the_nearest_key() -> None:
    text = """
        clusters = ["A", "B"]
        replication.policy.class = "com.example.Policy"
        A.bootstrap.server = "a:9092"
        B.bootstrap.servers = "b:9092"
        ["A->B"]
        topic = "("
        groups = "("
        failOnDataLoss = "maybe"
        transactions = "torn"
    """
    found = problems(text)
    assert [each.partition("\n")[0] for each in found] == [
        "A: unknown key 'bootstrap.server'",
        "A: bootstrap.servers is missing",
        "unsupported replication.policy.class 'com.example.Policy'; supported: DefaultReplicationPolicy, "
        "IdentityReplicationPolicy",
        "A->B: unknown key 'topic'",
        "A->B.groups: '(' is no regular expression: missing ), unterminated subpattern at position 0",
        "A->B.transactions is whole or by-partition, not 'torn'",
        "A->B.failOnDataLoss is true or false, not 'maybe'",
    ]
    assert "did you mean 'bootstrap.servers'?" in found[0]
    assert "did you mean 'topics'?" in found[3]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("clusters = [", "not TOML"),
        ('clusters = ["A"]\nA.bootstrap.servers = "a:1"', "two clusters or more"),
        (CLUSTERS, "no flow is declared"),
        (CLUSTERS + '["A->C"]\ntopics = "x"', "flow 'A->C': no cluster has the alias 'C'\nhint: clusters has A, B"),
        (CLUSTERS + FLOW + '["C->D"]\nenabled = false', "flow 'C->D': no cluster has the alias 'C' and 'D'"),
        (CLUSTERS + '["A->A"]\ntopics = "x"', "flow 'A->A' has one cluster as source and target"),
        (CLUSTERS.replace('"B"]', '"B", "x y"]') + FLOW, "'x y' is no alias"),
        (CLUSTERS + 'replication.policy.separator = ""\n' + FLOW, "separator is empty"),
    ],
)
def test_what_cannot_be_meant_is_refused(text: str, problem: str) -> None:
    assert any(problem in each for each in problems(text))


def test_names_that_stay_the_same_in_both_directions_are_refused() -> None:
    text = 'replication.policy.class = "IdentityReplicationPolicy"\n' + CLUSTERS + FLOW
    assert declared(text).flows["A->B"].remote_topic("orders") == "orders"
    assert any("would copy every record back" in each for each in problems(text + '["B->A"]\ntopics = "orders"\n'))


def test_what_is_wrong_with_another_flow_or_cluster_does_not_keep_one_from_running() -> None:
    text = (
        CLUSTERS.replace('["A", "B"]', '["A", "B", "C"]')
        + 'C.bootstrap.servers = "c"\nC.sasl.password = "${env:NONE}"\n'
    )
    text += FLOW + '["A->C"]\ntopics = ["("]\n["C->B"]\nno.such.key = 1\n["B->A"]\ntransactions = "odd"\n'
    found = parse(text, {}, lambda path: "", only="A->B")
    assert "A->B" in found.flows and found.clusters.keys() == {"A", "B"}
    for broken in ("A->C", "C->B", "B->A"):
        with pytest.raises(DeclarationError):
            parse(text, {}, lambda path: "", only=broken)


@pytest.mark.parametrize("enabled", ['"perhaps"', "1", '"${env:NONE}"', "false"])
def test_a_flow_is_not_kept_from_running_by_whether_the_opposite_one_does(enabled: str) -> None:
    text = CLUSTERS + FLOW + f'["B->A"]\nenabled = {enabled}\n'
    assert "A->B" in parse(text, {}, lambda path: "", only="A->B").flows


def test_a_source_that_is_lost_needs_no_settings() -> None:
    text = CLUSTERS.replace("A.bootstrap", 'A.sasl.password = "${env:NONE}"\nA.no.such = 1\nA.bootstrap') + FLOW
    with pytest.raises(DeclarationError, match="NONE"):
        parse(text, {}, lambda path: "", only="A->B")
    found = parse(text, {}, lambda path: "", only="A->B", is_source_lost=True)
    assert found.clusters.keys() == {"B"} and "A->B" in found.flows


def test_the_names_of_flows_need_nothing_to_be_right_but_the_clusters() -> None:
    text = CLUSTERS + FLOW + '["B->A"]\nenabled = false\n'
    assert flow_names(text) == ["A->B"]
    assert flow_names(text.replace("false", "1")) == ["A->B", "B->A"]
    with pytest.raises(DeclarationError, match="no flow is declared"):
        flow_names(CLUSTERS)


def test_a_flow_still_knows_of_the_opposite_one() -> None:
    text = CLUSTERS + 'replication.policy.class = "IdentityReplicationPolicy"\n' + FLOW + '["B->A"]\ntopics = ".*"\n'
    with pytest.raises(DeclarationError, match="both directions"):
        parse(text, {}, lambda path: "", only="A->B")


PROPERTIES = r"""
# The file that Apache Kafka ships, with what people add to it.
clusters = A, B
A.bootstrap.servers = a1:9092, \
    a2:9092
B.bootstrap.servers = b:9092
B.sasl.jaas.config = PlainLoginModule required username="u" password="p$$w";
A->B.enabled = true
A->B.topics = orders.*
B->A.topics = .*
groups = reporting
replication.policy.class = org.apache.kafka.connect.mirror.IdentityReplicationPolicy
replication.factor = 1
tasks.max = 4
checkpoints.topic.replication.factor = 1
offset.storage.replication.factor = 1
A->B.emit.heartbeats.enabled = false
B.exactly.once.source.support = enabled
"""


def declared_by_mirrormaker(text: str, only: str | None = None) -> MirrorDeclaration:
    return parse(text, {}, lambda path: "", only, is_properties=True)


def test_mirrormakers_file_is_read() -> None:
    found = declared_by_mirrormaker(PROPERTIES)
    (flow,) = found.flows.values()
    assert (flow.name, flow.remote_topic("orders")) == ("A->B", "orders")
    assert [flow.accepts_topic(each) for each in ("orders", "payments")] == [True, False]
    assert [flow.groups.accepts(each) for each in ("reporting", "other")] == [True, False]
    assert found.clusters["A"]["bootstrap.servers"] == "a1:9092, a2:9092"
    assert found.clusters["B"]["sasl.jaas.config"].endswith('password="p$$w";')
    assert flow_names(PROPERTIES, is_properties=True) == ["A->B"]
    assert declared_by_mirrormaker(PROPERTIES, "A->B") == found


def test_what_mirrormaker_alone_needs_is_reported() -> None:
    assert [each.partition(" has no effect: ")[0] for each in without_effect(PROPERTIES)] == [
        "replication.factor",
        "tasks.max",
        "checkpoints.topic.replication.factor",
        "offset.storage.replication.factor",
        "A->B.emit.heartbeats.enabled",
        "B.exactly.once.source.support",
    ]


@each_case(
    "line, complaint",
    [
        ("A->B.topic = x", "unknown key 'topic'\nhint: did you mean 'topics'?"),
        ("topics.blacklist = x", "unknown key 'topics.blacklist'"),
        ("A.producer.acks = all", "unknown key 'producer.acks'"),
        ("A->B.enabled = false", "no flow is enabled\nhint: A->B.enabled = true"),
    ],
)
def test_what_the_mirror_does_not_know_of_mirrormakers_file_is_refused(line: str, complaint: str) -> None:
    with pytest.raises(DeclarationError) as found:
        declared_by_mirrormaker(f"{PROPERTIES}\n{line}")
    assert complaint in "\n".join(found.value.problems)
