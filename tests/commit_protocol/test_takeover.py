"""Claims about what an owner does to a name from outside: the effect is what the plan announced."""

from __future__ import annotations

from dataclasses import replace

import pytest

from einmal.commit_protocol.batch_plan import Batch, QueryStart, Refuse, Write, plan_batch, plan_start
from einmal.commit_protocol.commit_record import CommitRecord, decode
from einmal.commit_protocol.takeover import RecordChange, Standing, plan_adopt, plan_reset

RECORD = CommitRecord(transactional_id="t", query_id="q", checkpoint="file:/a", batch_id=7, end=({"in": {"0": 30}},))
STANDING = Standing(checkpoint="file:/b", query_id="other", batch_id=3, end=({"in": {"0": 30}},))
FRESH = Batch(query_id="new", checkpoint="file:/a", batch_id=1, start=({"in": {"0": 5}},), end=({"in": {"0": 9}},))


def said(change: RecordChange | Refuse) -> str:
    assert isinstance(change, RecordChange)
    return "\n".join(change.consequences)


def test_a_reset_forgets_the_record_and_an_old_checkpoint_is_refused_then() -> None:
    change = plan_reset("t", RECORD, None)
    assert change.record is None
    assert "forget that batch 7, up to in-0:30, is committed" in said(change)
    assert "file:/a will be refused" in said(change)
    old = Batch(query_id="q", checkpoint="file:/a", batch_id=8, start=RECORD.end, end=({"in": {"0": 40}},))
    assert isinstance(plan_batch(change.record, old, adopt=False), Refuse)
    assert plan_batch(change.record, replace(FRESH, batch_id=0, start=None), adopt=False) == Write()


def test_after_a_reset_to_a_position_any_new_checkpoint_begins_there_and_nowhere_else() -> None:
    change = plan_reset("t", RECORD, ({"in": {"0": 5}},))
    assert change.record is not None
    assert "in-0: offsets 5 to 29 will be written AGAIN" in said(change)
    for stateful in (False, True):
        start = QueryStart(query_id="new", checkpoint="file:/c", next_batch_id=0)
        plan = plan_start(change.record, start, stateful=stateful, adopt=False)
        assert plan == Write()
    assert plan_batch(change.record, FRESH, adopt=False) == Write()
    elsewhere = plan_batch(change.record, replace(FRESH, start=({"in": {"0": 6}},)), adopt=False)
    assert isinstance(elsewhere, Refuse) and "was reset to in-0:5" in elsewhere.reason
    assert decode(b"t", change.record.encode()) == change.record


def test_a_reset_reports_skipped_records() -> None:
    assert "in-0: offsets 30 to 49 will NOT be written" in said(plan_reset("t", RECORD, ({"in": {"0": 50}},)))


def test_incomparable_positions_are_reported() -> None:
    assert "cannot be seen" in said(plan_reset("t", replace(RECORD, end=(7,)), ({"in": {"0": 50}},)))


def test_an_adopted_checkpoint_resumes_with_its_next_batch() -> None:
    change = plan_adopt("t", RECORD, STANDING)
    assert isinstance(change, RecordChange) and change.record is not None
    following = Batch(query_id="other", checkpoint="file:/b", batch_id=4, start=STANDING.end, end=({"in": {"0": 40}},))
    start = QueryStart(query_id="other", checkpoint="file:/b", next_batch_id=4)
    plan = plan_start(change.record, start, stateful=True, adopt=False)
    assert plan == Write()
    assert plan_batch(change.record, following, adopt=False) == Write()
    assert "resume with batch 4 of file:/b, from in-0:30" in said(change)
    assert "AGAIN" not in said(change) and "NOT" not in said(change)


def test_adopting_an_older_copy_reports_records_to_be_rewritten() -> None:
    older = replace(STANDING, query_id="q", checkpoint="file:/a", batch_id=5, end=({"in": {"0": 20}},))
    assert "in-0: offsets 20 to 29 will be written AGAIN" in said(plan_adopt("t", RECORD, older))


def test_adopting_a_checkpoint_without_a_batch_begins_at_the_records_end() -> None:
    change = plan_adopt("t", RECORD, Standing(checkpoint="file:/b", query_id=None))
    assert isinstance(change, RecordChange) and change.record is not None
    assert (change.record.query_id, change.record.end) == ("", RECORD.end)


def test_there_may_be_nothing_to_adopt() -> None:
    assert isinstance(plan_adopt("t", None, Standing(checkpoint="file:/b", query_id=None)), Refuse)
    same = Standing(checkpoint="file:/a", query_id="q", batch_id=7, end=RECORD.end)
    assert isinstance(plan_adopt("t", RECORD, same), Refuse)


@pytest.mark.parametrize("batch_id", [None, 9])
def test_the_plan_names_the_transaction_in_the_topics_that_the_database_has_committed(batch_id: int | None) -> None:
    """It is committed before the record is changed, so the new one need not name it."""
    record = replace(RECORD, prepared="4:7")
    end = None if batch_id is None else ({"in": {"0": 40}},)
    standing = Standing(checkpoint="file:/b", query_id="q2", batch_id=batch_id, end=end)
    for end_of_reset in (None, ({"in": {"0": 30}},)):
        for change in (plan_adopt("t", record, standing), plan_reset("t", record, end_of_reset)):
            assert isinstance(change, RecordChange)
            assert change.record is None or not change.record.prepared
            assert any("commit transaction 4:7 in the topics" in line for line in change.consequences)
