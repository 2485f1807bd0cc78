"""The control records of the metadata log and its snapshots: LeaderChange, SnapshotHeader, SnapshotFooter.

Each is a control batch of one record without a producer (KIP-595, KIP-630), in version 0. Their values are for tools:
the quorum needs only that they are there, at the beginning of an epoch and at both ends of a snapshot.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

from einmal.wire.primitives import INT32, NO_TAGS, encode_length
from einmal.wire.record_batch import NewRecord, encode_batch

LEADER_CHANGE: Final = 2
SNAPSHOT_HEADER: Final = 3
SNAPSHOT_FOOTER: Final = 4

_KEY: Final = struct.Struct(">hh")
_LEADER: Final = struct.Struct(">hi")
_HEADER: Final = struct.Struct(">hq")
_VERSION: Final = struct.Struct(">h")


def leader_change(leader_id: int, voters: Sequence[int], granting: Sequence[int], timestamp: int) -> bytes:
    """The first batch of an epoch: who leads, who might have voted, who has. ``timestamp`` in ms."""
    value = _LEADER.pack(0, leader_id) + _voters(voters) + _voters(granting) + NO_TAGS
    return _control_batch(LEADER_CHANGE, value, timestamp)


def snapshot_header(
    last_contained_log_timestamp: int, timestamp: int, *, base_offset: int = 0, leader_epoch: int = 0
) -> bytes:
    value = _HEADER.pack(0, last_contained_log_timestamp) + NO_TAGS
    return _control_batch(SNAPSHOT_HEADER, value, timestamp, base_offset, leader_epoch)


def snapshot_footer(timestamp: int, *, base_offset: int, leader_epoch: int) -> bytes:
    return _control_batch(SNAPSHOT_FOOTER, _VERSION.pack(0) + NO_TAGS, timestamp, base_offset, leader_epoch)


def _voters(ids: Sequence[int]) -> bytes:
    return encode_length(len(ids), True) + b"".join(INT32.pack(voter) + NO_TAGS for voter in ids)


def _control_batch(kind: int, value: bytes, timestamp: int, base_offset: int = 0, leader_epoch: int = -1) -> bytes:
    record = NewRecord(_KEY.pack(0, kind), value, timestamp)
    return encode_batch([record], control=True, base_offset=base_offset, leader_epoch=leader_epoch)
