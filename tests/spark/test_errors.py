from __future__ import annotations

from einmal.client import RetriableError
from einmal.pipeline.errors import PreflightFailed
from einmal.spark.errors import reason_of
from einmal.types import ErrorCode

FROM_A_TASK = """An exception was thrown from the Python worker:
Traceback (most recent call last):
  File "worker.py", line 1, in main
RuntimeError: outer

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "claim_service.py", line 9, in claim
einmal.sinks.kafka.claim_service.ClaimRefused: t-0 is being written by task attempt 7

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


class JavaException:
    """As much of a Java exception as py4j shows."""

    def __init__(self, kind: str, message: str | None, cause: JavaException | None = None) -> None:
        self._kind, self._message, self._cause = kind, message, cause

    def getClass(self) -> JavaException:
        return self

    def getSimpleName(self) -> str:
        return self._kind

    def getMessage(self) -> str | None:
        return self._message

    def getCause(self) -> JavaException | None:
        return self._cause


class Py4JJavaError(Exception):
    def __init__(self, java_exception: object) -> None:
        super().__init__("An error occurred while calling o5512.collectToPython.")
        self.java_exception = java_exception


def test_a_java_error_is_its_innermost_cause_and_never_the_call() -> None:
    cause = JavaException("SparkException", "Job aborted", JavaException("OutOfMemoryError", "Java heap space\nmore"))
    assert reason_of(Py4JJavaError(cause)) == "OutOfMemoryError: Java heap space"


def test_a_cause_without_a_message_does_not_hide_the_one_around_it() -> None:
    cause = JavaException("IOException", "disk full", JavaException("ClosedChannelException", None))
    assert reason_of(Py4JJavaError(cause)) == "IOException: disk full"
    assert reason_of(Py4JJavaError(JavaException("StackOverflowError", None))) == "StackOverflowError"


def test_sparks_error_class_is_kept_beside_the_cause() -> None:
    cause = JavaException("FileNotFoundException", "File a.parquet does not exist")
    failed = JavaException("SparkException", "[FAILED_READ_FILE.FILE_NOT_EXIST] Error while reading.\nmore", cause)
    query = JavaException("StreamingQueryException", "[STREAM_FAILED] Query terminated", failed)
    assert reason_of(Py4JJavaError(query)) == (
        "[FAILED_READ_FILE.FILE_NOT_EXIST] Error while reading.; caused by "
        "FileNotFoundException: File a.parquet does not exist"
    )
    divided = JavaException("SparkArithmeticException", "[DIVIDE_BY_ZERO] Division by zero.")
    assert (
        reason_of(Py4JJavaError(JavaException("SparkException", "[STREAM_FAILED] Query", divided)))
        == "SparkArithmeticException: [DIVIDE_BY_ZERO] Division by zero."
    )


def test_the_python_error_of_a_task_is_found_in_any_cause() -> None:
    cause = JavaException("SparkException", "Job aborted", JavaException("PythonException", FROM_A_TASK))
    assert reason_of(Py4JJavaError(cause)) == "ClaimRefused: t-0 is being written by task attempt 7"


def test_a_python_error_of_any_name_is_found() -> None:
    trace = (
        'Traceback (most recent call last):\n  File "x.py", line 1, in f\n    f()\n__main__.Poison{}\n\n\tat org.A.b(A'
    )
    assert reason_of(Exception(trace.format(": bad row\n  and more"))) == "Poison: bad row"
    assert reason_of(Exception(trace.format(""))) == "Poison"


def test_an_error_of_pysparks_own_does_not_hide_the_one_before_it() -> None:
    first = 'Traceback (most recent call last):\n  File "x.py", line 1, in f\nValueError: no\n\nDuring handling of the'
    second = f"{first} above exception, another exception occurred:\n\n{first.partition('ValueError')[0]}"
    pysparks = "UnboundLocalError: cannot access local variable 'reader' where it is not associated with a value\n"
    assert reason_of(Exception(second + pysparks)) == "ValueError: no"


def test_a_worker_that_hides_its_traceback_still_names_its_error() -> None:
    error = JavaException("PythonException", "An exception was thrown from the Python worker:\nKeyError: 'amount'\n")
    assert reason_of(Py4JJavaError(error)).endswith("Python worker: KeyError: 'amount'")


def test_a_jvm_that_has_ended_is_named() -> None:
    class Py4JNetworkError(Exception):
        pass

    class Gone(JavaException):
        def getMessage(self) -> str:
            raise Py4JNetworkError("Answer from Java side is empty")

    assert "JVM has ended" in reason_of(Py4JNetworkError("Answer from Java side is empty"))
    assert "JVM has ended" in reason_of(Py4JJavaError(Gone("SparkException", "")))


def test_a_reason_has_a_limit() -> None:
    assert len(reason_of(Exception("x" * 10_000))) == 1_000


def test_an_error_without_a_trace_is_its_first_line() -> None:
    assert reason_of(OSError("no route\nmore")) == "OSError: no route"


def test_everything_that_is_missing_is_listed() -> None:
    error = PreflightFailed([("no topic", "create it"), ("no right", "")])
    assert str(error).splitlines()[1:] == ["  - no topic", "    hint: create it", "  - no right"]
