"""Members of the quorum on simulated disks and links: who leads, what is committed, and what a restart finds."""

from __future__ import annotations

import asyncio
import json
import statistics
from functools import partial
from pathlib import PurePosixPath
from typing import Any, cast

import pytest

from einmal.broker.control.quorum_messages import VERSION, snapshot_request
from einmal.broker.front.authorization.access import Access
from einmal.broker.front.context import RequestContext
from einmal.broker.front.handlers.begin_quorum_epoch import BeginQuorumEpochHandler
from einmal.broker.front.handlers.end_quorum_epoch import EndQuorumEpochHandler
from einmal.broker.front.handlers.vote import VoteHandler
from einmal.broker.resources.turns import Turns
from einmal.metadata.image import METADATA_TOPIC_ID
from einmal.quorum.messages import OffsetAndEpoch
from einmal.types import ErrorCode, Offset
from einmal.wire.api.fetch_snapshot import API as FETCH_SNAPSHOT
from einmal.wire.fetch import FetchPartition, FetchRequest, decode_fetch_response
from einmal.wire.messages import RequestHeader
from tests.broker.quorum_members import Member, Quorum
from tests.virtual_time import virtual_time
from tests.wire.mapped import decode_response, encode_request

FOLDER = PurePosixPath("/data/__cluster_metadata-0")


def levels(member: Member) -> dict[str, int]:
    return dict(member.metadata.image.features)


def file_names(quorum: Quorum, member: Member) -> list[str]:
    return [name for name in member.disk.list_directory(FOLDER) if name.endswith(".checkpoint")]


async def leader_with_a_snapshot(quorum: Quorum) -> Member:
    """The leader of two members, whose log continues after a snapshot."""
    await quorum.start(1, 2)
    leader = await quorum.settled()
    for number in range(100):
        await leader.quorum.partition.committed(leader.append(f"feature {number % 10}", number))
    await quorum.until(lambda: leader.quorum.partition.log_start_offset > 0)
    return leader


@virtual_time
async def test_a_single_voter_leads_when_it_has_started_and_finds_all_of_its_log_again() -> None:
    quorum = Quorum(voters=1)
    for start in range(1, 4):
        await quorum.start(1)
        member = quorum.members[1]
        assert member.quorum.is_leader
        assert member.controller.epoch == member.quorum.leader_epoch == start
        assert levels(member) == {f"feature {n}": 1 for n in range(1, start)}
        offset = member.append(f"feature {start}")
        await member.quorum.partition.committed(offset)
        await quorum.stop(1)


@virtual_time
async def test_what_the_leader_appends_is_committed_and_published_on_every_member_and_observer() -> None:
    quorum = Quorum(observers=1)
    await quorum.start()
    leader = await quorum.settled()
    begun = quorum.loop.time()
    offset = leader.append("one")
    await quorum.committed_everywhere(offset)
    assert quorum.loop.time() - begun < 0.05
    assert all(levels(member) == {"one": 1} for member in quorum.members.values())
    assert [m.node_id for m in quorum.members.values() if m.controller.epoch is not None] == [leader.node_id]


@virtual_time
async def test_records_are_published_before_waiters_for_their_commit_run() -> None:
    quorum = Quorum()
    await quorum.start()
    leader = await quorum.settled()
    offset = leader.append("one")
    assert await leader.quorum.partition.committed(offset) is ErrorCode.none
    assert levels(leader) == {"one": 1}


@pytest.mark.parametrize("power_cut", [False, True])
def test_what_was_committed_survives_the_leader(power_cut: bool) -> None:
    for seed in range(10):
        survive_leaders(seed, power_cut)


@virtual_time
async def survive_leaders(seed: int, power_cut: bool) -> None:
    quorum = Quorum(seed)
    await quorum.start()
    for round_ in range(4):
        leader = await quorum.settled()
        offset = leader.append(f"feature {round_}")
        assert await leader.quorum.partition.committed(offset) is ErrorCode.none
        leader.append("never")
        quorum.kill(leader.node_id, power_cut=power_cut)
        successor = await quorum.settled()
        await quorum.until(lambda n=round_, m=successor: f"feature {n}" in levels(m))
        await quorum.start(leader.node_id)
    leader = await quorum.settled()
    await quorum.committed_everywhere(leader.append("last"))
    logs = {bytes(m.quorum.partition.read(Offset(0), 1 << 20, below=Offset(1 << 30))) for m in quorum.members.values()}
    assert len(logs) == 1


@virtual_time
async def seconds_to_replace_a_killed_leader(seed: int) -> float:
    quorum = Quorum(seed)
    await quorum.start()
    leader = await quorum.settled()
    await quorum.committed_everywhere(leader.append("one"))
    quorum.kill(leader.node_id)
    begun = quorum.loop.time()
    successor = await quorum.settled()
    await quorum.committed_everywhere(successor.append("two"))
    return quorum.loop.time() - begun


def test_a_killed_leader_is_replaced_within_300_ms_in_the_median() -> None:
    durations = [seconds_to_replace_a_killed_leader(seed) for seed in range(40)]
    assert statistics.median(durations) < 0.3
    assert sorted(durations)[-2] < 2.0


@virtual_time
async def seconds_to_hand_over(seed: int) -> float:
    quorum = Quorum(seed)
    await quorum.start()
    leader = await quorum.settled()
    await quorum.committed_everywhere(leader.append("one"))
    begun = quorum.loop.time()
    await quorum.stop(leader.node_id)
    await quorum.settled()
    return quorum.loop.time() - begun


def test_a_leader_that_stops_hands_over_at_once() -> None:
    assert max(seconds_to_hand_over(seed) for seed in range(10)) < 0.15


@virtual_time
async def test_a_leader_that_is_cut_off_resigns_and_what_it_could_not_commit_is_cut_away() -> None:
    quorum = Quorum()
    await quorum.start()
    leader = await quorum.settled()
    await quorum.committed_everywhere(leader.append("one"))
    quorum.cut = {(leader.node_id, n) for n in quorum.ids} | {(n, leader.node_id) for n in quorum.ids}
    offset = leader.append("lost")
    waiting = leader.quorum.partition.when_committed(offset)
    others = [member for member in quorum.members.values() if member is not leader]
    await quorum.until(lambda: any(member.quorum.is_leader for member in others))
    successor = next(member for member in others if member.quorum.is_leader)
    kept = successor.append("kept")
    assert await waiting is ErrorCode.not_leader_or_follower
    assert leader.controller.epoch is None
    quorum.cut.clear()
    await quorum.committed_everywhere(kept)
    assert all(levels(member) == {"one": 1, "kept": 1} for member in quorum.members.values())


@virtual_time
async def test_the_log_continues_after_a_snapshot_and_a_new_member_loads_the_snapshot() -> None:
    quorum = Quorum(metadata_log_max_record_bytes_between_snapshots=2_000)
    leader = await leader_with_a_snapshot(quorum)
    assert len(file_names(quorum, leader)) == 1
    expected = levels(leader)
    await quorum.start(3)
    newcomer = quorum.members[3]
    await quorum.until(lambda: newcomer.quorum.snapshots.latest is not None)
    assert newcomer.quorum.partition.log_start_offset > 0
    await quorum.committed_everywhere(leader.append("last"))
    assert levels(newcomer) == {**expected, "last": 1} == levels(leader)
    for node_id in quorum.ids:
        quorum.kill(node_id, power_cut=True)
    await quorum.start()
    again = await quorum.settled()
    await quorum.committed_everywhere(again.append("again"))
    assert all(levels(m) == {**expected, "last": 1, "again": 1} for m in quorum.members.values())


@virtual_time
async def test_a_snapshot_that_cannot_be_read_is_not_fetched_in_a_loop() -> None:
    quorum = Quorum(metadata_log_max_record_bytes_between_snapshots=2_000)
    leader = await leader_with_a_snapshot(quorum)
    read, asked = leader.quorum.snapshots.read, []

    def garbage(snapshot_id: OffsetAndEpoch, position: int, size: int) -> tuple[bytes, int]:
        asked.append(quorum.loop.time())
        return bytes(100), 100

    leader.quorum.snapshots.read = garbage  # type: ignore[method-assign]
    await quorum.start(3)
    await asyncio.sleep(10)
    assert 2 < len(asked) < 50
    leader.quorum.snapshots.read = read  # type: ignore[method-assign]
    await quorum.until(lambda: quorum.members[3].quorum.snapshots.latest is not None)


@virtual_time
async def rotten_on_the_leader(has_snapshot: bool) -> None:
    """A new member needs what the leader's disk has lost since it was written; the third one has it."""
    quorum = Quorum(metadata_log_max_record_bytes_between_snapshots=2_000 if has_snapshot else 1 << 20)
    await quorum.start()
    leader = await quorum.settled()
    for number in range(100 if has_snapshot else 0):
        await quorum.committed_everywhere(leader.append(f"feature {number % 10}", number))
    await quorum.committed_everywhere(leader.append("one"))
    newcomer = next(m for m in quorum.members.values() if m is not leader)
    quorum.kill(newcomer.node_id)
    quorum.disks[newcomer.node_id].wipe()
    suffix = ".checkpoint" if has_snapshot else ".log"
    (name,) = [each for each in leader.disk.list_directory(FOLDER) if each.endswith(suffix)]
    data = quorum.disks[leader.node_id].inode(FOLDER / name).data
    data[len(data) // 2] ^= 1
    await quorum.start(newcomer.node_id)
    await quorum.until(lambda: "one" in levels(quorum.members[newcomer.node_id]), 30)
    assert quorum.leader not in (None, leader)


@pytest.mark.parametrize("has_snapshot", [False, True])
def test_a_leader_whose_metadata_is_damaged_lets_another_voter_lead(has_snapshot: bool) -> None:
    rotten_on_the_leader(has_snapshot)


@pytest.mark.parametrize("max_bytes", [-(2**31), -1, 0, 100, 2**31 - 1])
@virtual_time
async def test_the_parts_of_a_snapshot_in_one_answer_share_its_bytes(max_bytes: int) -> None:
    """The same part, named often, was read each time: gigabytes for one request."""
    quorum = Quorum(metadata_log_max_record_bytes_between_snapshots=2_000)
    leader = await leader_with_a_snapshot(quorum)
    snapshots = leader.quorum.snapshots
    assert snapshots.latest is not None
    size = len(leader.disk.read_file(snapshots._path(snapshots.latest)))
    request = snapshot_request(leader.quorum.cluster_id, 2, leader.quorum.leader_epoch, snapshots.latest, 0, max_bytes)
    (topic,) = request.topics
    request = request._replace(topics=(topic._replace(partitions=topic.partitions * 50),))
    asker = next(member for member in quorum.members.values() if member is not leader)
    answer = await asker.ask(
        leader.node_id, FETCH_SNAPSHOT, VERSION[FETCH_SNAPSHOT.key], request, timeout_ms=2_000, lane="quorum"
    )
    parts = [part for topic in answer.topics for part in topic.partitions]
    assert all(part.error_code is ErrorCode.none for part in parts)
    assert sum(len(part.unaligned_records) for part in parts) <= max(0, min(max_bytes, 50 * size))


@virtual_time
async def test_a_vote_that_cannot_be_written_down_is_not_given_and_the_member_comes_back() -> None:
    quorum = Quorum()
    await quorum.start()
    leader = await quorum.settled()
    follower = next(member for member in quorum.members.values() if member is not leader)
    state = json.loads(follower.disk.read_file(FOLDER / "quorum-state"))
    assert state["leaderId"] == leader.node_id
    write_file = follower.disk.write_file
    refused = []

    def full(path: PurePosixPath, data: Any) -> None:
        if path.name == "quorum-state":
            refused.append(path)
            raise OSError(28, "no space left on device")
        write_file(path, data)

    follower.disk.write_file = full  # type: ignore[method-assign]
    quorum.kill(leader.node_id)
    await quorum.until(lambda: len(refused) > 2)
    assert json.loads(follower.disk.read_file(FOLDER / "quorum-state")) == state
    assert quorum.leader is None
    follower.disk.write_file = write_file  # type: ignore[method-assign]
    await quorum.settled()


@virtual_time
async def test_the_leader_describes_the_quorum() -> None:
    quorum = Quorum(observers=1)
    await quorum.start()
    leader = await quorum.settled()
    offset = leader.append("one")
    await quorum.committed_everywhere(offset)
    described = await quorum.describe(leader)
    assert (described.leader_id, described.leader_epoch) == (leader.node_id, leader.quorum.leader_epoch)
    assert described.high_watermark == offset + 1
    assert {voter.replica_id: voter.log_end_offset for voter in described.current_voters} == {
        1: offset + 1,
        2: offset + 1,
        3: offset + 1,
    }
    assert [observer.replica_id for observer in described.observers] == [4]
    assert all(abs(v.last_fetch_timestamp - leader.clock.now().wall_ms) < 1_000 for v in described.current_voters)
    other = next(member for member in quorum.members.values() if member is not leader)
    refused = await quorum.describe(other)
    assert (refused.error_code, refused.leader_id) == (ErrorCode.not_leader_or_follower, leader.node_id)


@virtual_time
async def test_waiting_for_a_leader_ends_at_the_timeout() -> None:
    quorum = Quorum()
    await quorum.start(1)
    member = quorum.members[1]
    assert await member.quorum.leader_known(0.5) is None
    await quorum.start(2, 3)
    assert await member.quorum.leader_known(5.0) is not None


@pytest.mark.parametrize("part", [0, *(pytest.param(part, marks=pytest.mark.long) for part in (1, 2))])
def test_under_random_faults_no_committed_record_is_lost_and_all_members_agree(part: int) -> None:
    for seed in range(part * 20, part * 20 + 20):
        storm(seed)


@virtual_time
async def storm(seed: int) -> None:
    quorum = Quorum(seed, observers=seed % 2, metadata_log_max_record_bytes_between_snapshots=1_500)
    source = quorum.source
    acknowledged: dict[str, int] = {}

    def note(name: str, number: int, done: asyncio.Future[ErrorCode]) -> None:
        if done.result() is ErrorCode.none:
            acknowledged[name] = number

    await quorum.start()
    for number in range(60):
        await asyncio.sleep(source.uniform(0, 0.3))
        await strike(quorum)
        for member in list(quorum.members.values()):
            if member.quorum.is_leader:
                name = f"feature {number % 7}"
                offset = member.append(name, number)
                waiting = member.quorum.partition.when_committed(offset)
                waiting.add_done_callback(partial(note, name, number))
    quorum.cut.clear()
    for node_id in quorum.ids:
        if node_id not in quorum.members:
            await quorum.start(node_id)
    leader = await quorum.settled()
    await quorum.committed_everywhere(leader.append("last"))
    expected = levels(leader)
    assert all(levels(member) == expected for member in quorum.members.values())
    # A later record of the same name may have come after one that was acknowledged.
    assert all(expected[name] >= number for name, number in acknowledged.items())
    assert acknowledged


async def strike(quorum: Quorum) -> None:
    source = quorum.source
    node_id = source.choice(quorum.ids)
    match source.randrange(8):
        case 0 | 1 if node_id in quorum.members:
            quorum.kill(node_id, power_cut=source.random() < 0.5)
        case 2 | 3 | 4 if node_id not in quorum.members:
            await quorum.start(node_id)
        case 5:
            other = source.choice(quorum.ids)
            quorum.cut.add((node_id, other))
            if source.random() < 0.5:
                quorum.cut.add((other, node_id))
        case 6:
            quorum.cut.clear()
        case 7 if source.random() < 0.3 and node_id in quorum.members:
            await quorum.stop(node_id)


# --- requests of other versions, and of others ---------------------------------------------------------------------


def asked(quorum: Quorum, member: Member, handler: Any, version: int, **fields: Any) -> Any:
    """The answer to a request about the one partition."""
    api = handler.api
    key = api.key
    cluster_id = fields.pop("cluster_id", "quorum")
    topics = [{"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0, **fields}]}]
    body = encode_request(key, version, {"cluster_id": cluster_id, "topics": topics, "voter_id": member.node_id})
    context = RequestContext(RequestHeader(key, version, 0, None), "somebody", Turns(member.clock))
    result = handler(Access(None), member.quorum).handle(context, api.decode_request(version, body, 0))
    return decode_response(key, version, api.encode_response(version, result), 0)


@pytest.mark.parametrize("version", [0, 1, 2])
@virtual_time
async def test_every_version_of_vote_is_answered_and_only_the_latest_knows_pre_votes(version: int) -> None:
    quorum = Quorum()
    await quorum.start(1)
    member = quorum.members[1]
    vote_of = {"replica_id": 2, "replica_epoch": 7, "last_offset_epoch": 0, "last_offset": 0, "pre_vote": True}
    answer = asked(quorum, member, VoteHandler, version, **vote_of).topics[0].partitions[0]
    assert (answer.error_code, answer.leader_id, answer.leader_epoch) == (ErrorCode.none, -1, 7)
    assert answer.vote_granted
    assert member.quorum.raft.election.voted_id == (None if version == 2 else 2)


@pytest.mark.parametrize("version", [0, 1])
@virtual_time
async def test_every_version_of_begin_and_end_is_answered(version: int) -> None:
    quorum = Quorum()
    await quorum.start(1)
    member = quorum.members[1]
    begun = asked(quorum, member, BeginQuorumEpochHandler, version, leader_id=3, leader_epoch=4)
    assert begun.topics[0].partitions[0].leader_id == 3
    assert member.quorum.leader_id == 3
    names = {"preferred_successors": [1], "preferred_candidates": [{"candidate_id": 1}]}
    ended = asked(quorum, member, EndQuorumEpochHandler, version, leader_id=3, leader_epoch=4, **names)
    assert ended.topics[0].partitions[0].error_code is ErrorCode.none
    stale = asked(quorum, member, BeginQuorumEpochHandler, version, leader_id=2, leader_epoch=3)
    assert stale.topics[0].partitions[0].error_code is ErrorCode.fenced_leader_epoch
    assert stale.topics[0].partitions[0].leader_epoch == 4


@virtual_time
async def test_a_member_of_another_cluster_is_refused() -> None:
    quorum = Quorum()
    await quorum.start(1)
    answer = asked(quorum, quorum.members[1], VoteHandler, 2, cluster_id="another", replica_id=2, replica_epoch=9)
    assert answer.error_code is ErrorCode.inconsistent_cluster_id
    assert quorum.members[1].quorum.leader_epoch == 0


@pytest.mark.parametrize(("replica", "partitions"), [(-1, [0]), (2, []), (2, [1]), (2, [0, 0])])
@virtual_time
async def test_a_fetch_without_a_replica_id_or_for_another_partition_returns_nothing(
    replica: int, partitions: list[int]
) -> None:
    quorum = Quorum(voters=1)
    await quorum.start(1)
    wanted = [FetchPartition(partition, 0, 1_000, last_fetched_epoch=0) for partition in partitions]
    request = FetchRequest(0, 1, 1_000, 0, [(METADATA_TOPIC_ID, wanted)], replica_id=replica)
    answer = quorum.members[1].quorum.handle_fetch(18, request, is_from_member=True)
    ((_topic, fetched),) = decode_fetch_response(18, b"".join(cast(Any, answer)), 0).topics
    assert [part.error_code for part in fetched] == [ErrorCode.unknown_topic_or_partition] * len(partitions)
