"""Errors that Spark, py4j and Python workers raise, in one line for a user."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

from einmal.client.errors import KafkaError


class SparkUnsupported(ImportError):
    """The installed PySpark lacks the interfaces that source and sink are built on."""


_JAVA_FRAME: Final = re.compile(r"\n[ \t]+at [\w.$]+[(/]")
_TRACEBACK: Final = "Traceback (most recent call last):"
_PYTHON_ERROR: Final = re.compile(r"(?:[A-Za-z_]\w*\.)*(?P<kind>[A-Za-z_]\w*)(?:: (?P<message>.*))?")
_CONDITION: Final = re.compile(r"\[[A-Z][A-Z0-9_]*(?:\.[A-Z0-9_]+)*\] ")
"""How a message of Spark's begins that has an error class."""
_WRAPPERS: Final = ("[STREAM_FAILED]", "[FOREACH_BATCH_USER_FUNCTION_ERROR]")
_PYSPARKS_OWN: Final = "UnboundLocalError: cannot access local variable 'reader'"
"""Message that replaces any error in ``streamReader``: PySpark's runner closes a reader that it does not have."""
_NOT_THERE: Final = "ModuleNotFoundError: No module named 'einmal'"
_OTHER_PYTHON: Final = (
    "Spark's workers run another Python: set PYSPARK_PYTHON to this one before the session is made, or take "
    "einmal.spark.session(), which does"
)
_JVM_GONE: Final = "Spark's JVM has ended; its log on stderr has the cause (often: out of memory)"
_CAUSES_MAX: Final = 20
_REASON_MAX: Final = 1_000
"""Characters of one reason: a message of Spark's can hold a whole plan."""


def reason_of(error: BaseException) -> str:
    """Return what failed, in one line: the Python error of a task, else the innermost cause that has a message.

    Spark wraps a task's error in the traces of several processes, and PySpark may only name the call that failed.
    """
    if isinstance(error, KafkaError):
        return str(error)
    if type(error).__name__ == "Py4JNetworkError":
        return _JVM_GONE
    causes = _java_causes(error) or [(type(error).__name__, str(error))]
    in_python = (_python_error(message) for _, message in reversed(causes))
    return (next(filter(None, in_python), None) or _innermost(causes))[:_REASON_MAX]


def _java_causes(error: BaseException) -> list[tuple[str, str]]:
    """(class, message) of a Java exception and of its causes, outermost first; empty where there is none to ask."""
    java: Any = getattr(error, "java_exception", None) or getattr(error, "_origin", None)
    causes: list[tuple[str, str]] = []
    try:
        while java is not None and len(causes) < _CAUSES_MAX:
            causes.append((str(java.getClass().getSimpleName()), str(java.getMessage() or "")))
            java = java.getCause()
    except Exception:  # noqa: BLE001 - py4j's errors where the JVM has ended since
        return causes or [("Py4JNetworkError", _JVM_GONE)]
    return causes


def _python_error(message: str) -> str | None:
    """The last error of a Python traceback: it was raised from those before it."""
    python = message[: frame.start()] if (frame := _JAVA_FRAME.search(message)) else message
    for traceback in reversed(python.split(_TRACEBACK)[1:]):
        lines = [line for line in traceback.splitlines() if line and not line.startswith(" ")]
        match = _PYTHON_ERROR.match(lines[0]) if lines else None
        if match is None or lines[0].startswith(_PYSPARKS_OWN):
            continue
        reason = ": ".join(group.strip() for group in match.groups() if group)
        return f"{reason} ({_OTHER_PYTHON})" if reason == _NOT_THERE else reason + _hint(lines[1:])
    return None


def _innermost(causes: list[tuple[str, str]]) -> str:
    """The innermost cause; where only an outer one has an error class of Spark's, both."""
    first_lines = [(kind, line) for kind, message in causes if (line := _first_line(message))]
    if not first_lines:
        return causes[-1][0]
    kind, message = first_lines[-1]
    reason = f"{kind}: {message}"
    if _CONDITION.match(message):
        return reason
    outer = [line for _, line in first_lines[:-1] if _CONDITION.match(line) and not line.startswith(_WRAPPERS)]
    return f"{outer[-1]}; caused by {reason}" if outer else reason


def _first_line(message: str) -> str:
    """With the next one, where it only announces that, and with the hint of an error of ours."""
    lines = message.strip().splitlines()
    return " ".join(lines[: 2 if lines[0].endswith(":") else 1]) + _hint(lines[1:]) if lines else ""


def _hint(lines: Sequence[str]) -> str:
    return next((f" ({line.removeprefix('hint: ')})" for line in lines if line.startswith("hint: ")), "")
