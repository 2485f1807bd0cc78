"""State that a member of the metadata quorum must not forget: epoch, leader and vote, in Kafka's ``quorum-state`` file.

Pure: text to values and back. A vote counts only after this is on disk; a member that forgot one could vote twice in
an epoch. Written as version 0 (static voters, KIP-595); version 1 (KIP-853) is read too. A field of our own, which
Apache Kafka skips, has the CRC-32C of the others.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from google_crc32c import value as crc32c

FILE_NAME: Final = "quorum-state"
_NOBODY: Final = -1
_CHECKSUM: Final = "crc32c"


class ElectionState(NamedTuple):
    """``leader_id``: of this epoch, None while it has none or is not known; ``voted_id``: whom this member elects."""

    epoch: int = 0
    leader_id: int | None = None
    voted_id: int | None = None


def encode(state: ElectionState, cluster_id: str, voters: Sequence[int]) -> bytes:
    fields = {
        "clusterId": cluster_id,
        "leaderId": _NOBODY if state.leader_id is None else state.leader_id,
        "leaderEpoch": state.epoch,
        "votedId": _NOBODY if state.voted_id is None else state.voted_id,
        "appliedOffset": 0,
        "currentVoters": [{"voterId": voter} for voter in voters],
        "data_version": 0,
    }
    return json.dumps({**fields, _CHECKSUM: _checksum(fields)}, separators=(",", ":")).encode()


def _checksum(fields: Mapping[str, Any]) -> str:
    others = {key: value for key, value in fields.items() if key != _CHECKSUM}
    return f"{crc32c(json.dumps(others, separators=(',', ':')).encode()):08x}"


def decode(data: bytes) -> ElectionState:
    """Raises ValueError for what is not such a file."""
    try:
        fields: dict[str, Any] = json.loads(data)
        if fields["data_version"] not in (0, 1):
            raise ValueError(f"expected a quorum state of version 0 or 1, found {fields['data_version']}")
        computed = _checksum(fields)
        expected = fields.get(_CHECKSUM, computed)
        if expected != computed:
            raise ValueError(f"expected CRC-32C {expected}, found {computed}")
        return ElectionState(
            int(fields["leaderEpoch"]), _somebody(fields["leaderId"]), _somebody(fields.get("votedId", _NOBODY))
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"not a quorum state: {error}") from error


def _somebody(member: int) -> int | None:
    return None if member < 0 else int(member)
