"""Apache Kafka's own dump tool reads what the metadata quorum writes: LeaderChange records and snapshots."""

from __future__ import annotations

from pathlib import Path

import pytest

from einmal.metadata import records
from einmal.metadata.records import FeatureLevelRecord
from einmal.quorum import control_records, snapshot
from einmal.quorum.messages import OffsetAndEpoch
from einmal.types import LeaderEpoch, Offset
from einmal.wire.record_batch import patch
from tests.interop.apache_kafka import KafkaUnavailable
from tests.interop.apache_tools import dump_log

pytestmark = [pytest.mark.interop, pytest.mark.slow]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    directory = tmp_path / "__cluster_metadata-0"
    directory.mkdir()
    return directory


def _dump(path: Path) -> str:
    try:
        text = dump_log(path, "cluster-metadata")
    except KafkaUnavailable as reason:
        pytest.skip(str(reason))
    assert "isvalid: false" not in text
    return text


def test_a_leader_change_is_read(folder: Path) -> None:
    batch = bytearray(control_records.leader_change(1, (1, 2, 3), (1, 2), 1_700_000_000_000))
    patch(batch, 0, Offset(0), LeaderEpoch(4))
    path = folder / "00000000000000000000.log"
    path.write_bytes(batch)
    text = _dump(path)
    assert "partitionLeaderEpoch: 4" in text
    assert (
        'LeaderChange: {"version":0,"leaderId":1,"voters":[{"voterId":1},{"voterId":2},{"voterId":3}],'
        '"grantingVoters":[{"voterId":1},{"voterId":2}]}' in text
    )


def test_a_snapshot_is_read(folder: Path) -> None:
    values = [records.encode(FeatureLevelRecord("transaction.version", level))[1] for level in (1, 2)]
    path = folder / snapshot.file_name(OffsetAndEpoch(12, 3))
    path.write_bytes(snapshot.encode(values, 3, last_contained_log_timestamp=5, timestamp=6))
    text = _dump(path)
    assert "Snapshot end offset: 12, epoch: 3" in text
    assert 'SnapshotHeader {"version":0,"lastContainedLogTimestamp":5}' in text
    assert text.count('"FEATURE_LEVEL_RECORD"') == 2
    assert 'SnapshotFooter {"version":0}' in text
