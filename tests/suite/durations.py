"""How long each test file took: what the scheduler sorts by. Recorded with ``make durations``, committed."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

import pytest

_UNKNOWN_S: Final = 5.0
"""A new file, which may be long."""


def file_of(node_id: str) -> str:
    return node_id.partition("::")[0]


@dataclass(frozen=True, slots=True)
class Durations:
    """Seconds by test file."""

    seconds: Mapping[str, float]

    @classmethod
    def load(cls, path: Path) -> Self:
        return cls(json.loads(path.read_text()) if path.exists() else {})

    def of(self, file: str) -> float:
        return self.seconds.get(file, _UNKNOWN_S)


class DurationRecorder:
    """A plugin that writes the durations of a run, set-up and tear-down included, when it has ended."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seconds: defaultdict[str, float] = defaultdict(float)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._seconds[file_of(report.nodeid)] += report.duration

    def pytest_sessionfinish(self) -> None:
        """What is recorded of files that did not run stays."""
        known = {file: seconds for file, seconds in Durations.load(self._path).seconds.items() if Path(file).exists()}
        known |= {file: round(seconds, 1) for file, seconds in self._seconds.items()}
        self._path.write_text(json.dumps(known, indent=0, sort_keys=True) + "\n")
