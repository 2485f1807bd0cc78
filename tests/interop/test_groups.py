"""Claims about groups as other people's clients live in them, on both brokers."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient

from einmal.types import ErrorCode
from tests.interop import raw
from tests.interop.conftest import Node, NodeFactory
from tests.interop.group_members import AiokafkaMember, ConfluentMember, KafkaPythonMember, Member, Partition
from tests.interop.topics import Broker, at_last, create_topic
from tests.suite.patience import patient
from tests.suite.shared import unique

pytestmark = pytest.mark.interop

HEARTBEAT = 12
LEAVE_GROUP = 13
OFFSET_COMMIT = 8
DESCRIBE_GROUPS = 15
LIST_GROUPS = 16
DELETE_GROUPS = 42
OFFSET_DELETE = 47

CLIENTS: list[type[Member]] = [ConfluentMember, KafkaPythonMember, AiokafkaMember]


@pytest.fixture(params=CLIENTS, ids=lambda client: client.__name__)
def client(request: pytest.FixtureRequest) -> type[Member]:
    member: type[Member] = request.param
    return member


def address(broker: Node) -> Broker:
    return Broker(broker.host, broker.port)


def new_topic(broker: Node, partitions: int = 4) -> str:
    name = unique("groups")
    create_topic(address(broker), name, partitions)
    return name


def partitions_of(topic: str, count: int = 4) -> frozenset[Partition]:
    return frozenset((topic, index) for index in range(count))


def fill(broker: Node, topic: str, count: int, partition: int = 0) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap, "enable.idempotence": True})
    for number in range(count):
        producer.produce(topic, str(number).encode(), partition=partition)
    assert producer.flush(120) == 0


def wait_until(claim: Callable[[], bool], *members: Member) -> None:
    def answer() -> tuple[bool, list[str]]:
        for member in members:
            if member.error is not None:
                raise AssertionError("a member died") from member.error
        return claim(), [str(member) for member in members]

    at_last(answer, lambda told: told[0])


# --- membership ------------------------------------------------------------------------------------------------


def test_a_lone_member_gets_everything_and_its_positions_are_kept(broker: Node, client: type[Member]) -> None:
    topic = new_topic(broker)
    fill(broker, topic, 10)
    first = (topic, 0)
    with client(broker.bootstrap, f"g-{topic}", topic) as member:
        wait_until(lambda: member.assignment == partitions_of(topic) and len(member.read) == 10, member)
        assert [offset for partition, offset, _value in member.read] == list(range(10))
        assert member.committed(first) is None
        member.commit({first: 7})
        assert member.committed(first) == 7
    with client(broker.bootstrap, f"g-{topic}", topic) as member:
        wait_until(lambda: len(member.read) == 3, member)
        assert [offset for partition, offset, _value in member.read] == [7, 8, 9]


def test_two_members_share_and_the_one_that_stays_gets_all_back(broker: Node, client: type[Member]) -> None:
    topic = new_topic(broker)
    everything = partitions_of(topic)
    with client(broker.bootstrap, f"g-{topic}", topic) as stays:
        wait_until(lambda: stays.assignment == everything, stays)
        with client(broker.bootstrap, f"g-{topic}", topic) as leaves:
            wait_until(
                lambda: (
                    len(stays.assignment) == 2
                    and len(leaves.assignment) == 2
                    and stays.assignment | leaves.assignment == everything
                ),
                stays,
                leaves,
            )
        wait_until(lambda: stays.assignment == everything, stays)


def test_members_of_different_clients_share_a_group(broker: Node) -> None:
    topic = new_topic(broker, 3)
    group = f"g-{topic}"
    with (
        ConfluentMember(broker.bootstrap, group, topic) as one,
        KafkaPythonMember(broker.bootstrap, group, topic) as two,
    ):
        wait_until(
            lambda: (
                bool(one.assignment and two.assignment)
                and one.assignment | two.assignment == partitions_of(topic, 3)
                and not one.assignment & two.assignment
            ),
            one,
            two,
        )


@pytest.mark.parametrize("client", [ConfluentMember, KafkaPythonMember], ids=lambda client: client.__name__)
def test_a_static_member_restarts_without_moving_anybody(broker: Node, client: type[Member]) -> None:
    topic = new_topic(broker)
    group = f"g-{topic}"
    with client(broker.bootstrap, group, topic, instance_id="stays") as stays:
        wait_until(lambda: stays.assignment == partitions_of(topic), stays)
        with client(broker.bootstrap, group, topic, instance_id="restarts") as before:
            wait_until(lambda: len(before.assignment) == 2 and len(stays.assignment) == 2, stays, before)
            had = before.assignment
            moves = len(stays.assignments)
        # It closed without leaving: no member is notified until its session ends.
        with client(broker.bootstrap, group, topic, instance_id="restarts") as after:
            wait_until(lambda: after.assignment == had, stays, after)
        assert len(stays.assignments) == moves


def test_of_two_members_with_one_instance_id_the_older_is_fenced(broker: Node) -> None:
    topic = new_topic(broker)
    group = f"g-{topic}"
    with ConfluentMember(broker.bootstrap, group, topic, instance_id="same") as older:
        wait_until(lambda: older.assignment == partitions_of(topic), older)
        with ConfluentMember(broker.bootstrap, group, topic, instance_id="same") as younger:
            wait_until(lambda: younger.assignment == partitions_of(topic) and older.fatal is not None, older, younger)
            assert older.fatal is not None
            assert "Static consumer fenced" in older.fatal
            with pytest.raises(confluent_kafka.KafkaException):
                older.commit({(topic, 0): 1})


def test_positions_and_members_survive_kill_9(own_node_of: NodeFactory, client_at_kill: type[Member]) -> None:
    broker = own_node_of("einmal", 2)
    topic = new_topic(broker)
    with client_at_kill(broker.bootstrap, f"g-{topic}", topic) as member:
        wait_until(lambda: member.assignment == partitions_of(topic), member)
        member.commit({(topic, index): 10 + index for index in range(4)})
        broker.kill()
        broker.start()
        wait_until(lambda: member.assignment == partitions_of(topic), member)
        assert [member.committed((topic, index)) for index in range(4)] == [10, 11, 12, 13]
    with client_at_kill(broker.bootstrap, f"g-{topic}", topic) as member:
        assert member.committed((topic, 3)) == 13


# --- offsets in transactions -----------------------------------------------------------------------------------


def transactional(broker: Node, name: str) -> confluent_kafka.Producer:
    producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": name})
    producer.init_transactions(120)
    return producer


def test_positions_in_a_transaction_are_there_after_its_commit_only(broker: Node) -> None:
    topic = new_topic(broker)
    group = f"g-{topic}"
    partition = (topic, 0)
    producer = transactional(broker, group)
    with ConfluentMember(broker.bootstrap, group, topic) as member:
        wait_until(lambda: member.assignment == partitions_of(topic), member)
        for offset, is_committed in ((5, False), (6, True)):
            producer.begin_transaction()
            producer.send_offsets_to_transaction(
                [confluent_kafka.TopicPartition(topic, 0, offset)], member.group_metadata(), 20
            )
            if is_committed:
                producer.commit_transaction(120)
            else:
                producer.abort_transaction(120)
                assert member.committed(partition) is None
        at_last(lambda: member.committed(partition), lambda found: found == 6)


def test_positions_of_a_stale_generation_are_refused_in_a_transaction(broker: Node) -> None:
    topic = new_topic(broker)
    group = f"g-{topic}"
    with ConfluentMember(broker.bootstrap, group, topic) as member:
        wait_until(lambda: member.assignment == partitions_of(topic), member)
        stale = member.group_metadata()
        member.commit({(topic, 0): 3})
        with ConfluentMember(broker.bootstrap, group, topic) as other:
            wait_until(lambda: len(other.assignment) == 2 and len(member.assignment) == 2, member, other)
            producer = transactional(broker, group)
            producer.begin_transaction()
            with pytest.raises(confluent_kafka.KafkaException) as caught:
                producer.send_offsets_to_transaction([confluent_kafka.TopicPartition(topic, 0, 9)], stale, 20)
            error = caught.value.args[0]
            assert error.code() == confluent_kafka.KafkaError.ILLEGAL_GENERATION
            assert error.txn_requires_abort()
            producer.abort_transaction(120)
            assert member.committed((topic, 0)) == 3


STALE_COMMITS = [
    # generation, whose member id, instance id; the error of a plain commit, and of one in a transaction
    (1, "mine", None, ErrorCode.none, ErrorCode.none),
    (2, "mine", None, ErrorCode.illegal_generation, ErrorCode.illegal_generation),
    (-1, "mine", None, ErrorCode.illegal_generation, ErrorCode.illegal_generation),
    (1, "another", None, ErrorCode.unknown_member_id, ErrorCode.unknown_member_id),
    (1, "", None, ErrorCode.unknown_member_id, ErrorCode.unknown_member_id),
    (1, "mine", "another", ErrorCode.unknown_member_id, ErrorCode.unknown_member_id),
    # A client from before KIP-447 sends no member id, and is accepted in a transaction.
    (-1, "", None, ErrorCode.unknown_member_id, ErrorCode.none),
]


def test_only_the_present_generation_commits_in_a_transaction_or_not(broker: Node) -> None:
    topic = new_topic(broker, 1)
    group = f"g-{topic}"
    with address(broker).connect() as connection:
        member_id = connection.call(raw.JOIN_GROUP, 9, **join_fields(group, "")).member_id
        connection.call(raw.JOIN_GROUP, 9, **join_fields(group, member_id))
        me = {"group_id": group, "generation_id": 1, "member_id": member_id}
        connection.call(raw.SYNC_GROUP, 4, **me, assignments=[])
        transaction = open_transaction(connection, group)
        for generation, name, instance, plain, transactional in STALE_COMMITS:
            who = {"member_id": member_id if name == "mine" else name, "group_instance_id": instance}
            topics = [{"name": topic, "partitions": [commit_of(0, 5)]}]
            committed = connection.call(
                OFFSET_COMMIT, 8, group_id=group, generation_id_or_member_epoch=generation, **who, topics=topics
            )
            assert committed.topics[0].partitions[0].error_code == plain, (generation, name, instance)
            committed = connection.call(
                raw.TXN_OFFSET_COMMIT, 3, group_id=group, generation_id=generation, **who, **transaction, topics=topics
            )
            assert committed.topics[0].partitions[0].error_code == transactional, (generation, name, instance)


def open_transaction(connection: raw.Connection, group: str) -> dict[str, object]:
    """A transaction to which the group's offsets have been added; its identity as fields."""
    name = {"transactional_id": f"id-of-{group}"}
    given = at_last(
        lambda: connection.call(
            raw.INIT_PRODUCER_ID, 4, **name, transaction_timeout=60_000, producer_id=-1, producer_epoch=-1
        ),
        lambda answer: answer.error_code == ErrorCode.none,
    )
    fields = {**name, "producer_id": given.producer_id, "producer_epoch": given.producer_epoch}
    at_last(
        lambda: connection.call(raw.ADD_OFFSETS_TO_TXN, 3, **fields, group_id=group).error_code,
        lambda code: code == ErrorCode.none,
    )
    return fields


def test_positions_that_a_transaction_may_move_cannot_be_deleted(node_of: NodeFactory) -> None:
    # Apache Kafka deletes them, and the transaction that is then committed has lost its positions.
    broker = node_of("einmal", 2)
    topic = new_topic(broker, 1)
    group = f"g-{topic}"
    with address(broker).connect() as connection:
        transaction = open_transaction(connection, group)
        topics = [{"name": topic, "partitions": [commit_of(0, 5)]}]
        connection.call(raw.TXN_OFFSET_COMMIT, 3, group_id=group, **transaction, topics=topics)
        (result,) = connection.call(DELETE_GROUPS, 2, groups_names=[group]).results
        assert result.error_code == ErrorCode.non_empty_group
        deleted = connection.call(OFFSET_DELETE, 0, group_id=group, topics=topics)
        assert deleted.topics[0].partitions[0].error_code == ErrorCode.unstable_offset_commit
        connection.call(raw.END_TXN, 3, **transaction, committed=True)
        asked = [{"name": topic, "partition_indexes": [0]}]

        def fetched() -> int:
            answer = connection.call(raw.OFFSET_FETCH, 7, group_id=group, topics=asked, require_stable=True)
            return int(answer.topics[0].partitions[0].committed_offset)

        assert at_last(fetched, lambda offset: offset >= 0) == 5
        (result,) = connection.call(DELETE_GROUPS, 2, groups_names=[group]).results
        assert result.error_code == ErrorCode.none
        assert fetched() == -1


# --- operators -------------------------------------------------------------------------------------------------


def test_operators_list_describe_and_delete_groups(broker: Node) -> None:
    topic = new_topic(broker)
    group = f"g-{topic}"
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})

    def listed() -> dict[str, str]:
        return {each.group_id: each.state.name for each in admin.list_consumer_groups().result(120).valid}

    with ConfluentMember(broker.bootstrap, group, topic) as member:
        wait_until(lambda: member.assignment == partitions_of(topic), member)
        member.commit({(topic, 0): 4})
        described = admin.describe_consumer_groups([group])[group].result(120)
        assert described.state.name == "STABLE"
        assert [len(each.assignment.topic_partitions) for each in described.members] == [4]
        assert listed()[group] == "STABLE"
        with pytest.raises(confluent_kafka.KafkaException) as caught:
            admin.delete_consumer_groups([group])[group].result(120)
        assert caught.value.args[0].code() == confluent_kafka.KafkaError.NON_EMPTY_GROUP
    at_last(listed, lambda groups: groups[group] == "EMPTY")
    admin.delete_consumer_groups([group])[group].result(120)
    assert group not in listed()


# --- by hand ---------------------------------------------------------------------------------------------------

_SUBSCRIPTION = struct.pack(">hiI", 0, 0, 0)


def join_fields(group: str, member_id: str) -> dict[str, object]:
    return {
        "group_id": group,
        "session_timeout": 30_000,
        "rebalance_timeout": 60_000,
        "member_id": member_id,
        "group_instance_id": None,
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": _SUBSCRIPTION}],
    }


@pytest.mark.representatives(4)
@pytest.mark.parametrize("version", range(10))
def test_every_version_of_the_protocol_gets_a_member_through_its_life(broker: Node, version: int) -> None:
    topic = new_topic(broker, 1)
    group = f"g-{topic}"
    lower = min(version, 5)
    with address(broker).connect() as connection:
        joined = connection.call(raw.JOIN_GROUP, version, **join_fields(group, ""))
        if version >= 4:
            assert joined.error_code == ErrorCode.member_id_required
            joined = connection.call(raw.JOIN_GROUP, version, **join_fields(group, joined.member_id))
        assert (joined.error_code, joined.generation_id, joined.protocol_name) == (ErrorCode.none, 1, "range")
        assert joined.leader == joined.member_id
        assert [each.member_id for each in joined.members] == [joined.member_id]
        me = {"group_id": group, "generation_id": 1, "member_id": joined.member_id, "group_instance_id": None}
        synced = connection.call(
            raw.SYNC_GROUP,
            lower,
            **me,
            protocol_type="consumer",
            protocol_name="range",
            assignments=[{"member_id": joined.member_id, "assignment": b"mine"}],
        )
        assert (synced.error_code, synced.assignment) == (ErrorCode.none, b"mine")
        assert connection.call(HEARTBEAT, min(version, 4), **me).error_code == ErrorCode.none
        stale = connection.call(HEARTBEAT, min(version, 4), **{**me, "generation_id": 0})
        assert stale.error_code == ErrorCode.illegal_generation
        described = connection.call(DESCRIBE_GROUPS, min(version, 6), groups=[group]).groups[0]
        assert (described.group_state, described.members[0].member_assignment) == ("Stable", b"mine")
        left = connection.call(
            LEAVE_GROUP, lower, group_id=group, member_id=joined.member_id, members=[{"member_id": joined.member_id}]
        )
        assert left.error_code == ErrorCode.none
        assert connection.call(HEARTBEAT, min(version, 4), **me).error_code == ErrorCode.unknown_member_id
        gone = connection.call(raw.JOIN_GROUP, version, **join_fields(group, joined.member_id))
        assert gone.error_code == ErrorCode.unknown_member_id


@pytest.mark.representatives(4)
@pytest.mark.parametrize("version", range(2, 10))
def test_every_version_of_commit_and_fetch_returns_the_same(broker: Node, version: int) -> None:
    topic = new_topic(broker, 1)
    group = f"g-{topic}"
    asked = {"name": topic, "partition_indexes": [0]}
    with address(broker).connect() as connection:
        committed = connection.call(
            OFFSET_COMMIT,
            version,
            group_id=group,
            generation_id_or_member_epoch=-1,
            member_id="",
            retention_time=-1,
            topics=[
                {"name": topic, "partitions": [commit_of(0, 42), commit_of(7, 1)]},
                {"name": "nowhere", "partitions": [commit_of(0, 1)]},
            ],
        )
        errors = {
            (each.name, partition.partition_index): partition.error_code
            for each in committed.topics
            for partition in each.partitions
        }
        unknown = ErrorCode.unknown_topic_or_partition
        assert errors == {(topic, 0): ErrorCode.none, (topic, 7): unknown, ("nowhere", 0): unknown}
        for fetch_version in {max(1, version - 1), version}:
            for topics in ([asked], None):
                if topics is None and fetch_version < 2:
                    continue
                fetched = connection.call(
                    raw.OFFSET_FETCH,
                    fetch_version,
                    group_id=group,
                    topics=topics,
                    groups=[{"group_id": group, "topics": topics}],
                    require_stable=True,
                )
                found = fetched.groups[0] if fetch_version >= 8 else fetched
                partition = found.topics[0].partitions[0]
                assert (partition.committed_offset, partition.metadata) == (42, "note")
                assert partition.error_code == ErrorCode.none


def commit_of(partition: int, offset: int) -> dict[str, object]:
    return {
        "partition_index": partition,
        "committed_offset": offset,
        "committed_leader_epoch": -1,
        "committed_metadata": "note",
    }


def test_a_sync_that_must_name_its_protocol_and_does_not_is_refused(broker: Node) -> None:
    topic = new_topic(broker, 1)
    group = f"g-{topic}"
    with address(broker).connect() as connection:
        member_id = connection.call(raw.JOIN_GROUP, 9, **join_fields(group, "")).member_id
        connection.call(raw.JOIN_GROUP, 9, **join_fields(group, member_id))
        me = {"group_id": group, "generation_id": 1, "member_id": member_id}
        for names in ({}, {"protocol_type": "consumer"}, {"protocol_type": "consumer", "protocol_name": "sticky"}):
            synced = connection.call(raw.SYNC_GROUP, 5, **me, **names, assignments=[])
            assert synced.error_code == ErrorCode.inconsistent_group_protocol


def test_positions_can_be_committed_and_fetched_by_topic_id(broker: Node) -> None:
    topic = new_topic(broker, 1)
    group = f"g-{topic}"
    with address(broker).connect() as connection:
        metadata = connection.call(raw.METADATA, 12, topics=[{"topic_id": None, "name": topic}])
        topic_id = metadata.topics[0].topic_id
        stranger = type(topic_id)(int=topic_id.int ^ 1)
        committed = connection.call(
            OFFSET_COMMIT,
            10,
            group_id=group,
            generation_id_or_member_epoch=-1,
            member_id="",
            topics=[{"topic_id": each, "partitions": [commit_of(0, 5)]} for each in (topic_id, stranger)],
        )
        errors = {each.topic_id: each.partitions[0].error_code for each in committed.topics}
        assert errors == {topic_id: ErrorCode.none, stranger: ErrorCode.unknown_topic_id}
        asked = [{"topic_id": each, "partition_indexes": [0]} for each in (topic_id, stranger)]
        fetched = connection.call(raw.OFFSET_FETCH, 10, groups=[{"group_id": group, "topics": asked}])
        found = {each.topic_id: each.partitions[0] for each in fetched.groups[0].topics}
        assert (found[topic_id].committed_offset, found[topic_id].error_code) == (5, ErrorCode.none)
        assert found[stranger].error_code == ErrorCode.unknown_topic_id


def test_an_unknown_group_is_not_found(broker: Node) -> None:
    new_topic(broker, 1)
    with address(broker).connect() as connection:
        for version in range(7):
            group = connection.call(DESCRIBE_GROUPS, version, groups=["nobody"]).groups[0]
            assert group.group_state == "Dead"
            assert group.error_code == (ErrorCode.group_id_not_found if version >= 6 else ErrorCode.none)
        for version in range(3):
            (result,) = connection.call(DELETE_GROUPS, version, groups_names=["nobody"]).results
            assert result.error_code == ErrorCode.group_id_not_found
        for version in range(6):
            assert "nobody" not in [each.group_id for each in connection.call(LIST_GROUPS, version).groups]
        deleted = connection.call(OFFSET_DELETE, 0, group_id="nobody", topics=[])
        assert deleted.error_code == ErrorCode.group_id_not_found


def test_a_disconnected_waiting_member_does_not_hold_up_the_group_for_long(broker: Node) -> None:
    topic = new_topic(broker, 1)
    group = f"g-{topic}"
    with address(broker).connect() as stays:
        member_id = stays.call(raw.JOIN_GROUP, 9, **join_fields(group, "")).member_id
        fields = join_fields(group, member_id)
        assert stays.call(raw.JOIN_GROUP, 9, **fields).error_code == ErrorCode.none
        with address(broker).connect() as goes:
            other_id = goes.call(raw.JOIN_GROUP, 9, **join_fields(group, "")).member_id
            goes.send(raw.JOIN_GROUP, 9, **{**join_fields(group, other_id), "rebalance_timeout": 1_000})
            at_last(
                lambda: stays.call(DESCRIBE_GROUPS, 5, groups=[group]).groups[0].group_state,
                lambda state: state == "PreparingRebalance",
            )
        rejoined = stays.call(raw.JOIN_GROUP, 9, **{**fields, "rebalance_timeout": 1_000})
        assert (rejoined.error_code, rejoined.generation_id) == (ErrorCode.none, 2)
        me = {"group_id": group, "generation_id": 2, "member_id": member_id}
        synced = stays.call(raw.SYNC_GROUP, 4, **me, assignments=[])
        assert synced.error_code == ErrorCode.none
        # The one that hung up never syncs: it is expelled, and the next generation has one member.
        at_last(lambda: stays.call(HEARTBEAT, 4, **me).error_code, lambda code: code != ErrorCode.none)
        assert len(stays.call(raw.JOIN_GROUP, 9, **fields).members) == 1


@pytest.mark.slow
def test_a_thousand_members_get_one_stable_generation_in_bounded_time(node_of: NodeFactory) -> None:
    broker = node_of("einmal", 2)
    topic = new_topic(broker, 1)
    group = f"g-{topic}"
    began = time.monotonic()
    members = [address(broker).connect() for _ in range(1_000)]
    try:
        ids = []
        for member in members:
            member.send(raw.JOIN_GROUP, 9, **join_fields(group, ""))
        for member in members:
            ids.append(member.receive().member_id)
        for member, member_id in zip(members, ids, strict=True):
            member.send(raw.JOIN_GROUP, 9, **join_fields(group, member_id))
        answers = [member.receive() for member in members]
        assert {answer.error_code for answer in answers} == {ErrorCode.none}
        assert {answer.generation_id for answer in answers} == {1}
        for member, member_id in zip(members, ids, strict=True):
            is_leader = member_id == answers[0].leader
            assignments = [{"member_id": each, "assignment": each.encode()} for each in ids] if is_leader else []
            member.send(
                raw.SYNC_GROUP, 4, group_id=group, generation_id=1, member_id=member_id, assignments=assignments
            )
        for member, member_id in zip(members, ids, strict=True):
            answer = member.receive()
            assert (answer.error_code, answer.assignment) == (ErrorCode.none, member_id.encode())
        for member, member_id in zip(members, ids, strict=True):
            member.send(HEARTBEAT, 4, group_id=group, generation_id=1, member_id=member_id)
        assert {member.receive().error_code for member in members} == {ErrorCode.none}
    finally:
        for member in members:
            member.close()
    assert time.monotonic() - began < patient(60)
