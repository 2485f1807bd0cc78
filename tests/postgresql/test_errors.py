"""What PostgreSQL's errors mean, as far as the error alone shows it."""

from __future__ import annotations

from psycopg import errors

from einmal.postgresql.errors import cause, condition, ended_session, is_of_rows, reason


def test_an_error_of_a_row_has_its_condition_and_no_cause_with_values() -> None:
    error = errors.UniqueViolation("Key (id)=(4711) already exists.")
    assert is_of_rows(error)
    assert condition(error) == "unique_violation"
    assert cause(error) is None
    assert reason(error) == "unique_violation (SQLSTATE 23505)"


def test_an_exhausted_sequence_is_not_the_fault_of_a_row() -> None:
    error = errors.SequenceGeneratorLimitExceeded("nextval: reached maximum value")
    assert not is_of_rows(error)
    assert cause(error) is error


def test_an_error_without_an_sqlstate_has_ended_the_session() -> None:
    error = errors.OperationalError("consuming input failed:\n  server closed the connection")
    assert ended_session(error)
    assert reason(error) == "consuming input failed: server closed the connection"
    assert not ended_session(errors.LockNotAvailable("canceling statement due to lock timeout"))
