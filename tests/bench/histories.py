"""Time and memory of the checker on a history in a file: ``einmal verify --history``, measured.

    python -m tests.bench.histories --operations 1000000

Writes a history without anomalies, checks it in a process of its own, and prints operations, CPU seconds and the peak
of the resident memory. The history is of two transactional writers, two plain ones, two readers of committed records
and one of uncommitted ones: four writes of one to three values for each poll; every value is read by all readers.
"""

from __future__ import annotations

import argparse
import random
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from einmal.checker.history import History, Op, OpOutcome, Poll, Send
from einmal.types import TopicPartition
from einmal.verify.histories.files import write_json

_KEYS = [TopicPartition("ledger", partition) for partition in range(3)]
_TRANSACTIONAL, _PLAIN, _READERS, _UNCOMMITTED = (1, 2), (3, 4), (11, 12, 13), 13
_BEHIND_MAX = 1_000
"""Records of a partition that a reader has not read yet: no more of the log is kept."""


@dataclass
class _Log:
    end: int = 0
    base: int = 0
    records: list[tuple[int, str]] = field(default_factory=list)
    positions: dict[int, int] = field(default_factory=lambda: dict.fromkeys(_READERS, 0))

    def append(self, value: str) -> int:
        self.records.append((self.end, value))
        self.end += 1
        return self.end - 1

    def read(self, reader: int) -> tuple[tuple[int, str], ...]:
        found = tuple(self.records[self.positions[reader] - self.base :])
        self.positions[reader] += len(found)
        read_by_all = min(self.positions.values()) - self.base
        if read_by_all > _BEHIND_MAX:
            del self.records[:read_by_all]
            self.base += read_by_all
        return found


@dataclass(frozen=True)
class _Operations:
    count: int

    def __iter__(self) -> Iterator[Op]:
        source = random.Random(1)
        logs = {key: _Log() for key in _KEYS}
        for number in range(self.count - len(_READERS)):
            now = number / 1000
            if number % 5 == 4:
                yield _polled(source.choice(_READERS), logs, now)
            else:
                yield _written(source, logs, number, now)
        for reader in _READERS:
            yield _polled(reader, logs, self.count / 1000)


def _written(source: random.Random, logs: dict[TopicPartition, _Log], number: int, now: float) -> Op:
    outcome = source.choices((OpOutcome.OK, OpOutcome.FAIL, OpOutcome.INFO), (88, 10, 2))[0]
    process = source.choice((*_TRANSACTIONAL, *_PLAIN))
    sends = []
    for part in range(source.randint(1, 3) if process in _TRANSACTIONAL else 1):
        key, value = source.choice(_KEYS), f"writer-{process}.{number}/{part}"
        offset = None if outcome is OpOutcome.FAIL else logs[key].append(value)
        sends.append(Send(key, value, offset if outcome is OpOutcome.OK else None))
    if process in _TRANSACTIONAL:
        for key in {send.key: None for send in sends}:
            # The marker.
            logs[key].records.append((logs[key].end, ""))
            logs[key].end += 1
    return Op(
        process=process,
        actions=tuple(sends),
        outcome=outcome,
        transactional=process in _TRANSACTIONAL,
        began=now,
        ended=None if outcome is OpOutcome.INFO else now + 0.0005,
    )


def _polled(reader: int, logs: dict[TopicPartition, _Log], now: float) -> Op:
    polls = [(key, tuple(record for record in log.read(reader) if record[1])) for key, log in logs.items()]
    return Op(
        process=reader,
        actions=tuple(Poll(key, records) for key, records in polls if records),
        outcome=OpOutcome.OK,
        read_committed=reader != _UNCOMMITTED,
        began=now,
        ended=now,
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--operations", type=int, default=100_000)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="einmal-histories-") as folder:
        path = Path(folder) / "history.jsonl"
        write_json(History(_Operations(arguments.operations), is_read_to_the_end=True), path)
        megabytes = path.stat().st_size // 1_000_000
        command = [sys.executable, "-m", "einmal", "verify", "--history", str(path)]
        status = subprocess.run(command, check=False).returncode
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(
        f"{arguments.operations:,} operations in {megabytes:,} MB: {used.ru_utime + used.ru_stime:.1f} s of CPU, "
        f"at most {used.ru_maxrss // 1024:,} MiB resident"
    )
    return status


if __name__ == "__main__":
    sys.exit(main())
