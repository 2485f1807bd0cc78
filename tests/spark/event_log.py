"""Spark's own event log of a driver, read back: what really happened to its executors, stages and tasks.

The log is cut at the starts of queries, which have names. Findings are reported in a few words, counted.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

SETTINGS: Final = {
    "spark.eventLog.enabled": "true",
    "spark.eventLog.rolling.enabled": "false",
    "spark.eventLog.compress": "false",
}
"""Beside ``spark.eventLog.dir``."""

EXECUTOR_LOST: Final = "an executor was lost"
EXECUTOR_IDLE: Final = "an idle executor was given back"
EXECUTOR_ADDED: Final = "an executor came"
STAGE_AGAIN: Final = "a stage ran again"
FETCH_FAILED: Final = "shuffle files were gone"
COPY_STARTED: Final = "a speculative copy ran"
COPY_WON: Final = "a speculative copy was the first"
TASK_FAILED: Final = "a task failed"
PLAN_ADAPTED: Final = "a plan was adapted"


def facts(directory: Path) -> dict[str, Counter[str]]:
    """What happened in the drivers that logged to this directory: by the query that had started last ("": none)."""
    found: dict[str, Counter[str]] = defaultdict(Counter)
    for log in sorted(directory.iterdir()):
        query = ""
        with log.open() as lines:
            for line in lines:
                event = json.loads(line)
                kind = event["Event"].rpartition(".")[2]
                if kind == "StreamingQueryListener$QueryStartedEvent":
                    query = event["name"]
                found[query].update(_facts(kind, event))
    return found


def _facts(kind: str, event: dict[str, Any]) -> Iterator[str]:
    match kind:
        case "SparkListenerExecutorAdded":
            yield EXECUTOR_ADDED
        case "SparkListenerExecutorRemoved":
            yield EXECUTOR_IDLE if "killed by driver" in event["Removed Reason"] else EXECUTOR_LOST
        case "SparkListenerStageSubmitted":
            if event["Stage Info"]["Stage Attempt ID"] > 0:
                yield STAGE_AGAIN
        case "SparkListenerTaskStart":
            if event["Task Info"]["Speculative"]:
                yield COPY_STARTED
        case "SparkListenerTaskEnd":
            yield from _end_of_task(event)
        case "SparkListenerSQLAdaptiveExecutionUpdate":
            yield PLAN_ADAPTED


def _end_of_task(event: dict[str, Any]) -> Iterator[str]:
    match event["Task End Reason"]["Reason"]:
        case "Success":
            if event["Task Info"]["Speculative"]:
                yield COPY_WON
        case "FetchFailed":
            yield FETCH_FAILED
        case "ExceptionFailure":
            yield TASK_FAILED
