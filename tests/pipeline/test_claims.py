"""Claims about claims: one writer per target partition and transaction."""

from __future__ import annotations

from dataclasses import replace

from einmal.pipeline.claims import Claims, Denied, Granted, Output, digest
from einmal.types import TopicPartition

TARGET = TopicPartition("out", 0)
OUTPUT = Output("out", 0, 5, 9, 5, 77)


def claimed() -> Claims:
    claims = Claims("now")
    assert claims.claim("now", 1, TARGET) == Granted(add=True)
    return claims


def test_the_owner_may_ask_again() -> None:
    assert claimed().claim("now", 1, TARGET) == Granted(add=False)


def test_a_second_attempt_gets_no_claim() -> None:
    denied = claimed().claim("now", 2, TARGET)
    assert isinstance(denied, Denied) and "attempt 1" in denied.reason


def test_an_owner_that_has_reported_may_not_begin_again() -> None:
    claims = claimed()
    claims.report("now", 1, OUTPUT)
    assert isinstance(claims.claim("now", 1, TARGET), Denied)


def test_a_late_task_of_an_ended_transaction_is_turned_away() -> None:
    claims = claimed()
    assert isinstance(claims.claim("before", 1, TARGET), Denied)
    assert isinstance(claims.report("before", 1, OUTPUT), Denied)


def test_a_claim_without_a_report_prevents_the_commit() -> None:
    assert isinstance(claimed().close([]), Denied)


def test_what_spark_collected_must_be_what_was_reported() -> None:
    claims = claimed()
    claims.report("now", 1, OUTPUT)
    assert isinstance(claims.close([replace(OUTPUT, last_offset=8)]), Denied)


def test_a_complete_table_gives_its_outputs_in_order_and_closes() -> None:
    claims = claimed()
    other = TopicPartition("out", 1)
    claims.claim("now", 2, other)
    second = replace(OUTPUT, partition=1)
    for _ in range(2):
        assert claims.report("now", 2, second) == Granted(add=False)
    claims.report("now", 1, OUTPUT)
    assert claims.close([second, OUTPUT]) == (OUTPUT, second)
    assert isinstance(claims.claim("now", 3, TopicPartition("out", 2)), Denied)


def test_a_report_cannot_change_its_mind() -> None:
    claims = claimed()
    claims.report("now", 1, OUTPUT)
    assert isinstance(claims.report("now", 1, replace(OUTPUT, count=4)), Denied)


def test_the_digest_does_not_depend_on_offsets_or_order() -> None:
    other = replace(OUTPUT, partition=1)
    moved = replace(OUTPUT, first_offset=105, last_offset=109)
    assert digest([OUTPUT, other]) == digest([other, moved])
    assert digest([OUTPUT]) != digest([replace(OUTPUT, crc=78)])
