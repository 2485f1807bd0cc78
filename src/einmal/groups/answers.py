"""The answers to joins and syncs, as fields under kio's names.

Knows the groups' objects to read them; changes nothing.
"""

from __future__ import annotations

from typing import Final

from einmal.groups.group import Group
from einmal.groups.member import Member
from einmal.groups.requests import Response
from einmal.types import ErrorCode

_NO_GENERATION: Final = -1


def generation_answer(group: Group, member: Member) -> Response:
    """The answer to a join: the generation; for its leader, with everybody's metadata."""
    is_leader = member.member_id == group.leader
    return {
        "error_code": ErrorCode.none,
        "generation_id": group.generation_id,
        "protocol_type": group.protocol_type,
        "protocol_name": group.protocol_name,
        "leader": group.leader or "",
        "skip_assignment": False,
        "member_id": member.member_id,
        "members": tuple(
            {
                "member_id": other.member_id,
                "group_instance_id": other.group_instance_id,
                "metadata": other.metadata_for(group.protocol_name),
            }
            for other in (group.members.values() if is_leader else ())
        ),
    }


def join_error(member_id: str, error: ErrorCode) -> Response:
    return {
        "error_code": error,
        "generation_id": _NO_GENERATION,
        "protocol_type": None,
        "protocol_name": None,
        "leader": "",
        "skip_assignment": False,
        "member_id": member_id,
        "members": (),
    }


def assignment_answer(group: Group, member: Member) -> Response:
    return {
        "error_code": ErrorCode.none,
        "protocol_type": group.protocol_type,
        "protocol_name": group.protocol_name,
        "assignment": member.assignment,
    }


def sync_error(error: ErrorCode) -> Response:
    return {"error_code": error, "protocol_type": None, "protocol_name": None, "assignment": b""}
