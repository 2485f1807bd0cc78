"""The file that a member's memory is: Kafka's own format."""

from __future__ import annotations

import json

import pytest

from einmal.quorum.election_state import ElectionState, decode, encode


@pytest.mark.parametrize("state", [ElectionState(), ElectionState(3, 1, 1), ElectionState(9, None, 2)])
def test_what_is_written_is_read(state: ElectionState) -> None:
    assert decode(encode(state, "cluster", (1, 2, 3))) == state


def test_the_file_is_kafkas_version_0() -> None:
    assert json.loads(encode(ElectionState(3, None, 1), "abc", (1, 2))) == {
        "clusterId": "abc",
        "leaderId": -1,
        "leaderEpoch": 3,
        "votedId": 1,
        "appliedOffset": 0,
        "currentVoters": [{"voterId": 1}, {"voterId": 2}],
        "data_version": 0,
        "crc32c": "76916586",
    }


def test_version_1_is_read() -> None:
    text = b'{"leaderId":2,"leaderEpoch":7,"votedId":-1,"votedDirectoryId":"AAAAAAAAAAAAAAAAAAAAAA","data_version":1}'
    assert decode(text) == ElectionState(7, 2, None)


@pytest.mark.parametrize("broken", [b"", b"{", b"[]", b"{}", b'{"data_version":9}', b'{"data_version":0}', b"\xff"])
def test_what_is_no_such_file_is_refused(broken: bytes) -> None:
    with pytest.raises(ValueError):
        decode(broken)
