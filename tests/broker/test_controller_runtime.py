import asyncio
import logging
from typing import Any
from uuid import UUID

import pytest

from einmal.metadata.records import NO_LEADER, BrokerEndpoint
from einmal.types import BrokerId, ErrorCode
from tests.broker.controller_node import (
    ALTER_PARTITION,
    ELECT,
    LIST_REASSIGNMENTS,
    PRODUCER_IDS,
    REASSIGN,
    UNREGISTER,
    UPDATE_FEATURES,
    ControllerNode,
)
from tests.virtual_time import virtual_time

# --- being the active controller ---------------------------------------------------------------------------------


@virtual_time
async def test_each_api_returns_its_own_error_when_the_node_does_not_lead_the_quorum() -> None:
    node = ControllerNode()
    assert not node.controller.is_active
    assert (await node.register(1)).error_code is ErrorCode.not_controller
    node.epochs[1] = 5
    assert (await node.beat(1)).error_code is ErrorCode.not_controller
    nobody: dict[str, Any] = {"broker_id": 1, "broker_epoch": 5}
    assert (await node.call(ALTER_PARTITION, 3, {**nobody, "topics": []})).error_code is ErrorCode.not_controller
    assert (await node.call(PRODUCER_IDS, 0, nobody)).error_code is ErrorCode.not_controller
    assert (await node.call(UNREGISTER, 0, {"broker_id": 1})).error_code is ErrorCode.not_controller
    elect = {"election_type": 0, "topic_partitions": [{"topic": "t", "partitions": [0]}], "timeout": 0}
    answer = await node.call(ELECT, 2, elect)
    assert answer.error_code is ErrorCode.not_controller
    del elect["election_type"]
    oldest = await node.call(ELECT, 0, elect)
    assert oldest.replica_election_results[0].partition_result[0].error_code is ErrorCode.not_controller
    move: dict[str, Any] = {"timeout": 0, "topics": []}
    assert (await node.call(REASSIGN, 0, move)).error_code is ErrorCode.not_controller
    listed = await node.call(LIST_REASSIGNMENTS, 0, {"timeout": 0, "topics": None})
    assert listed.error_code is ErrorCode.not_controller
    update = {"feature": "f", "max_version_level": 1, "allow_downgrade": False}
    features = await node.call(UPDATE_FEATURES, 0, {"timeout": 0, "feature_updates": [update]})
    assert features.error_code is features.results[0].error_code is ErrorCode.not_controller


@virtual_time
async def test_no_response_precedes_the_commit_of_its_decision() -> None:
    node = ControllerNode()
    await node.lead()
    node.commitment.is_held = True
    registering = asyncio.get_running_loop().create_task(node.register(1))
    await asyncio.sleep(1)
    assert not registering.done()
    node.release()
    await asyncio.sleep(0)
    assert (await registering).error_code is ErrorCode.none
    broker = node.image.brokers[BrokerId(1)]
    assert (broker.broker_epoch, broker.is_fenced) == (node.epochs[1], True)
    assert broker.end_points == (BrokerEndpoint("PLAINTEXT", "h", 9_001),)
    assert broker.log_dirs == (UUID(int=101),)


@virtual_time
async def test_what_is_not_committed_in_time_has_an_unknown_outcome() -> None:
    node = ControllerNode()
    await node.lead()
    node.commitment.is_held = True
    assert (await node.register(1)).error_code is ErrorCode.request_timed_out


@virtual_time
async def test_a_controller_that_resigns_answers_waiting_requests() -> None:
    node = ControllerNode()
    await node.lead()
    node.commitment.is_held = True
    registering = asyncio.get_running_loop().create_task(node.register(1))
    await asyncio.sleep(0.1)
    node.follow(2)
    assert (await registering).error_code is ErrorCode.not_controller
    assert not node.controller.is_active


@virtual_time
async def test_a_new_controller_resumes_from_the_image_and_the_records_after_it() -> None:
    node = ControllerNode()
    await node.lead()
    await node.join(1, 2, 3)
    await node.create("t", (1, 2, 3))
    node.commitment.is_held = True
    fencing = asyncio.get_running_loop().create_task(node.beat(1, want_fence=True))
    await asyncio.sleep(0.1)
    node.follow(2)
    await fencing
    assert not node.image.brokers[BrokerId(1)].is_fenced
    node.commitment.is_held = False
    await node.lead(3)
    await asyncio.sleep(0)
    assert node.image.brokers[BrokerId(1)].is_fenced, "it was in the log"
    assert node.image.topics["t"].partitions[0].leader == BrokerId(2)
    assert (await node.beat(2)).error_code is ErrorCode.none


# --- brokers that are lost ---------------------------------------------------------------------------------------


@virtual_time
async def test_a_broker_whose_connection_is_lost_is_fenced_at_once(caplog: pytest.LogCaptureFixture) -> None:
    node = ControllerNode()
    with caplog.at_level(logging.WARNING):
        await node.lead()
        await node.join(1, 2, 3)
        await node.create("t", (2, 1, 3))
        node.connections[2].lose()
        await asyncio.sleep(0.09)
        assert not node.image.brokers[BrokerId(2)].is_fenced
        await asyncio.sleep(0.02)
        assert node.image.brokers[BrokerId(2)].is_fenced
        assert node.image.topics["t"].partitions[0].leader == BrokerId(1)
        assert "broker 2, epoch" in caplog.text


@virtual_time
async def test_a_broker_with_heartbeats_on_another_connection_is_not_fenced() -> None:
    node = ControllerNode()
    await node.lead()
    await node.join(1, 2)
    lost = node.connections.pop(2)
    lost.lose()
    await asyncio.sleep(0.05)
    await node.beat(2)
    await asyncio.sleep(0.2)
    assert not node.image.brokers[BrokerId(2)].is_fenced
    await node.beat(1)
    await asyncio.sleep(8.9)
    await node.beat(2)
    await asyncio.sleep(0.2)
    assert node.image.brokers[BrokerId(1)].is_fenced, "its session is over"
    assert not node.image.brokers[BrokerId(2)].is_fenced


@virtual_time
async def test_a_new_controller_calls_on_the_brokers_and_fences_those_that_are_gone() -> None:
    node = ControllerNode()
    await node.lead()
    await node.join(1, 2, 3)
    await node.create("t", (2, 3, 1))
    node.follow(2)
    node.reachable = [3]
    await node.lead(3)
    await asyncio.sleep(0.01)
    assert node.called_on == [2, 3], "it is itself broker 1"
    fenced = [int(broker) for broker, image in node.image.brokers.items() if image.is_fenced]
    assert fenced == [2]
    assert node.image.topics["t"].partitions[0].leader == BrokerId(3)


@virtual_time
async def test_an_election_that_may_lose_records_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    node = ControllerNode()
    await node.lead()
    await node.join(2)
    assert (await node.register(3)).error_code is ErrorCode.none
    await node.create("t", (2, 3))
    await node.create("u", (2,))
    node.connections[2].lose()
    await asyncio.sleep(0.2)
    for topic in ("t", "u"):
        assert node.image.topics[topic].partitions[0].leader == NO_LEADER
    await node.join(2)
    for topic in ("t", "u"):
        assert node.image.topics[topic].partitions[0].leader == BrokerId(2)
    assert "t-0 is led by broker 2, which may lack committed records (last known election)" in caplog.text
    assert "u-0" not in caplog.text, "it has no other replica"


# --- handlers ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [0, 1, 2, 3, 4])
@virtual_time
async def test_a_broker_registers_in_every_version(version: int) -> None:
    node = ControllerNode()
    await node.lead()
    fields: dict[str, Any] = {}
    answer = await node.register(1, version, **fields)
    assert (answer.error_code, answer.broker_epoch >= 0) == (ErrorCode.none, True)
    other = await node.register(2, version, cluster_id="another")
    assert other.error_code is ErrorCode.inconsistent_cluster_id
    assert (await node.beat(1)).is_caught_up
    again = await node.register(1, version)
    assert again.error_code is ErrorCode.duplicate_broker_registration


@virtual_time
async def test_a_broker_shuts_down_with_its_leads_moved_away() -> None:
    node = ControllerNode()
    await node.lead()
    await node.join(1, 2)
    await node.create("t", (2, 1))
    first = await node.beat(2, want_shut_down=True)
    assert (first.is_fenced, first.should_shut_down) == (False, False)
    assert node.image.topics["t"].partitions[0].leader == BrokerId(1)
    await node.beat(1)
    last = await node.beat(2, want_shut_down=True)
    assert (last.is_fenced, last.should_shut_down) == (True, True)
    stale = await node.beat(2, broker_epoch=0)
    assert stale.error_code is ErrorCode.stale_broker_epoch


@virtual_time
async def test_a_broker_with_an_offline_folder_is_fenced() -> None:
    node = ControllerNode()
    await node.lead()
    await node.join(1, 2)
    assert (await node.beat(2, offline_log_dirs=[UUID(int=102)])).is_fenced
    assert node.image.brokers[BrokerId(2)].is_fenced


@pytest.mark.parametrize("version", [2, 3])
@virtual_time
async def test_a_leader_alters_its_isr_in_every_version(version: int) -> None:
    node = ControllerNode()
    await node.lead()
    await node.join(1, 2, 3)
    topic_id = await node.create("t", (1, 2, 3))

    async def ask(*isr: int, topic: UUID = topic_id, epoch: int = 0) -> Any:
        partition: dict[str, Any] = {"partition_index": 0, "leader_epoch": 0, "partition_epoch": epoch}
        if version >= 3:
            members = [{"broker_id": broker, "broker_epoch": node.epochs[broker]} for broker in isr]
            partition["new_isr_with_epochs"] = members
        else:
            partition["new_isr"] = isr
        fields = {
            "broker_id": 1,
            "broker_epoch": node.epochs[1],
            "topics": [{"topic_id": topic, "partitions": [partition]}],
        }
        answer = await node.call(ALTER_PARTITION, version, fields)
        assert answer.error_code is ErrorCode.none
        return answer.topics[0].partitions[0]

    altered = await ask(1, 3)
    assert (altered.error_code, altered.leader_id, altered.isr) == (ErrorCode.none, 1, (1, 3))
    assert (altered.leader_epoch, altered.partition_epoch, altered.leader_recovery_state) == (0, 1, 0)
    assert (await ask(1, 3)).error_code is ErrorCode.invalid_update_version
    assert (await ask(1, 3, topic=UUID(int=5))).error_code is ErrorCode.unknown_topic_id
    await node.beat(2, want_fence=True)
    assert (await ask(1, 2, 3, epoch=1)).error_code is ErrorCode.ineligible_replica


@virtual_time
async def test_only_registered_brokers_get_blocks_of_producer_ids() -> None:
    node = ControllerNode()
    await node.lead()
    await node.join(1)
    fields = {"broker_id": 1, "broker_epoch": node.epochs[1]}
    first = await node.call(PRODUCER_IDS, 0, fields)
    second = await node.call(PRODUCER_IDS, 0, fields)
    assert (first.error_code, first.producer_id_len) == (ErrorCode.none, 1_000)
    assert second.producer_id_start == first.producer_id_start + 1_000
    stale = await node.call(PRODUCER_IDS, 0, {**fields, "broker_epoch": 0})
    assert (stale.error_code, stale.producer_id_len) == (ErrorCode.stale_broker_epoch, 0)


@pytest.mark.parametrize("version", [0, 1, 2])
@virtual_time
async def test_preferred_leaders_are_elected_in_every_version(version: int) -> None:
    node = ControllerNode()
    await node.lead()
    await node.join(1, 2)
    await node.create("t", (1, 2), (2, 1))
    fields: dict[str, Any] = {"topic_partitions": [{"topic": "t", "partitions": [0, 7]}], "timeout": 0}
    if version >= 1:
        fields["election_type"] = 0
    answer = await node.call(ELECT, version, fields)
    results = answer.replica_election_results
    assert [(item.partition_id, item.error_code) for item in results[0].partition_result] == [
        (0, ErrorCode.election_not_needed),
        (7, ErrorCode.unknown_topic_or_partition),
    ]
    everything = await node.call(ELECT, version, {**fields, "topic_partitions": None})
    assert everything.replica_election_results == ()
    if version >= 1:
        assert answer.error_code is ErrorCode.none
        odd = await node.call(ELECT, version, {**fields, "election_type": 9})
        assert odd.error_code is ErrorCode.invalid_request


@pytest.mark.parametrize("version", [0, 1])
@virtual_time
async def test_reassignments_are_begun_listed_and_taken_back(version: int) -> None:
    node = ControllerNode()
    await node.lead()
    await node.join(1, 2, 3)
    await node.create("t", (1, 2), (2, 1))

    async def move(replicas: list[int] | None, **fields: Any) -> Any:
        topics = [{"name": "t", "partitions": [{"partition_index": 0, "replicas": replicas}]}]
        answer = await node.call(REASSIGN, version, {"timeout": 0, "topics": topics, **fields})
        assert answer.error_code is ErrorCode.none
        return answer.responses[0].partitions[0].error_code

    async def listed(topics: Any = None) -> list[tuple[Any, ...]]:
        answer = await node.call(LIST_REASSIGNMENTS, 0, {"timeout": 0, "topics": topics})
        return [
            (topic.name, item.partition_index, item.replicas, item.adding_replicas, item.removing_replicas)
            for topic in answer.topics
            for item in topic.partitions
        ]

    assert await move(None) is ErrorCode.no_reassignment_in_progress
    assert await move([3, 2]) is ErrorCode.none
    under_way = ("t", 0, (3, 2, 1), (3,), (1,))
    assert await listed() == [under_way]
    assert await listed([{"name": "t", "partition_indexes": [0, 1]}]) == [under_way]
    assert await listed([{"name": "t", "partition_indexes": [1]}]) == []
    assert await move(None) is ErrorCode.none
    assert await listed() == []
    if version >= 1:
        refused = await move([3], allow_replication_factor_change=False)
        assert refused is ErrorCode.invalid_replication_factor


@pytest.mark.parametrize("version", [0, 1, 2])
@virtual_time
async def test_features_are_updated_in_every_version(version: int) -> None:
    node = ControllerNode()
    await node.lead()
    await node.join(1)

    async def update(level: int, *, down: bool, **fields: Any) -> ErrorCode:
        item: dict[str, Any] = {"feature": "transaction.version", "max_version_level": level}
        item |= {"allow_downgrade": down} if version == 0 else {"upgrade_type": 2 if down else 1}
        answer = await node.call(UPDATE_FEATURES, version, {"timeout": 0, "feature_updates": [item], **fields})
        if version < 2:
            assert answer.results[0].error_code is answer.error_code
        error: ErrorCode = answer.error_code
        return error

    assert await update(1, down=False) is ErrorCode.invalid_update_version
    assert await update(1, down=True) is ErrorCode.none
    assert node.image.features["transaction.version"] == 1
    if version >= 1:
        assert await update(2, down=False, validate_only=True) is ErrorCode.none
        assert node.image.features["transaction.version"] == 1


@virtual_time
async def test_a_broker_is_unregistered() -> None:
    node = ControllerNode()
    await node.lead()
    await node.join(1, 2)
    alive = await node.call(UNREGISTER, 0, {"broker_id": 2})
    assert (alive.error_code, alive.error_message) == (ErrorCode.invalid_request, "Broker 2 is alive: stop it.")
    await node.beat(2, want_fence=True)
    assert (await node.call(UNREGISTER, 0, {"broker_id": 2})).error_code is ErrorCode.none
    assert list(node.image.brokers) == [1]
    again = await node.call(UNREGISTER, 0, {"broker_id": 2})
    assert again.error_code is ErrorCode.broker_id_not_registered


@virtual_time
async def test_a_heartbeat_cannot_claim_to_have_seen_what_is_not_written() -> None:
    node = ControllerNode()
    await node.lead()
    await node.join(1, 2)
    answer = await node.beat(2, current_metadata_offset=2**40)
    assert answer.error_code is ErrorCode.invalid_request
    assert not node.image.brokers[BrokerId(2)].is_fenced
