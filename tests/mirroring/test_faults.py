"""Which errors are about one topic, and when a topic that is left out is tried again."""

from __future__ import annotations

import pytest

from einmal.client.cores.fetched import CorruptData
from einmal.client.errors import KafkaError, RetriableError, error_for
from einmal.mirror_protocol import effects
from einmal.mirror_protocol.effects import MirrorEffect
from einmal.mirroring.faults import LASTS_S, SetAside, blamed, faulty
from einmal.mirroring.reading import SourceUnreadable
from einmal.sinks.commit_point import SinkFailed
from einmal.types import ErrorCode, ProducerEpoch, ProducerId, ProducerIdAndEpoch, TopicPartition
from tests.suite.cases import each_case

PLACES = [TopicPartition(name, index) for name in ("a", "a-1", "b.a") for index in (0, 1, 10)]
COPY = effects.CopyRecords(
    ProducerIdAndEpoch(ProducerId(1), ProducerEpoch(0)),
    dict.fromkeys(PLACES, (0, 1)),
    {},
    {each: TopicPartition(f"A.{each.topic}", each.partition) for each in PLACES},
)
SCAN = effects.ScanHeaders(dict.fromkeys(PLACES, (0, 1)), {})
CREATE = effects.CreateTopic("a", "A.a", 1)
ADD = effects.AddPartitions("A.a", 2, "a")


def failed(code: ErrorCode, detail: str) -> SinkFailed:
    """As the target's verbs raise it."""
    cause = error_for(code, detail)
    error = SinkFailed(str(cause))
    error.__cause__ = cause
    return error


TOO_LARGE, TIMESTAMP = ErrorCode.message_too_large, ErrorCode.invalid_timestamp
CASES: list[tuple[MirrorEffect, Exception, str]] = [
    (COPY, failed(TOO_LARGE, "A.a-0, 1 record(s)"), "a"),
    (COPY, failed(TIMESTAMP, "A.a-10, 1 record(s): too far ahead"), "a"),
    (COPY, failed(TOO_LARGE, "A.a-1-0, 1 record(s)"), "a-1"),
    (COPY, failed(TOO_LARGE, "A.b.a-1, 3 record(s)"), "b.a"),
    # What a task of Spark has raised is text.
    (COPY, SinkFailed("RecordTooLarge: MESSAGE_TOO_LARGE (10): too large [A.b.a-0, 1 record(s)]"), "b.a"),
    (COPY, SourceUnreadable(str(error_for(ErrorCode.topic_authorization_failed, "Fetch of a-1-10"))), "a-1"),
    (COPY, failed(ErrorCode.request_timed_out, "A.a-0, 1 record(s)"), ""),
    (COPY, failed(ErrorCode.producer_fenced, "A.a-0, 1 record(s)"), ""),
    (COPY, failed(TOO_LARGE, "another.a-0, 1 record(s)"), ""),
    (SCAN, error_for(ErrorCode.topic_authorization_failed, "Fetch of a-10"), "a"),
    (SCAN, CorruptData(detail="b.a-0, the batch at the position: CRC"), "b.a"),
    (SCAN, error_for(ErrorCode.offset_out_of_range, "Fetch of a-0"), ""),
    (SCAN, error_for(ErrorCode.unknown_topic_or_partition, "Fetch of a-0"), ""),
    (CREATE, error_for(ErrorCode.invalid_topic_exception, "creating topic 'A.a'"), "a"),
    (CREATE, error_for(ErrorCode.policy_violation, "creating topic 'A.a'"), "a"),
    (CREATE, error_for(ErrorCode.topic_authorization_failed, "creating topic 'A.a'"), "a"),
    (CREATE, error_for(ErrorCode.invalid_replication_factor, "creating topic 'A.a'"), "a"),
    (CREATE, error_for(ErrorCode.request_timed_out, "creating topic 'A.a'"), ""),
    (CREATE, error_for(ErrorCode.sasl_authentication_failed, "at the broker"), ""),
    (ADD, error_for(ErrorCode.invalid_partitions, "topic 'A.a'"), "a"),
    (effects.ListTopics(), error_for(ErrorCode.topic_authorization_failed, "a-0"), ""),
    (COPY, RetriableError(detail="A.a-0"), ""),
    (SCAN, KafkaError(detail="a-0"), ""),
]


@each_case("effect, error, topic", CASES)
def test_an_error_is_about_the_topic_that_it_names_if_it_comes_again(
    effect: MirrorEffect, error: Exception, topic: str
) -> None:
    assert blamed(effect, error) == topic


def test_a_refused_topic_is_tried_again_after_pauses_that_grow() -> None:
    aside = SetAside()
    moments = []
    for now_s in range(2_000):
        aside.reasons.setdefault("large", "too large")
        aside.release(now_s)
        if not aside.reasons:
            moments.append(now_s)
    pauses = [after - before for before, after in zip(moments, moments[1:], strict=False)]
    assert pauses == sorted(pauses)
    assert 5 <= pauses[0] < 20
    assert 290 <= pauses[-1] <= 310
    aside.reasons.clear()
    assert aside.healed(["other"]) == []
    assert aside.healed(["large"]) == ["large"]


@pytest.mark.parametrize("is_refused", (False, True))
def test_a_topic_without_a_leader_is_left_out_after_a_while_and_is_back_with_the_leader(is_refused: bool) -> None:
    aside = SetAside()
    assert aside.lasting(["orders"], 100.0) is None
    assert aside.lasting(["orders"], 99.0 + LASTS_S) is None
    # An election has ended: it does not count for the next one.
    aside.only([])
    assert aside.lasting(["orders"], 101.0 + LASTS_S) is None
    assert aside.lasting(["orders"], 101.0 + 2 * LASTS_S) == "orders"
    aside.reasons["orders"] = "no leader"
    if is_refused:
        aside.reasons["large"] = "too large"
    aside.release(1e6)
    aside.release(2e6)
    aside.only(["orders"])
    assert list(aside.reasons) == ["orders"]
    aside.only([])
    assert not aside.reasons
    assert "orders" in aside.tried


def test_a_topic_whose_leader_answers_with_errors_is_left_out_after_a_while() -> None:
    aside, kind = SetAside(), effects.TakeEnds
    assert aside.unanswered(kind, ["a", "b"], 100.0) == []
    assert aside.unanswered(effects.ListTopics, ["a"], 101.0 + LASTS_S) == []
    aside.answered(kind, ["b"])
    assert aside.unanswered(kind, ["a", "b"], 101.0 + LASTS_S) == ["a"]
    # It is tried again: nobody waits for it for as long once more.
    assert aside.unanswered(kind, ["a"], 102.0 + LASTS_S) == ["a"]
    aside.reasons["a"] = "KAFKA_STORAGE_ERROR"
    assert aside.unanswered(kind, ["a"], 102.0 + LASTS_S) == []
    aside.answered(kind, without=["a"])
    assert aside.unanswered(kind, ["b"], 200.0) == []
    # The cluster was away.
    aside.reasons.clear()
    aside.answered(kind)
    assert aside.unanswered(kind, ["a", "b"], 300.0) == []


@pytest.mark.parametrize(
    "text, topic",
    (
        ("KAFKA_STORAGE_ERROR (56): reading a-0; last: KAFKA_STORAGE_ERROR", "a"),
        ("UNKNOWN_SERVER_ERROR (-1): Fetch of b-1", "b"),
        ("KAFKA_STORAGE_ERROR (56): reading other-0", ""),
        ("NETWORK_EXCEPTION (13): reading a-0; last: connection refused", ""),
    ),
)
def test_an_error_that_a_leader_answers_with_is_about_the_partition_that_it_names(text: str, topic: str) -> None:
    ranges = {TopicPartition("a", 0): (0, 1), TopicPartition("b", 1): (0, 1)}
    assert faulty(effects.ScanHeaders(ranges, {}), SourceUnreadable(text)) == topic
