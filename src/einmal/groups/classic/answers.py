"""The answers to joins and syncs.

Knows the groups' objects to read them; changes nothing.
"""

from __future__ import annotations

from einmal.groups.classic.group import ClassicGroup
from einmal.groups.classic.member import Member
from einmal.types import ErrorCode
from einmal.wire.api.join_group import JoinGroupResponse, JoinGroupResponseMember
from einmal.wire.api.sync_group import SyncGroupResponse


def generation_answer(group: ClassicGroup, member: Member) -> JoinGroupResponse:
    """The answer to a join: the generation; for its leader, with everybody's metadata."""
    is_leader = member.member_id == group.leader
    return JoinGroupResponse(
        generation_id=group.generation_id,
        protocol_type=group.protocol_type,
        protocol_name=group.protocol_name,
        leader=group.leader or "",
        member_id=member.member_id,
        members=tuple(
            JoinGroupResponseMember(
                member_id=other.member_id,
                group_instance_id=other.group_instance_id,
                metadata=other.metadata_for(group.protocol_name),
            )
            for other in (group.members.values() if is_leader else ())
        ),
    )


def join_error(member_id: str, error: ErrorCode) -> JoinGroupResponse:
    return JoinGroupResponse(error_code=error, member_id=member_id)


def assignment_answer(group: ClassicGroup, member: Member) -> SyncGroupResponse:
    return SyncGroupResponse(
        protocol_type=group.protocol_type, protocol_name=group.protocol_name, assignment=member.assignment
    )


def sync_error(error: ErrorCode) -> SyncGroupResponse:
    return SyncGroupResponse(error_code=error)
