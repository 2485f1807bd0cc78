"""Positions that name what they are positions in."""

from __future__ import annotations

from typing import Any

import pytest

from einmal.commit_protocol.batch_plan import AlreadyIn, Batch, Refuse, Write, plan_batch
from einmal.commit_protocol.commit_record import CommitRecord
from einmal.commit_protocol.positions import (
    are_same,
    cluster_id,
    identity,
    offsets_of,
    recreated,
    starts,
    topic_ids,
    topics_in,
)
from einmal.commit_protocol.takeover import plan_reset


def position(offset: int, topic_id: str | None = None, cluster: str | None = None) -> tuple[Any, ...]:
    ids = {} if topic_id is None else {"t": topic_id}
    return ({"t": {"0": offset}} | identity(cluster, ids, {}),)


def test_an_identity_is_read_as_it_was_written_and_holds_no_offsets() -> None:
    found = {"a.b": {"0": 1}} | identity("c==", {"a.b": "x-_", "z": "y"}, {"a.b": {"0": 7, "3": 0}})
    assert topics_in(found) == {"a.b": {"0": 1}}
    assert offsets_of((found,)) == {"a.b-0": 1}
    assert cluster_id(found) == "c=="
    assert topic_ids(found) == {"a.b": "x-_", "z": "y"}
    assert starts(found) == {"a.b": {"0": 7, "3": 0}}
    assert not any(value for key, value in found.items() if key != "a.b")


@pytest.mark.parametrize(
    "end",
    [
        {"t": {"0": "many"}},
        {"t": {"0": "5"}},
        {"t": {"0": 5.5}},
        {"t": {"0": True}},
        {"t": {"first": 1}},
        {"t": {"-1": 1}},
        {"t": {"0": -2}},
        {"t": 7},
        "5",
        None,
    ],
)
def test_what_is_not_offsets_by_partition_is_a_position_in_something_else(end: Any) -> None:
    assert offsets_of((end,)) is None
    assert offsets_of((position(3)[0], end)) is None


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (position(3), position(3), True),
        (position(3), position(4), False),
        (position(3, "x"), position(3), True),
        (position(3, "x"), position(3, "y"), False),
        (position(3, "x", "c"), position(3, "x", "d"), True),
        (position(3, None, "c"), position(3, None, "d"), False),
        (position(3, None, "c"), position(3, "x"), True),
        (("5",), ("5",), True),
        (("5",), ("6",), False),
        (position(3), (*position(3), None), False),
        (None, position(3), False),
        (None, None, True),
    ],
)
def test_an_unknown_identity_fits_any_and_a_known_one_only_itself(one: Any, other: Any, same: bool) -> None:
    assert are_same(one, other) is same
    assert are_same(other, one) is same


def test_topics_that_only_share_a_name_are_named() -> None:
    assert recreated(position(3, "x"), position(3, "y")) == ["t"]
    assert recreated(position(3, "x"), position(4)) == []
    assert recreated(None, position(4)) == []


def record(end: tuple[Any, ...]) -> CommitRecord:
    return CommitRecord(transactional_id="p", query_id="q", checkpoint="c", batch_id=4, end=end)


def plan(end: tuple[Any, ...], batch_id: int, start: tuple[Any, ...], stop: tuple[Any, ...]) -> Any:
    batch = Batch(query_id="q", checkpoint="c", batch_id=batch_id, start=start, end=stop)
    return plan_batch(record(end), batch, adopt=False)


def test_a_record_of_an_older_version_continues_with_positions_that_have_ids() -> None:
    assert isinstance(plan(position(3), 5, position(3), position(9, "x")), Write)
    assert isinstance(plan(position(3), 4, position(1), position(3, "x")), AlreadyIn)


def test_equal_offsets_in_another_topic_are_another_position() -> None:
    for planned in (
        plan(position(3, "x"), 5, position(3, "y"), position(9, "y")),
        plan(position(3, "x"), 4, position(1, "y"), position(3, "y")),
    ):
        assert isinstance(planned, Refuse)
        assert "t: deleted and created again in between" in planned.reason


def test_a_reset_into_a_recreated_topic_does_not_count_what_is_repeated() -> None:
    says = " ".join(plan_reset("p", record(position(30, "x")), position(0, "y")).consequences)
    assert "t: deleted and created again since" in says
    assert "AGAIN" not in says
