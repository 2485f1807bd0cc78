import random

import pytest

from einmal.broker.front.fetch.fetch_sessions import FetchSession, FetchSessions, Wanted
from einmal.types import ErrorCode
from einmal.wire.fetch import FetchedPartition, FetchPartition, FetchRequest

HOUR_MS = 3_600_000


def request(session_id: int, epoch: int, *partitions: int, forgotten: tuple[int, ...] = ()) -> FetchRequest:
    topics = [("t", [FetchPartition(index, 0, 100) for index in partitions])] if partitions else []
    gone = [("t", list(forgotten))] if forgotten else []
    return FetchRequest(0, 1, 100, 0, topics, gone, session_id, epoch)


def begin(sessions: FetchSessions, wanted: FetchRequest, now_ms: int = 0, *, ids: bool = False) -> Wanted:
    result = sessions.begin(wanted, now_ms, has_topic_ids=ids)
    assert isinstance(result, Wanted), result
    return result


def opened(sessions: FetchSessions, *partitions: int, now_ms: int = 0) -> FetchSession:
    session = begin(sessions, request(0, 0, *partitions), now_ms).session
    assert session is not None
    return session


def indexes(wanted: Wanted) -> list[int]:
    return [partition.partition for _topic, partition in wanted.partitions]


def test_a_session_remembers_what_is_wanted_and_forgets_what_is_not() -> None:
    sessions = FetchSessions(10, random.Random(1))
    session_id = opened(sessions, 0, 1, 2).session_id
    assert indexes(begin(sessions, request(session_id, 1))) == [0, 1, 2]
    assert indexes(begin(sessions, request(session_id, 2, 3, forgotten=(1,)))) == [0, 2, 3]


def test_the_session_epoch_orders_requests() -> None:
    sessions = FetchSessions(10, random.Random(1))
    session_id = opened(sessions, 0).session_id
    begin(sessions, request(session_id, 1))
    for epoch in (1, 3, 7):
        repeated = sessions.begin(request(session_id, epoch), 0, has_topic_ids=False)
        assert repeated is ErrorCode.invalid_fetch_session_epoch
    begin(sessions, request(session_id, 2))


def test_epochs_go_round() -> None:
    sessions = FetchSessions(10, random.Random(1))
    session = opened(sessions, 0)
    session.epoch = 2**31 - 1
    begin(sessions, request(session.session_id, 2**31 - 1))
    begin(sessions, request(session.session_id, 1))


def test_the_final_epoch_ends_the_session_and_a_first_one_replaces_it() -> None:
    sessions = FetchSessions(10, random.Random(1))
    first = opened(sessions, 0).session_id
    assert begin(sessions, request(first, -1, 0)).session is None
    assert len(sessions) == 0
    second = opened(sessions, 0).session_id
    begin(sessions, request(second, 0, 0))
    assert len(sessions) == 1
    assert sessions.begin(request(second, 1), 0, has_topic_ids=False) is ErrorCode.fetch_session_id_not_found


def test_without_room_a_fetch_has_no_session_until_an_old_one_may_go() -> None:
    sessions = FetchSessions(2, random.Random(1))
    old, used = opened(sessions, 0), opened(sessions, 0)
    assert begin(sessions, request(0, 0, 0), 1_000).session is None
    begin(sessions, request(used.session_id, 1), HOUR_MS)
    assert begin(sessions, request(0, 0, 0), HOUR_MS).session is not None
    assert sessions.begin(request(old.session_id, 1), 0, has_topic_ids=False) is ErrorCode.fetch_session_id_not_found
    begin(sessions, request(used.session_id, 2), HOUR_MS)


def test_names_and_ids_do_not_mix_in_one_session() -> None:
    sessions = FetchSessions(2, random.Random(1))
    session_id = opened(sessions, 0).session_id
    mixed = sessions.begin(request(session_id, 1), 0, has_topic_ids=True)
    assert mixed is ErrorCode.fetch_session_topic_id_error


def test_a_session_returns_only_changes_but_always_errors() -> None:
    session = opened(FetchSessions(2, random.Random(1)), 0)
    seen = FetchedPartition(0, ErrorCode.none, 5, 5, 0)
    assert session.remember("t", seen)
    assert not session.remember("t", seen)
    assert session.remember("t", seen._replace(high_watermark=6))
    assert session.remember("t", seen._replace(high_watermark=6, log_start_offset=1))
    assert session.remember("t", seen._replace(error_code=ErrorCode.kafka_storage_error))
    assert session.remember("t", seen._replace(error_code=ErrorCode.kafka_storage_error))
    assert session.remember("t", seen)
    assert session.remember("t", seen._replace(records=b"x"))


def test_a_partition_that_gave_records_goes_to_the_end() -> None:
    sessions = FetchSessions(2, random.Random(1))
    session = opened(sessions, 0, 1, 2)
    session.remember("t", FetchedPartition(0, ErrorCode.none, 5, 5, 0, None, b"x"))
    assert indexes(begin(sessions, request(session.session_id, 1))) == [1, 2, 0]


def test_the_partitions_of_all_sessions_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("einmal.broker.front.fetch.fetch_sessions.PARTITIONS_MAX", 5)
    sessions = FetchSessions(10, random.Random(1))
    first = opened(sessions, 0, 1, 2)
    assert begin(sessions, request(0, 0, 0, 1, 2)).session is None
    second = opened(sessions, 0, 1)
    assert isinstance(sessions.begin(request(first.session_id, 1, 3), 0, has_topic_ids=False), ErrorCode)
    assert indexes(begin(sessions, request(second.session_id, 1, 2))) == [0, 1, 2]


def test_a_partition_that_is_named_twice_is_fetched_once() -> None:
    assert indexes(begin(FetchSessions(10, random.Random(1)), request(0, -1, 4, 4, 4))) == [4]


IMPOSSIBLE = ["", "..", "a b", "x" * 250, "x" * 32_767]
"""No topic can have these names."""


@pytest.mark.parametrize("name", IMPOSSIBLE)
def test_a_name_that_no_topic_can_have_is_answered_and_not_remembered(name: str) -> None:
    sessions = FetchSessions(10, random.Random(1))
    impossible = (name, [FetchPartition(7, 0, 100)])
    full = request(0, 0, 0)
    wanted = begin(sessions, full._replace(topics=[*full.topics, impossible]))
    assert indexes(wanted) == [0, 7]
    assert wanted.session is not None
    assert list(wanted.session.partitions) == [("t", 0)]
    more = request(wanted.session.session_id, 1, 1)
    incremental = begin(sessions, more._replace(topics=[impossible, *more.topics]))
    assert indexes(incremental) == [0, 1, 7]
    assert wanted.session.remember(name, FetchedPartition(7, ErrorCode.unknown_topic_or_partition))
    assert list(wanted.session.partitions) == [("t", 0), ("t", 1)]
    assert indexes(begin(sessions, request(wanted.session.session_id, 2))) == [0, 1]


def test_of_names_that_no_topic_can_have_alone_no_session_comes() -> None:
    sessions = FetchSessions(10, random.Random(1))
    topics = [(name, [FetchPartition(0, 0, 100)]) for name in IMPOSSIBLE]
    wanted = begin(sessions, request(0, 0)._replace(topics=topics))
    assert len(wanted.partitions) == len(IMPOSSIBLE)
    assert wanted.session is None
    assert not len(sessions)
