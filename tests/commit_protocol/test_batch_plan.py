"""Claims about what the commit record and the checkpoint together decide."""

from __future__ import annotations

from dataclasses import replace

import pytest

from einmal.commit_protocol.batch_plan import (
    BATCH_WRITES,
    NOBODY,
    AlreadyIn,
    Batch,
    QueryStart,
    Refuse,
    Write,
    plan_ahead,
    plan_batch,
    plan_start,
    plan_version,
)
from einmal.commit_protocol.commit_record import CommitRecord

RECORD = CommitRecord(transactional_id="t", query_id="q", checkpoint="cp", batch_id=7, end=({"in": {"0": 30}},))
NEXT = Batch(query_id="q", checkpoint="cp", batch_id=8, start=({"in": {"0": 30}},), end=({"in": {"0": 40}},))
HERE = QueryStart(query_id="q", checkpoint="cp", next_batch_id=8)
SAME = replace(NEXT, batch_id=7, start=({"in": {"0": 20}},), end=({"in": {"0": 30}},))


@pytest.mark.parametrize(
    ("record", "batch", "expected"),
    [
        (None, replace(NEXT, batch_id=0, start=None), Write),
        (None, NEXT, Refuse),
        (RECORD, NEXT, Write),
        (RECORD, SAME, AlreadyIn),
        (RECORD, replace(SAME, end=({"in": {"0": 31}},)), Refuse),
        (RECORD, replace(NEXT, start=({"in": {"0": 29}},)), Refuse),
        (RECORD, replace(NEXT, batch_id=9), Refuse),
        (RECORD, replace(NEXT, batch_id=6), Refuse),
        (RECORD, replace(NEXT, query_id="another", batch_id=1), Write),
        (RECORD, replace(NEXT, query_id="another", batch_id=1, start=({"in": {"0": 0}},)), Refuse),
        (RECORD, replace(NEXT, query_id="another", batch_id=0, start=None), Refuse),
        (RECORD, replace(SAME, query_id="another", batch_id=7), Refuse),
    ],
)
def test_a_batch_is_in_only_if_query_batch_and_end_agree(
    record: CommitRecord | None, batch: Batch, expected: type
) -> None:
    assert type(plan_batch(record, batch, adopt=False)) is expected


def test_offsets_are_compared_as_values() -> None:
    spelled_differently = replace(SAME, end=({"in": {"0": 30.0}},))
    assert plan_batch(RECORD, spelled_differently, adopt=False) == AlreadyIn()


@pytest.mark.parametrize(
    "batch",
    [replace(NEXT, batch_id=9), replace(NEXT, start=None), replace(NEXT, query_id="another", batch_id=0, start=None)],
)
def test_adopt_takes_over_what_cannot_be_shown(batch: Batch) -> None:
    assert plan_batch(RECORD, batch, adopt=True) == Write()


def test_adopt_never_writes_a_batch_that_is_behind_the_record() -> None:
    assert isinstance(plan_batch(RECORD, replace(NEXT, batch_id=6), adopt=True), Refuse)


def test_a_name_from_another_checkpoint_is_refused_before_anything_is_fenced() -> None:
    plan = plan_start(RECORD, replace(HERE, query_id="other", checkpoint="elsewhere"), stateful=False, adopt=False)
    assert isinstance(plan, Refuse)
    assert "'cp'" in plan.reason and "'elsewhere'" in plan.reason


def test_a_deleted_checkpoint_is_resumed_only_without_state() -> None:
    new = QueryStart(query_id="new", checkpoint="cp", next_batch_id=0)
    assert plan_start(RECORD, new, stateful=False, adopt=False) == Write()
    assert isinstance(plan_start(RECORD, new, stateful=True, adopt=False), Refuse)
    assert plan_start(RECORD, new, stateful=True, adopt=True) == Write()


@pytest.mark.parametrize("stateful", [False, True])
@pytest.mark.parametrize(
    ("record", "standing"),
    [
        (RECORD, replace(HERE, checkpoint="copy")),
        (None, HERE),
        (None, replace(HERE, next_batch_id=0, others="under transactional.id 'a'")),
        (RECORD, replace(HERE, query_id="new", checkpoint="elsewhere", next_batch_id=0)),
    ],
)
def test_a_checkpoint_that_the_record_does_not_belong_to_is_refused_until_adopted(
    record: CommitRecord | None, standing: QueryStart, stateful: bool
) -> None:
    assert isinstance(plan_start(record, standing, stateful=stateful, adopt=False), Refuse)
    assert plan_start(record, standing, stateful=stateful, adopt=True) == Write()


def test_a_checkpoint_behind_the_record_is_refused_before_anything_is_fenced() -> None:
    plan = plan_start(RECORD, replace(HERE, next_batch_id=6), stateful=False, adopt=False)
    assert isinstance(plan, Refuse) and "behind the commit record" in plan.reason


@pytest.mark.parametrize(("next_batch_id", "expected"), [(7, Write), (8, Write), (9, Refuse)])
def test_a_checkpoint_ahead_of_the_record_is_refused(next_batch_id: int, expected: type) -> None:
    standing = replace(HERE, next_batch_id=next_batch_id)
    assert type(plan_ahead(RECORD, standing, adopt=False)) is expected
    assert plan_ahead(RECORD, standing, adopt=True) == Write()


WRITTEN = replace(RECORD, query_id=BATCH_WRITES, checkpoint="", batch_id=7, end=())


@pytest.mark.parametrize(
    ("record", "version", "expected"),
    [
        (None, 0, Write),
        (WRITTEN, 7, AlreadyIn),
        (WRITTEN, 9, Write),
        (WRITTEN, 6, Refuse),
        (RECORD, 7, Refuse),
        (RECORD, 8, Refuse),
        (replace(RECORD, query_id=NOBODY), 8, Refuse),
    ],
)
def test_a_version_is_in_only_if_it_is_the_last_one(record: CommitRecord | None, version: int, expected: type) -> None:
    assert type(plan_version(record, version)) is expected


def test_a_query_and_batch_writes_do_not_share_a_name() -> None:
    plan = plan_start(WRITTEN, HERE, stateful=False, adopt=False)
    assert isinstance(plan, Refuse) and "txnVersion 7" in plan.reason


def test_the_hint_about_a_lost_record_names_topics_and_databases() -> None:
    plan = plan_start(None, QueryStart(query_id="q", checkpoint="c", next_batch_id=3), stateful=False, adopt=False)
    assert isinstance(plan, Refuse)
    for each in ("kafka.bootstrap.servers", "url or path", "topic __einmal_commits", "table einmal_commits", "--file"):
        assert each in plan.hint
