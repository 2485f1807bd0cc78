from einmal.client import RetriableError
from einmal.spark.errors import PreflightFailed, reason_of
from einmal.types import ErrorCode

FROM_A_TASK = """An exception was thrown from the Python worker:
Traceback (most recent call last):
  File "worker.py", line 1, in main
RuntimeError: outer

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "claim_service.py", line 9, in claim
einmal.spark.claim_service.ClaimRefused: t-0 is being written by task attempt 7

\tat org.apache.spark.api.python.Reader.read(Reader.scala:1)
Caused by: java.lang.Exception: something else
"""


def test_the_reason_is_the_innermost_error_of_the_task() -> None:
    error = Exception(FROM_A_TASK)
    assert reason_of(error) == "ClaimRefused: t-0 is being written by task attempt 7"


def test_kafkas_errors_from_a_task_are_found_too() -> None:
    trace = (
        "Traceback (most recent call last):\neinmal.client.errors.RecordTooLarge: MESSAGE (10): t-0\n\n\tat org.apache"
    )
    assert reason_of(Exception(trace)) == "RecordTooLarge: MESSAGE (10): t-0"


def test_the_hint_of_an_error_in_a_task_comes_along() -> None:
    trace = "Traceback (most recent call last):\neinmal.spark.offsets.DataLoss: t is gone\nhint: make it\n\n\tat org"
    assert reason_of(Exception(trace)) == "DataLoss: t is gone (make it)"


def test_kafkas_errors_keep_their_words() -> None:
    assert "NOT_ENOUGH_REPLICAS (19)" in reason_of(RetriableError(ErrorCode.not_enough_replicas))


def test_an_error_without_a_trace_is_its_first_line() -> None:
    assert reason_of(OSError("no route\nmore")) == "OSError: no route"


def test_everything_that_is_missing_is_listed() -> None:
    error = PreflightFailed([("no topic", "create it"), ("no right", "")])
    assert str(error).splitlines()[1:] == ["  - no topic", "    hint: create it", "  - no right"]
