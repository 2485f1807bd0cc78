"""Claims about claims: one writer of a partition at a time, and one attempt per task."""

from __future__ import annotations

from dataclasses import replace

from einmal.commit_protocol.claims import Claims, Denied, Granted, Output, Task, digest
from einmal.types import SEQUENCE_MAX, TopicPartition

PARTITION = TopicPartition("out", 0)
OUTPUT = Output("out", 0, 5, 9, 5, 77)
TASK, OTHER = Task(3, 0), Task(3, 1)


def claimed() -> Claims:
    claims = Claims("now")
    assert claims.claim("now", TASK, 1, PARTITION) == Granted(0, add=True)
    return claims


def reported() -> Claims:
    claims = claimed()
    assert claims.report("now", 1, OUTPUT) is None
    return claims


def test_the_holder_may_ask_again() -> None:
    assert claimed().claim("now", TASK, 1, PARTITION) == Granted(0, add=False)


def test_a_second_attempt_gets_no_claim_also_elsewhere_and_after_the_first_ones_report() -> None:
    for claims in (claimed(), reported()):
        for partition in (PARTITION, TopicPartition("out", 1)):
            denied = claims.claim("now", TASK, 2, partition)
            assert isinstance(denied, Denied) and "attempt 1" in denied.reason
            assert denied.by == 1


def test_a_second_attempt_writes_if_the_first_one_has_no_claim() -> None:
    claims = claimed()
    assert isinstance(claims.claim("now", OTHER, 2, PARTITION), Denied)
    assert claims.claim("now", OTHER, 3, TopicPartition("out", 1)) == Granted(0, add=True)


def test_tasks_take_turns_and_sequences_continue() -> None:
    claims = reported()
    assert claims.claim("now", OTHER, 2, PARTITION) == Granted(5, add=False)
    second = replace(OUTPUT, first_offset=10, last_offset=12, count=3)
    assert claims.report("now", 2, second) is None
    assert claims.claim("now", TASK, 1, PARTITION) == Granted(8, add=False)
    third = replace(OUTPUT, first_offset=13, last_offset=13, count=1)
    assert claims.report("now", 1, third) is None
    assert claims.close([third, OUTPUT, second]) == (OUTPUT, second, third)


def test_who_holds_a_partition_waits_for_no_other_one() -> None:
    claims = claimed()
    claims.claim("now", OTHER, 2, TopicPartition("out", 1))
    denied = claims.claim("now", OTHER, 2, PARTITION)
    assert isinstance(denied, Denied) and denied.by is None
    denied = claims.claim("now", Task(3, 2), 3, PARTITION)
    assert isinstance(denied, Denied) and denied.by == 1


def test_the_same_task_of_another_job_is_another_task() -> None:
    assert reported().claim("now", Task(4, 0), 2, PARTITION) == Granted(5, add=False)


def test_a_late_task_of_an_ended_transaction_is_turned_away() -> None:
    claims = claimed()
    assert isinstance(claims.claim("before", TASK, 1, PARTITION), Denied)
    assert isinstance(claims.report("before", 1, OUTPUT), Denied)


def test_a_claim_without_a_report_prevents_the_commit() -> None:
    assert isinstance(claimed().close([]), Denied)


def test_a_second_claim_without_a_report_prevents_the_commit() -> None:
    claims = reported()
    claims.claim("now", OTHER, 2, PARTITION)
    assert isinstance(claims.close([OUTPUT]), Denied)


def test_a_partition_that_could_not_be_added_ends_the_table_with_the_reason() -> None:
    claims = claimed()
    claims.fail("out-0 could not be added")
    assert claims.claim("now", TASK, 1, PARTITION) == Denied("out-0 could not be added")
    assert claims.report("now", 1, OUTPUT) == Denied("out-0 could not be added")
    assert isinstance(claims.close([OUTPUT]), Denied)


def test_the_sequence_after_the_largest_is_0() -> None:
    claims = claimed()
    claims.report("now", 1, replace(OUTPUT, count=SEQUENCE_MAX))
    assert claims.claim("now", OTHER, 2, PARTITION) == Granted(SEQUENCE_MAX, add=False)
    claims.report("now", 2, replace(OUTPUT, count=3))
    assert claims.claim("now", TASK, 1, PARTITION) == Granted(2, add=False)


def test_what_spark_collected_must_be_what_was_reported() -> None:
    assert isinstance(reported().close([replace(OUTPUT, last_offset=8)]), Denied)
    assert isinstance(reported().close([OUTPUT, OUTPUT]), Denied)


def test_a_complete_table_gives_its_outputs_in_order_and_closes() -> None:
    claims = claimed()
    claims.claim("now", OTHER, 2, TopicPartition("out", 1))
    second = replace(OUTPUT, partition=1)
    for _ in range(2):
        assert claims.report("now", 2, second) is None
    claims.report("now", 1, OUTPUT)
    assert claims.close([second, OUTPUT]) == (OUTPUT, second)
    assert isinstance(claims.claim("now", Task(3, 2), 3, TopicPartition("out", 2)), Denied)


def test_equal_outputs_without_offsets_count_each() -> None:
    unknown = replace(OUTPUT, first_offset=-1, last_offset=-1)
    claims = claimed()
    claims.report("now", 1, unknown)
    claims.claim("now", TASK, 1, PARTITION)
    claims.report("now", 1, unknown)
    assert claims.close([unknown, unknown]) == (unknown, unknown)


def test_a_report_cannot_change_its_mind() -> None:
    assert isinstance(reported().report("now", 1, replace(OUTPUT, count=4)), Denied)


def test_who_has_no_claim_cannot_report() -> None:
    assert isinstance(claimed().report("now", 2, OUTPUT), Denied)


def test_the_digest_does_not_depend_on_offsets_or_order() -> None:
    turns = [OUTPUT, replace(OUTPUT, first_offset=10, last_offset=12, count=3, crc=5)]
    others = [replace(turns[1], first_offset=5, last_offset=7), replace(OUTPUT, first_offset=8, last_offset=12)]
    assert digest(turns) == digest(others)
    other = replace(OUTPUT, partition=1)
    moved = replace(OUTPUT, first_offset=105, last_offset=109)
    assert digest([OUTPUT, other]) == digest([other, moved])
    assert digest([OUTPUT]) != digest([replace(OUTPUT, crc=78)])
