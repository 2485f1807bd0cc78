"""Claims about the commit record's bytes."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from einmal.commit_protocol.commit_record import CommitRecord, UnreadableCommitRecord, decode

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


def test_a_record_names_the_transaction_that_is_prepared_with_it() -> None:
    prepared = replace(RECORD, run="r", prepared="17:3", prepared_in="cluster")
    assert decode(prepared.key, prepared.encode()) == prepared
    assert "prepared" not in json.loads(RECORD.encode())


@pytest.mark.parametrize("value", [b"", b"{", b"[]", b"{}", b'{"version":1}', b"\xff"])
def test_what_is_no_record_is_refused(value: bytes) -> None:
    with pytest.raises(UnreadableCommitRecord):
        decode(b"t", value)


def test_a_newer_format_is_refused_by_its_number() -> None:
    fields = json.loads(RECORD.encode()) | {"version": 3}
    with pytest.raises(UnreadableCommitRecord, match="format 3"):
        decode(RECORD.key, json.dumps(fields).encode())


def test_a_record_that_names_a_kept_commit_file_is_refused_by_releases_that_know_none() -> None:
    kept = replace(RECORD, commit_text="einmal/commits/5.0123")
    assert json.loads(kept.encode())["version"] == 2
    assert json.loads(replace(RECORD, commit_text="v2\n{}").encode())["version"] == 1
    assert decode(kept.key, kept.encode()) == kept


@pytest.mark.parametrize(
    "key", ["@topic=in", "@start=in=0", "@start=in=0=many", "@start=in=first=1", "@start=in=0=-7", "@start="]
)
def test_a_position_whose_identity_has_another_form_is_refused(key: str) -> None:
    end = [{"in": {"0": 5}, key: {}}]
    with pytest.raises(UnreadableCommitRecord, match="end"):
        decode(RECORD.key, json.dumps(json.loads(RECORD.encode()) | {"end": end}).encode())


@pytest.mark.parametrize(
    "field",
    ["query_id", "checkpoint", "batch_id", "end", "records", "digest", "commit_text", "prepared", "prepared_in"],
)
def test_a_field_of_another_type_is_refused_by_its_name(field: str) -> None:
    fields = json.loads(RECORD.encode()) | {field: {"a": 1}}
    with pytest.raises(UnreadableCommitRecord, match=field):
        decode(RECORD.key, json.dumps(fields).encode())
