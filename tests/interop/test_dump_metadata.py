"""Apache Kafka's own dump tool reads every kind of metadata record that we write."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from einmal.metadata.records import encode
from einmal.types import LeaderEpoch, Offset
from einmal.wire.record_batch import NewRecord, encode_batch, patch
from tests.interop.apache_kafka import KafkaUnavailable
from tests.interop.apache_tools import dump_log
from tests.metadata.test_records import RECORDS

pytestmark = [pytest.mark.interop, pytest.mark.slow]


def test_every_record_is_read_in_its_own_version_with_all_its_fields(tmp_path: Path) -> None:
    directory = tmp_path / "__cluster_metadata-0"
    directory.mkdir()
    path = directory / "00000000000000000000.log"
    batch = bytearray(encode_batch([NewRecord(*encode(record), 5) for record in RECORDS]))
    patch(batch, 0, Offset(0), LeaderEpoch(1))
    path.write_bytes(batch)
    try:
        text = dump_log(path, "cluster-metadata")
    except KafkaUnavailable as reason:
        pytest.skip(str(reason))
    told = [json.loads(line.partition("payload: ")[2]) for line in text.splitlines() if "payload: " in line]
    assert len(told) == len(RECORDS), text
    by_type: dict[str, list[dict[str, Any]]] = {}
    for item in told:
        by_type.setdefault(f"{item['type']} v{item['version']}", []).append(item["data"])
    assert sorted(by_type) == [
        "ACCESS_CONTROL_ENTRY_RECORD v0",
        "BROKER_REGISTRATION_CHANGE_RECORD v1",
        "CLIENT_QUOTA_RECORD v0",
        "CONFIG_RECORD v0",
        "FEATURE_LEVEL_RECORD v0",
        "NO_OP_RECORD v0",
        "PARTITION_CHANGE_RECORD v2",
        "PARTITION_RECORD v2",
        "PRODUCER_IDS_RECORD v0",
        "REGISTER_BROKER_RECORD v3",
        "REMOVE_ACCESS_CONTROL_ENTRY_RECORD v0",
        "REMOVE_TOPIC_RECORD v0",
        "REMOVE_USER_SCRAM_CREDENTIAL_RECORD v0",
        "TOPIC_RECORD v0",
        "UNREGISTER_BROKER_RECORD v0",
        "USER_SCRAM_CREDENTIAL_RECORD v0",
    ]
    entry = by_type["ACCESS_CONTROL_ENTRY_RECORD v0"][0]
    expected = {
        "resourceType": 2,
        "resourceName": "ab",
        "patternType": 4,
        "principal": "User:a",
        "host": "*",
        "operation": 3,
        "permissionType": 3,
    }
    assert {name: entry[name] for name in expected} == expected
    registration = by_type["REGISTER_BROKER_RECORD v3"][2]
    assert registration["fenced"] is False and registration["inControlledShutdown"] is True
    assert registration["features"] == [
        {"name": "metadata.version", "minSupportedVersion": 25, "maxSupportedVersion": 27}
    ]
    assert len(registration["logDirs"]) == 2
    partition = by_type["PARTITION_RECORD v2"][0]
    expected = {
        "replicas": [1, 2, 3],
        "isr": [],
        "removingReplicas": [1],
        "addingReplicas": [2],
        "leader": -1,
        "leaderRecoveryState": 1,
        "leaderEpoch": 5,
        "partitionEpoch": 9,
        "eligibleLeaderReplicas": [3],
        "lastKnownElr": [1],
    }
    assert {name: partition[name] for name in expected} == expected
    change = by_type["PARTITION_CHANGE_RECORD v2"][0]
    expected = {
        "isr": [],
        "leader": -1,
        "replicas": [1, 2],
        "removingReplicas": [],
        "addingReplicas": [2],
        "leaderRecoveryState": 1,
        "eligibleLeaderReplicas": [],
        "lastKnownElr": [1],
    }
    assert {name: change[name] for name in expected} == expected
    assert by_type["BROKER_REGISTRATION_CHANGE_RECORD v1"] == [
        {"brokerId": 1, "brokerEpoch": 7, "fenced": 1},
        {"brokerId": 1, "brokerEpoch": 7, "fenced": -1},
        {"brokerId": 1, "brokerEpoch": 7, "inControlledShutdown": 1},
    ]
