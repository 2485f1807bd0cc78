"""Claims about the causes of a held partition, and about ways out that tear nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from einmal.inspection.diagnosis import Cause, Open, cause_of, way_out
from einmal.inspection.model import ProducerView, TransactionView
from einmal.types import TopicPartition

AT = TopicPartition("t", 0)
WRITER = ProducerView(7, 3, 0, 100, 0, 5)
OWNER = TransactionView("its id", "Ongoing", 1, 7, 3, False, 60_000, 100, 10_000, ("t-0",))
LATE = replace(OWNER, age_ms=60_001)
TWO_PHASE = replace(OWNER, is_two_phase=True, timeout_ms=None)
PREPARED = replace(OWNER, state="PrepareCommit")
ENDED = replace(OWNER, state="Empty", age_ms=None, start_time=None, partitions=())
ELSEWHERE = replace(OWNER, partitions=("other-0",))
REFUSED = replace(OWNER, partitions=None)

BY_ID = "einmal txn abort 'its id'"
BY_OFFSET = "einmal txn abort --topic t --partition 0 --start-offset 5"


@pytest.mark.parametrize(
    ("found", "cause", "command"),
    [
        (Open(AT, WRITER, [OWNER]), Cause.ALIVE, BY_ID),
        (Open(AT, WRITER, [LATE]), Cause.OVERDUE, BY_ID),
        (Open(AT, WRITER, [TWO_PHASE]), Cause.TWO_PHASE, None),
        (Open(AT, WRITER, [PREPARED]), Cause.ENDING, "einmal txn describe 'its id'"),
        (Open(AT, WRITER, [ENDED]), Cause.HANGING, BY_OFFSET),
        (Open(AT, WRITER, []), Cause.HANGING, BY_OFFSET),
        # A marker in this partition alone is refused while its coordinator manages another transaction of it.
        (Open(AT, WRITER, [ELSEWHERE]), Cause.HANGING, BY_ID),
        # An abort tears what a database may have committed, and cannot change what a coordinator has decided.
        (Open(AT, WRITER, [replace(TWO_PHASE, partitions=("other-0",))]), Cause.HANGING, None),
        (Open(AT, WRITER, [replace(PREPARED, partitions=("other-0",))]), Cause.HANGING, "einmal txn describe 'its id'"),
        # A name that begins as an option does.
        (Open(AT, WRITER, [replace(OWNER, transactional_id="-x")]), Cause.ALIVE, "einmal txn abort -- -x"),
        (Open(AT, WRITER, [REFUSED]), Cause.UNKNOWN, "einmal txn doctor"),
        (Open(AT, WRITER, [], "a coordinator is missing"), Cause.UNKNOWN, "einmal txn doctor"),
        (Open(AT, None, []), Cause.SETTLING, "einmal topic describe t"),
        # Who may not ask the leader must not learn that there is none.
        (Open(AT, None, [], "TOPIC_AUTHORIZATION_FAILED: no permission"), Cause.UNKNOWN, "einmal txn doctor"),
    ],
)
def test_each_cause_has_its_way_out(found: Open, cause: Cause, command: str | None) -> None:
    assert cause_of(found) is cause
    assert way_out(found, cause).command == command


def test_who_waits_for_a_living_producer_learns_for_how_long() -> None:
    out = way_out(Open(AT, WRITER, [OWNER]), Cause.ALIVE)
    assert out.wait_ms == 50_000
    assert "in 50 s" in out.advice


def test_a_prepared_two_phase_commit_among_others_of_its_producer_id_is_the_owner() -> None:
    assert cause_of(Open(AT, WRITER, [ENDED, TWO_PHASE])) is Cause.TWO_PHASE
