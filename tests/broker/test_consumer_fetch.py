"""What a consumer's Fetch reads and when its answer need not wait, without a socket."""

from __future__ import annotations

from typing import Any

from einmal.broker.front.fetch.consumer_fetch import WIDE, ConsumerFetch
from einmal.broker.front.fetch.fetch_sessions import Wanted
from einmal.broker.resources.memory_budget import MemoryBudget
from einmal.log.producer_state import CONTINUES
from einmal.types import BrokerId, ErrorCode, LeaderEpoch
from einmal.wire.fetch import FetchPartition, FetchRequest
from tests.broker.nodes import batch
from tests.broker.one_partition import TOPIC_ID, OnePartition


def append(world: OnePartition, *values: bytes) -> None:
    data, now = bytearray(batch(*values)), world.clock.now()
    admission = world.partition.admit(data, now)
    assert world.partition.append(data, now, verification=CONTINUES, admission=admission).error is ErrorCode.none


def fetch(
    world: OnePartition,
    *wanted: tuple[Any, FetchPartition],
    min_bytes: int = 1,
    max_bytes: int = 1_000,
    room: int = 10_000,
) -> ConsumerFetch:
    request = FetchRequest(500, min_bytes, max_bytes, 0, [])
    found = ConsumerFetch(
        request,
        Wanted(list(wanted), None, False),
        world.image,
        world.partitions,
        refusal_of=lambda _topic: None,
        bytes_most=5_000,
        response_memory=MemoryBudget(room),
    )
    for _ in found.finding():
        pass
    return found


def at(offset: int, **fields: Any) -> FetchPartition:
    return FetchPartition(0, offset, 1_000, **fields)


def test_it_waits_while_there_is_nothing_and_answers_what_has_come() -> None:
    world = OnePartition()
    asked = fetch(world, ("t", at(0)))
    assert not asked.read()
    append(world, b"a")
    assert asked.read()
    ((_topic, fetched),) = asked.results
    assert (fetched.error_code, fetched.high_watermark) == (ErrorCode.none, 1)
    assert bytes(fetched.records)


def test_by_name_or_by_id_is_the_same() -> None:
    world = OnePartition()
    append(world, b"a")
    asked = fetch(world, (TOPIC_ID, at(0)))
    assert asked.read()
    assert [topic for topic, _fetched in asked.results] == [TOPIC_ID]


def test_what_is_not_committed_is_not_read() -> None:
    world = OnePartition()
    world.is_held = True
    append(world, b"a")
    assert not fetch(world, ("t", at(0))).read()


def test_an_error_need_not_wait() -> None:
    world = OnePartition()
    for wanted, error in (
        (("u", at(0)), ErrorCode.unknown_topic_or_partition),
        (("t", at(0, current_leader_epoch=2)), ErrorCode.fenced_leader_epoch),
        (("t", at(5)), ErrorCode.offset_out_of_range),
    ):
        asked = fetch(world, ("t", at(0)), wanted)
        assert asked.read()
        assert [fetched.error_code for _topic, fetched in asked.results] == [ErrorCode.none, error]


def test_only_an_offset_beyond_the_end_waits_for_a_confirmation() -> None:
    world = OnePartition()
    asked = fetch(world, ("t", at(0)), ("t", at(5)))
    asked.read()
    assert asked.ended == {1: world.partition}
    asked.refuse(1, ErrorCode.not_leader_or_follower)
    assert asked.results[1][1].error_code is ErrorCode.not_leader_or_follower


def test_it_waits_for_min_bytes_but_never_for_more_than_an_answer_may_have() -> None:
    world = OnePartition()
    append(world, b"a")
    size = len(fetch_all(world))
    assert not fetch(world, ("t", at(0)), min_bytes=size + 1).read()
    assert fetch(world, ("t", at(0)), min_bytes=size).read()
    assert fetch(world, ("t", at(0)), min_bytes=10_000, max_bytes=1).read()


def test_without_memory_for_answers_the_first_batch_comes_all_the_same() -> None:
    world = OnePartition()
    append(world, b"a")
    append(world, b"b")
    asked = fetch(world, ("t", at(0)), ("t", at(0)), room=1)
    assert asked.read()
    assert [bool(fetched.records) for _topic, fetched in asked.results] == [True, False]


def test_available_bytes_are_counted_no_further_than_needed() -> None:
    world = OnePartition()
    append(world, b"a")
    both = fetch(world, ("t", at(0)), ("u", at(0)), min_bytes=10)
    assert [both.available(place) for place in (0, 1)] == [10, 10]
    world.partition.follow(BrokerId(2), LeaderEpoch(4))
    assert fetch(world, ("t", at(0)), min_bytes=10).available(0) == 10


def test_a_wide_fetch_takes_its_turn() -> None:
    world = OnePartition()
    assert not fetch(world, *[("t", at(0))] * WIDE).is_wide
    assert fetch(world, *[("t", at(0))] * (WIDE + 1)).is_wide


def fetch_all(world: OnePartition) -> bytes:
    asked = fetch(world, ("t", at(0)))
    asked.read()
    return bytes(asked.results[0][1].records)
