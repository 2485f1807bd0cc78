"""Claims about errors: every code has one exception, and its text explains the cause and what to do."""

from __future__ import annotations

import pickle

import pytest

from einmal.client import errors
from einmal.client.errors import KafkaError, RequestRefused, error_for
from einmal.types import ErrorCode
from tests.suite.cases import each_case

KINDS = (
    errors.RetriableError,
    errors.AbortableError,
    errors.FatalError,
    errors.RequestRefused,
    errors.LocalError,
    errors.UnknownOutcome,
)


@each_case("code", [code for code in ErrorCode if code is not ErrorCode.none])
def test_every_code_is_an_exception_of_one_kind_with_a_full_text(code: ErrorCode) -> None:
    error = error_for(code, "while testing")
    assert sum(isinstance(error, kind) for kind in KINDS) == 1
    text = str(error)
    assert text.startswith(f"{code.name.upper()} ({code.value}): ")
    assert "[while testing]. " in text
    assert text.endswith(".")
    assert len(error.meaning) > 10
    assert len(error.what_to_do) > 5


@each_case("code", [code for code in ErrorCode if code.retriable])
def test_no_code_that_kafka_calls_retriable_is_called_fatal(code: ErrorCode) -> None:
    assert not isinstance(error_for(code), errors.FatalError | errors.AbortableError)


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (ErrorCode.producer_fenced, errors.ProducerFenced),
        (ErrorCode.invalid_producer_epoch, errors.AbortableError),
        (ErrorCode.invalid_producer_id_mapping, errors.FatalError),
        (ErrorCode.transaction_abortable, errors.AbortableError),
        (ErrorCode.out_of_order_sequence_number, errors.AbortableError),
        (ErrorCode.concurrent_transactions, errors.RetriableError),
        (ErrorCode.not_enough_replicas, errors.RetriableError),
        (ErrorCode.illegal_generation, errors.CommitFailed),
        (ErrorCode.unknown_member_id, errors.CommitFailed),
        (ErrorCode.message_too_large, errors.RecordTooLarge),
        (ErrorCode.offset_out_of_range, errors.OffsetOutOfRange),
        (ErrorCode.topic_authorization_failed, errors.RequestNotAuthorized),
        (ErrorCode.topic_already_exists, errors.TopicAlreadyExists),
    ],
)
def test_every_error_code_maps_to_its_exception(code: ErrorCode, kind: type[KafkaError]) -> None:
    assert type(error_for(code)) is kind


def test_fenced_reads_as_a_user_needs_it() -> None:
    assert str(error_for(ErrorCode.producer_fenced, "EndTxn(commit) of 'orders'")) == (
        "PRODUCER_FENCED (90): a newer producer with the same transactional.id has taken over "
        "[EndTxn(commit) of 'orders']. Close this producer; run only one instance per transactional.id."
    )


def test_errors_without_a_code_have_the_name_of_their_class() -> None:
    assert str(errors.BufferExhausted()).startswith("BufferExhausted: buffer.memory is full")


def test_errors_survive_a_journey_between_processes() -> None:
    error = error_for(ErrorCode.producer_fenced, "detail")
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy), copy.code) == (type(error), str(error), error.code)


def test_records_that_may_not_be_deleted_name_the_setting_that_allows_it() -> None:
    error = error_for(ErrorCode.policy_violation, "DELETE_RECORDS of t-0")
    assert isinstance(error, RequestRefused)
    assert "cleanup.policy" in str(error)
