"""Claims about the commit record's bytes."""

from __future__ import annotations

import json

import pytest

from einmal.pipeline.commit_record import CommitRecord, UnreadableCommitRecord, decode

RECORD = CommitRecord(
    transactional_id="wörter",
    query_id="q",
    checkpoint="s3://bucket/cp",
    batch_id=3,
    end=({"in": {"0": 5}}, None),
    records=9,
    digest="d",
    commit_text='v1\n{"nextBatchWatermarkMs":0}',
)


def test_a_record_is_read_back() -> None:
    assert decode(RECORD.key, RECORD.encode()) == RECORD


@pytest.mark.parametrize("value", [b"", b"{", b"[]", b"{}", b'{"version":1}', b"\xff"])
def test_what_is_no_record_is_refused(value: bytes) -> None:
    with pytest.raises(UnreadableCommitRecord):
        decode(b"t", value)


def test_a_newer_format_is_refused_by_its_number() -> None:
    fields = json.loads(RECORD.encode()) | {"version": 2}
    with pytest.raises(UnreadableCommitRecord, match="format 2"):
        decode(RECORD.key, json.dumps(fields).encode())
