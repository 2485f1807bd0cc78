"""Topics and their settings through the APIs, over restarts."""

from pathlib import Path, PurePosixPath
from typing import Any
from uuid import UUID

import pytest

from einmal.broker.control.boot_mark import FILE_NAME as BOOT_FILE
from einmal.broker.control.epoch_files import CLEAN_SHUTDOWN_FILE, RUNNING_FILE
from einmal.broker.coordinators.producer_ids import ProducerIdBlocks
from einmal.broker.replicas.high_watermarks import FILE_NAME as HIGH_WATERMARKS
from einmal.broker.replicas.partition_folders import PartitionFolders
from einmal.log import partition_metadata
from einmal.log.disk import OsDisk
from einmal.log.errors import LogCorruption
from einmal.metadata.image import ClusterImage, PartitionImage, TopicImage
from einmal.metadata.partition_list import PartitionList
from einmal.types import BrokerId, ErrorCode, LeaderEpoch, Offset, TopicPartition
from tests.broker.nodes import Client, batch, new_node, running_node

CREATE_TOPICS, DELETE_TOPICS, CREATE_PARTITIONS, METADATA = 19, 20, 37, 3
DESCRIBE_CONFIGS, INCREMENTAL_ALTER_CONFIGS, ALTER_CONFIGS = 32, 44, 33


async def delete(client: Client, *names: str) -> list[ErrorCode]:
    answer = await client.call(DELETE_TOPICS, 6, {"topics": [{"name": name} for name in names], "timeout": 1_000})
    return [item.error_code for item in answer.responses]


def names_in(folder: Path) -> set[str]:
    """Without the files that record how the node stopped, or that it has not."""
    return {path.name for path in folder.iterdir()} - {BOOT_FILE, CLEAN_SHUTDOWN_FILE, RUNNING_FILE, HIGH_WATERMARKS}


async def settings_of(client: Client, topic: str) -> dict[str, tuple[str, int]]:
    resource = {"resource_type": 2, "resource_name": topic, "configuration_keys": None}
    answer = await client.call(DESCRIBE_CONFIGS, 4, {"resources": [resource]})
    return {item.name: (item.value, item.config_source) for item in answer.results[0].configs}


async def test_a_topic_outlives_a_restart_with_its_id_settings_and_records(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node, Client.connect(node) as client:
        await client.create_topic("t", partitions=3, retention_ms="1234")
        await client.produce("t", batch(b"a"), partition=2)
        topic_id = node.metadata.image.topics["t"].topic_id
        cluster_id = node.identity.cluster_id
    async with running_node(tmp_path) as node, Client.connect(node) as client:
        topic = node.metadata.image.topics["t"]
        assert (topic.topic_id, len(topic.partitions)) == (topic_id, 3)
        assert node.identity.cluster_id == cluster_id
        assert (await settings_of(client, "t"))["retention.ms"] == ("1234", 1)
        assert (await client.fetch("t", 0, partition=2)).high_watermark == 1


async def test_metadata_creates_a_topic_only_where_client_and_broker_allow_it(tmp_path: Path) -> None:
    async with running_node(tmp_path, {"num.partitions": 4}) as node, Client.connect(node) as client:
        fields = {"topics": [{"name": "t"}], "allow_auto_topic_creation": False}
        refused = await client.call(METADATA, 12, fields)
        assert refused.topics[0].error_code == ErrorCode.unknown_topic_or_partition
        made = await client.call(METADATA, 12, {**fields, "allow_auto_topic_creation": True})
        assert made.topics[0].error_code == ErrorCode.none
        assert len(made.topics[0].partitions) == 4
        by_id = await client.call(METADATA, 12, {"topics": [{"topic_id": made.topics[0].topic_id, "name": None}]})
        assert by_id.topics[0].name == "t"
        bad = await client.call(METADATA, 12, {"topics": [{"name": "a b"}], "allow_auto_topic_creation": True})
        assert bad.topics[0].error_code == ErrorCode.invalid_topic_exception
    async with (
        running_node(tmp_path, {"auto.create.topics.enable": "false"}) as node,
        Client.connect(node) as client,
    ):
        fields = {"topics": [{"name": "other"}], "allow_auto_topic_creation": True}
        refused = await client.call(METADATA, 12, fields)
        assert refused.topics[0].error_code == ErrorCode.unknown_topic_or_partition


@pytest.mark.parametrize("version", [10, 11])
@pytest.mark.parametrize("name", ["t", None])
async def test_topics_are_asked_for_by_id_from_version_12_on(tmp_path: Path, version: int, name: str | None) -> None:
    """The answers of older versions must have names, which an unknown id has not."""
    async with running_node(tmp_path) as node, Client.connect(node) as client:
        await client.create_topic("t")
        question = {"topics": [{"topic_id": UUID(int=7), "name": name}]}
        old = await client.call(METADATA, version, question)
        assert [(topic.error_code, topic.name) for topic in old.topics] == [(ErrorCode.invalid_request, name or "")]
        new = await client.call(METADATA, 12, question)
        assert [(topic.error_code, topic.name) for topic in new.topics] == [(ErrorCode.unknown_topic_id, None)]


async def test_a_failed_creation_is_not_reported_to_a_client_that_did_not_ask_for_it(tmp_path: Path) -> None:
    async with running_node(tmp_path, {"default.replication.factor": 3}) as node, Client.connect(node) as client:
        fields = {"topics": [{"name": "t"}], "allow_auto_topic_creation": True}
        refused = await client.call(METADATA, 12, fields)
        assert refused.topics[0].error_code == ErrorCode.invalid_replication_factor
        unknown = await client.call(METADATA, 12, {**fields, "allow_auto_topic_creation": False})
        assert unknown.topics[0].error_code == ErrorCode.unknown_topic_or_partition


async def test_metadata_of_every_version_names_broker_and_leader(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node, Client.connect(node) as client:
        await client.create_topic("t", partitions=2)
        for version in range(14):
            for _again in range(2):
                answer = await client.call(METADATA, version, {"topics": [{"name": "t"}]})
                assert [(item.node_id, item.port) for item in answer.brokers] == [(1, node.port)]
                assert [item.leader_id for item in answer.topics[0].partitions] == [1, 1]
        everything = await client.call(METADATA, 1, {"topics": None})
        assert [topic.name for topic in everything.topics] == ["t"]


async def test_a_deleted_topic_is_gone_and_a_new_one_of_its_name_is_empty(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node, Client.connect(node) as client:
        await client.create_topic("t", partitions=2)
        await client.produce("t", batch(b"a"))
        old_id = node.metadata.image.topics["t"].topic_id
        assert await delete(client, "t", "unknown") == [ErrorCode.none, ErrorCode.unknown_topic_or_partition]
        assert (await client.produce("t", batch(b"a"))).error_code is ErrorCode.unknown_topic_or_partition
        await client.create_topic("t")
        assert node.metadata.image.topics["t"].topic_id != old_id
        assert (await client.fetch("t", 0)).high_watermark == 0
        gone = await client.fetch(old_id, 0, version=13)
        assert gone.error_code is ErrorCode.unknown_topic_id
    assert names_in(tmp_path) == {"t-0", "__cluster_metadata-0", "meta.properties"}


async def test_a_deletion_that_was_cut_off_is_finished_by_the_next_start(tmp_path: Path) -> None:
    deleted = tmp_path / f"t-0.{UUID(int=5).hex}-delete"
    async with running_node(tmp_path) as node, Client.connect(node) as client:
        await client.create_topic("t")
    deleted.mkdir()
    (deleted / "00000000000000000000.log").write_bytes(b"x")
    (deleted / "partition.metadata").write_bytes(partition_metadata.encode(UUID(int=5)))
    (tmp_path / f"t-1.{UUID(int=5).hex}-delete").mkdir()
    async with running_node(tmp_path) as node:
        assert [str(item.topic_partition) for item in node.partitions] == ["t-0"]
    assert names_in(tmp_path) == {"t-0", "__cluster_metadata-0", "meta.properties"}


async def test_a_deletion_that_is_committed_while_its_broker_is_down_is_carried_out_by_the_next_start(
    tmp_path: Path,
) -> None:
    async with running_node(tmp_path) as node, Client.connect(node) as client:
        await client.create_topic("t")
        await client.produce("t", batch(b"a"))
        node.partitions.apply = lambda delta, image: None  # type: ignore[method-assign]
        assert await delete(client, "t") == [ErrorCode.none]
    assert "t-0" in names_in(tmp_path)
    async with running_node(tmp_path):
        pass
    assert names_in(tmp_path) == {"__cluster_metadata-0", "meta.properties"}


def stray_names(tmp_path: Path) -> list[str]:
    return sorted(name for name in names_in(tmp_path) if name.endswith("-stray"))


async def test_a_directory_of_no_topic_is_kept_as_stray_and_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with running_node(tmp_path) as node, Client.connect(node) as client:
        await client.create_topic("kept")
    (tmp_path / "gone-0").mkdir()
    (tmp_path / "gone-0" / "00000000000000000000.log").write_bytes(b"x")
    (tmp_path / "gone-0" / "partition.metadata").write_bytes(partition_metadata.encode(UUID(int=5)))
    for _ in range(2):
        async with running_node(tmp_path) as node:
            assert [str(item.topic_partition) for item in node.partitions] == ["kept-0"]
    stray = f"gone-0.{UUID(int=5).hex}-stray"
    assert names_in(tmp_path) == {"kept-0", stray, "__cluster_metadata-0", "meta.properties"}
    assert (tmp_path / stray / "00000000000000000000.log").read_bytes() == b"x"
    assert [stray in record.getMessage() for record in caplog.records if record.levelname == "WARNING"] == [True]


async def test_the_directory_of_an_earlier_topic_of_the_same_name_is_kept_as_stray(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node, Client.connect(node) as client:
        await client.create_topic("t")
        await client.produce("t", batch(b"a"))
    path = tmp_path / "t-0"
    (path / "partition.metadata").write_bytes(partition_metadata.encode(UUID(int=5)))
    (path / "recovery-checkpoint").unlink()
    # This broker has never heard of the topic that has the name now.
    (tmp_path / HIGH_WATERMARKS).unlink()
    async with running_node(tmp_path) as node, Client.connect(node) as client:
        assert (await client.fetch("t", 0)).high_watermark == 0
    stray = f"t-0.{UUID(int=5).hex}-stray"
    assert stray_names(tmp_path) == [stray]
    assert (tmp_path / stray / "00000000000000000000.log").stat().st_size > 0


@pytest.mark.parametrize("other", [HIGH_WATERMARKS, "t-0/recovery-checkpoint"])
async def test_a_directory_whose_identity_is_contradicted_is_neither_deleted_nor_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, other: str
) -> None:
    async with running_node(tmp_path) as node, Client.connect(node) as client:
        await client.create_topic("t")
        await client.create_topic("other")
        await client.produce("t", batch(b"a"))
    path = tmp_path / "t-0" / "partition.metadata"
    before = path.read_bytes()
    path.write_bytes(partition_metadata.encode(UUID(int=5)))
    (tmp_path / other).unlink()
    async with running_node(tmp_path) as node, Client.connect(node) as client:
        assert (await client.produce("t", batch(b"b"))).error_code is ErrorCode.kafka_storage_error
        assert (await client.produce("other", batch(b"b"))).error_code is ErrorCode.none
    assert any("t-0 is offline" in record.getMessage() for record in caplog.records)
    path.unlink()
    async with running_node(tmp_path) as node, Client.connect(node) as client:
        assert (await client.fetch("t", 0)).high_watermark == 1
    assert path.read_bytes() == before
    assert stray_names(tmp_path) == []


def test_long_names_of_two_partitions_do_not_meet_when_they_are_moved_aside(tmp_path: Path) -> None:
    folders = PartitionFolders(OsDisk(), PurePosixPath(tmp_path))
    for partition in range(2):
        (tmp_path / f"{'x' * 249}-{partition}").mkdir()
        folders.move_aside(TopicPartition("x" * 249, partition), UUID(int=5), "a test")
    assert len(stray_names(tmp_path)) == 2
    assert all(len(name) == 255 for name in stray_names(tmp_path))


INTERNAL = "__cluster_metadata"


@pytest.mark.parametrize("way", ["create", "auto-create", "produce"])
async def test_no_request_creates_a_topic_with_the_name_of_the_metadata_log(tmp_path: Path, way: str) -> None:
    async with running_node(tmp_path) as node, Client.connect(node) as client:
        await client.create_topic("t")
        if way == "create":
            topic = {"name": INTERNAL, "num_partitions": 1, "replication_factor": 1}
            answer = await client.call(19, 7, {"topics": [topic], "timeout": 9_000})
            assert answer.topics[0].error_code is ErrorCode.invalid_request
        elif way == "auto-create":
            asked = {"topics": [{"name": INTERNAL}], "allow_auto_topic_creation": True}
            answer = await client.call(3, 9, asked)
            assert answer.topics[0].error_code is ErrorCode.unknown_topic_or_partition
        else:
            answer = await client.produce(INTERNAL, batch(b"a"))
            assert answer.error_code is ErrorCode.unknown_topic_or_partition
        assert await delete(client, INTERNAL) == [ErrorCode.unknown_topic_or_partition]
        assert list(node.metadata.image.topics) == ["t"]
    async with running_node(tmp_path) as node:
        assert list(node.metadata.image.topics) == ["t"]
    assert names_in(tmp_path) == {"t-0", "__cluster_metadata-0", "meta.properties"}


async def test_a_topic_that_an_earlier_version_let_have_that_name_does_not_touch_the_metadata_log(
    tmp_path: Path,
) -> None:
    async with running_node(tmp_path) as node:
        own = (BrokerId(node.config.node_id),)
        partition = PartitionImage(own[0], LeaderEpoch(0), own, own, 0)
        node.partitions.open_all(
            ClusterImage(topics={INTERNAL: TopicImage(INTERNAL, UUID(int=5), PartitionList([partition]))})
        )
        assert not list(node.partitions)
    async with running_node(tmp_path):
        pass
    assert names_in(tmp_path) == {"__cluster_metadata-0", "meta.properties"}


async def test_data_without_their_metadata_are_not_touched(tmp_path: Path) -> None:
    (tmp_path / "t-0").mkdir()
    with pytest.raises(LogCorruption, match="with the ids of its cluster"):
        await new_node(tmp_path).start()
    assert (tmp_path / "t-0").exists()


async def test_partitions_can_be_added_and_never_taken_away(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node, Client.connect(node) as client:
        await client.create_topic("t", partitions=2)

        async def resize(count: int) -> ErrorCode:
            topics = [{"name": "t", "count": count, "assignments": None}]
            answer = await client.call(CREATE_PARTITIONS, 3, {"topics": topics, "timeout": 1_000})
            code: ErrorCode = answer.results[0].error_code
            return code

        assert await resize(1) is ErrorCode.invalid_partitions
        assert await resize(2) is ErrorCode.invalid_partitions
        assert await resize(4) is ErrorCode.none
        assert (await client.produce("t", batch(b"a"), partition=3)).error_code is ErrorCode.none
        assert await resize(2**31 - 1) is ErrorCode.invalid_partitions


async def test_settings_are_set_appended_and_taken_back(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node, Client.connect(node) as client:
        await client.create_topic("t")

        async def change(name: str, operation: int, value: str | None) -> ErrorCode:
            configs = [{"name": name, "config_operation": operation, "value": value}]
            resources = [{"resource_type": 2, "resource_name": "t", "configs": configs}]
            answer = await client.call(INCREMENTAL_ALTER_CONFIGS, 1, {"resources": resources})
            code: ErrorCode = answer.responses[0].error_code
            return code

        assert await change("max.message.bytes", 0, "500") is ErrorCode.none
        assert (await client.produce("t", batch(bytes(600)))).error_code is ErrorCode.message_too_large
        assert await change("max.message.bytes", 1, None) is ErrorCode.none
        assert (await client.produce("t", batch(bytes(600)))).error_code is ErrorCode.none
        assert await change("cleanup.policy", 2, "compact") is ErrorCode.none
        assert await change("cleanup.policy", 0, "burn") is ErrorCode.invalid_config
        assert await change("no.such.setting", 0, "1") is ErrorCode.invalid_config
        settings = await settings_of(client, "t")
        assert settings["cleanup.policy"] == ("delete,compact", 1)
        assert settings["max.message.bytes"] == ("1048588", 5)
        resource = {"resource_type": 2, "resource_name": "t", "configs": [{"name": "retention.ms", "value": "5"}]}
        await client.call(ALTER_CONFIGS, 2, {"resources": [resource]})
        settings = await settings_of(client, "t")
        assert settings["retention.ms"] == ("5", 1)
        assert settings["cleanup.policy"] == ("delete", 5)


async def test_broker_settings_cannot_be_changed_but_unset_ones_can_be_deleted(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node, Client.connect(node) as client:

        async def change(broker: str, *operations: int) -> ErrorCode:
            configs = [{"name": f"s{each}", "config_operation": each, "value": "1"} for each in operations]
            resources = [{"resource_type": 4, "resource_name": broker, "configs": configs}]
            answer = await client.call(INCREMENTAL_ALTER_CONFIGS, 1, {"resources": resources})
            code: ErrorCode = answer.responses[0].error_code
            return code

        assert await change("1", 1) is ErrorCode.none
        assert await change("1", 1, 0) is ErrorCode.invalid_request
        assert await change("", 1) is ErrorCode.none
        assert await change("", 0) is ErrorCode.invalid_config
        configs = [{"name": "num.partitions", "value": "1"}]
        resources = [{"resource_type": 4, "resource_name": "1", "configs": configs}]
        answer = await client.call(ALTER_CONFIGS, 2, {"resources": resources})
        assert answer.responses[0].error_code is ErrorCode.invalid_request


async def test_describe_configs_returns_the_brokers_own_settings(tmp_path: Path) -> None:
    async with running_node(tmp_path, {"num.partitions": 3}) as node, Client.connect(node) as client:
        resource = {"resource_type": 4, "resource_name": "1", "configuration_keys": ["num.partitions", "log.dirs"]}
        answer = await client.call(DESCRIBE_CONFIGS, 4, {"resources": [resource]})
        assert not any(item.synonyms or item.documentation for item in answer.results[0].configs)
        told = {item.name: (item.value, item.config_source, item.read_only) for item in answer.results[0].configs}
        assert told == {"num.partitions": ("3", 4, True), "log.dirs": (str(tmp_path), 4, True)}


async def test_internal_topics_are_made_as_coordinators_need_them(tmp_path: Path) -> None:
    settings = {"offsets.topic.num.partitions": 5, "transaction.state.log.num.partitions": 7}
    async with running_node(tmp_path, settings) as node, Client.connect(node) as client:
        assert await node.topic_creation.ensure("__consumer_offsets") is ErrorCode.none
        assert await node.topic_creation.ensure("__transaction_state") is ErrorCode.none
        assert await node.topic_creation.ensure("__transaction_state") is ErrorCode.none
        assert len(node.partitions) == 12
        answer = await client.call(METADATA, 12, {"topics": [{"name": "__consumer_offsets"}]})
        assert answer.topics[0].is_internal
        assert (await settings_of(client, "__consumer_offsets"))["cleanup.policy"][0] == "compact"
        assert await delete(client, "__consumer_offsets") == [ErrorCode.invalid_topic_exception]


async def test_a_partition_that_cannot_be_opened_is_offline_and_the_others_serve(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node, Client.connect(node) as client:
        await client.create_topic("t", partitions=2)
        await client.produce("t", batch(b"a"), partition=1)
    folder = tmp_path / "t-0"
    (tmp_path / "away").mkdir()
    folder.rename(tmp_path / "away" / "t-0")
    folder.write_text("a file where a folder must be")
    async with running_node(tmp_path) as node, Client.connect(node) as client:
        assert node.partitions.get(TopicPartition("t", 0)) is None
        assert (await client.produce("t", batch(b"a"))).error_code is ErrorCode.kafka_storage_error
        assert (await client.fetch("t", 0)).error_code is ErrorCode.kafka_storage_error
        assert (await client.fetch("t", 0, partition=1)).high_watermark == 1
        folder.unlink()
        node.partitions.open_all(node.metadata.image)
        assert (await client.produce("t", batch(b"a"))).error_code is ErrorCode.none


async def test_a_partition_that_cannot_be_made_is_not_reported_as_made(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node, Client.connect(node) as client:
        (tmp_path / "t-1").write_text("a file where a folder must be")
        (tmp_path / "u-1").write_text("another one")
        topics = [{"name": name, "num_partitions": 2, "replication_factor": 1} for name in ("t", "whole")]
        topics += [{"name": "u", "num_partitions": 1, "replication_factor": 1}]
        created = (await client.call(CREATE_TOPICS, 7, {"topics": topics, "timeout": 600_000})).topics
        assert [each.error_code for each in created] == [ErrorCode.kafka_storage_error, ErrorCode.none, ErrorCode.none]
        assert "t-1 is offline" in created[0].error_message and str(tmp_path / "t-1") in created[0].error_message
        wider = {"topics": [{"name": name, "count": 3, "assignments": None} for name in "tu"], "timeout_ms": 600_000}
        added = (await client.call(CREATE_PARTITIONS, 3, wider)).results
        assert [each.error_code for each in added] == [ErrorCode.none, ErrorCode.kafka_storage_error]
        (tmp_path / "t-1").unlink()
        node.partitions.open_all(node.metadata.image)
        assert (await client.produce("t", batch(b"a"), partition=1)).error_code is ErrorCode.none
        (tmp_path / "u-1").unlink()
        node.partitions.open_all(node.metadata.image)


async def test_producer_ids_are_allocated_in_disjoint_blocks(tmp_path: Path) -> None:
    blocks = []
    for _ in range(2):
        async with running_node(tmp_path) as node:
            allocate = ProducerIdBlocks(node.identity, node.controller_channel).allocate
            blocks += [await allocate() for _ in range(2)]
    assert blocks == [range(start, start + 1_000) for start in (0, 1_000, 2_000, 3_000)]


async def test_a_folder_that_only_has_a_name_like_a_partitions_is_left_alone(tmp_path: Path) -> None:
    async with running_node(tmp_path):
        (tmp_path / "backup-2025").mkdir()
        (tmp_path / "backup-2025" / "precious").write_text("x")
    async with running_node(tmp_path):
        assert (tmp_path / "backup-2025" / "precious").exists()


async def test_partitions_whose_cluster_metadata_is_gone_are_not_taken_for_deleted_ones(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node, Client.connect(node) as client:
        await client.create_topic("t")
        await client.produce("t", batch(b"a"))
    for file in (tmp_path / "__cluster_metadata-0").iterdir():
        file.unlink()
    with pytest.raises(LogCorruption, match="__cluster_metadata"):
        await new_node(tmp_path).start()
    assert (tmp_path / "t-0" / "00000000000000000000.log").stat().st_size > 0


async def test_pending_work_of_a_deleted_partition_does_not_touch_its_successor(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node, Client.connect(node) as client:
        await client.create_topic("t")
        await client.produce("t", batch(b"a"))
        partition = node.partitions.get(TopicPartition("t", 0))
        assert partition is not None
        partition.delete_records_before(Offset(1))
        assert partition._log.durability.checkpoint_due
        assert await delete(client, "t") == [ErrorCode.none]
        await client.create_topic("t")
        before = names_in(tmp_path / "t-0")
        await partition.checkpoint()
        assert names_in(tmp_path / "t-0") == before


async def test_cluster_wide_settings_change_at_once_and_are_described_with_their_source(tmp_path: Path) -> None:
    async with running_node(tmp_path, {"message.max.bytes": 1_000}) as node, Client.connect(node) as client:
        await client.create_topic("t")

        async def change(resource_type: int, name: str, key: str, value: str, operation: int = 0) -> Any:
            configs = [{"name": key, "config_operation": operation, "value": value}]
            resource = {"resource_type": resource_type, "resource_name": name, "configs": configs}
            answer = await client.call(INCREMENTAL_ALTER_CONFIGS, 1, {"resources": [resource]})
            return answer.responses[0]

        async def described(resource_type: int, name: str, key: str) -> Any:
            resource = {"resource_type": resource_type, "resource_name": name, "configuration_keys": [key]}
            fields = {"resources": [resource], "include_synonyms": True, "include_documentation": True}
            (entry,) = (await client.call(DESCRIBE_CONFIGS, 4, fields)).results[0].configs
            return entry

        assert (await change(4, "", "message.max.bytes", "500")).error_code is ErrorCode.none
        assert (await client.produce("t", batch(bytes(600)))).error_code is ErrorCode.message_too_large
        entry = await described(2, "t", "max.message.bytes")
        assert (entry.value, entry.config_source) == ("500", 3)
        assert [(each.name, each.value, each.source) for each in entry.synonyms] == [
            ("message.max.bytes", "500", 3),
            ("message.max.bytes", "1000", 4),
        ]
        entry = await described(4, "1", "message.max.bytes")
        assert (entry.value, entry.config_source, entry.read_only) == ("500", 3, False)
        assert entry.documentation
        assert (await described(4, "", "message.max.bytes")).value == "500"
        assert (await change(4, "", "message.max.bytes", "", 1)).error_code is ErrorCode.none
        assert (await client.produce("t", batch(bytes(600)))).error_code is ErrorCode.none
        refused = await change(32, "g", "consumer.session.timeout.ms", "5")
        assert (refused.error_code, "KIP-848" in refused.error_message) == (ErrorCode.invalid_request, True)
        refused = await change(4, "1", "message.max.bytes", "5")
        assert (refused.error_code, "all brokers" in refused.error_message) == (ErrorCode.invalid_request, True)


async def test_acl_requests_get_security_disabled(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node, Client.connect(node) as client:
        every = {"resource_type_filter": 1, "operation": 1, "permission_type": 1, "pattern_type_filter": 1}
        own = {"resource_type": 2, "resource_name": "t", "resource_pattern_type": 3, "principal": "User:a"}
        own |= {"host": "*", "operation": 3, "permission_type": 3}
        for version in (1, 2, 3):
            assert (await client.call(29, version, every)).error_code is ErrorCode.security_disabled
            answer = await client.call(30, version, {"creations": [own, own]})
            assert [each.error_code for each in answer.results] == [ErrorCode.security_disabled] * 2
            answer = await client.call(31, version, {"filters": [every]})
            assert [each.error_code for each in answer.filter_results] == [ErrorCode.security_disabled]


async def test_a_replica_can_be_moved_only_to_the_folder_where_it_is(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node, Client.connect(node) as client:
        await client.create_topic("t")

        async def move(path: str, topic: str) -> ErrorCode:
            dirs = [{"path": path, "topics": [{"name": topic, "partitions": [0]}]}]
            answer = await client.call(34, 2, {"dirs": dirs})
            code: ErrorCode = answer.results[0].partitions[0].error_code
            return code

        assert await move(str(tmp_path), "t") is ErrorCode.none
        assert await move("/elsewhere", "t") is ErrorCode.log_dir_not_found
        assert await move(str(tmp_path), "no") is ErrorCode.unknown_topic_or_partition
