"""Random kills of ``einmal ingest``, its broker, and its PostgreSQL server, while files are rotated and rows are
written.

    python -m tests.ingest.campaign --kills 100 --seed 1 --source files

In the end the topic must have each line, or each row, once. Exit code 0 where nothing is wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from einmal.client import Admin, NewTopic
from tests.ingest.sources import committed
from tests.ingest.writers import LateRows, RotatedLog, WritingThread
from tests.interop.einmal_broker import EinmalBroker
from tests.sinks.postgres.server import PASSWORD, PostgresServer
from tests.suite.warm import WarmProcess

SOURCES: Final = ("files", "table")
_FAULTS: Final = {"ingester": 5, "broker": 2, "second ingester": 1}
"""And how often each is chosen."""
_PARTITIONS: Final = 3
NAME: Final = "killed"
_LIVES_S: Final = (0.0, 1.0)
_PROGRESS_S: Final = 300.0


@dataclass
class Report:
    source: str
    kills: Counter[str] = field(default_factory=Counter)
    rotations: int = 0
    records: int = 0
    seconds: float = 0.0
    wrong: list[str] = field(default_factory=list)


def wrong_with(written: Sequence[str], found: Iterable[str]) -> list[str]:
    """What a topic lacks of what was written, each of which it must have once, and what it has beside it."""
    if not written:
        return ["nothing was written: nothing is shown"]
    wanted, counts = Counter(written), Counter(found)
    kinds = {
        "written twice": [each for each, count in wanted.items() if count > 1],
        "lost": [each for each in wanted if not counts[each]],
        "duplicated": [each for each, count in counts.items() if count > 1],
        "invented": [each for each in counts if each not in wanted],
    }
    return [f"{len(each)} {kind}: {[one[:20] for one in each[:5]]}" for kind, each in kinds.items() if each]


class Campaign:
    log_writer: type[RotatedLog] = RotatedLog
    declared: tuple[str, ...] = ()
    """More lines of pipeline.toml."""

    def __init__(self, directory: Path, source: str, seed: int) -> None:
        self._directory = directory
        self._source = source
        self._chance = random.Random(seed)
        self._broker = EinmalBroker(directory / "broker")
        self._server: PostgresServer | None = None
        self._ingesters: list[WarmProcess] = []
        self._report = Report(source)

    def run(self, kills: int) -> Report:
        """``kills`` faults, then an undisturbed end, and the verdict."""
        started = time.monotonic()
        with ExitStack() as stack:
            stack.callback(self._remove)
            writer, value = self._prepare()
            writer.start()
            stack.callback(writer.stop)
            self._start()
            self._await_commits()
            faults = _FAULTS | ({"server": 2} if self._server is not None else {})
            for number in range(kills):
                time.sleep(self._chance.uniform(*_LIVES_S))
                fault = self._chance.choices(list(faults), list(faults.values()))[0]
                self._happens(fault)
                self._report.kills[fault] += 1
                print(f"kill {number + 1}: {fault}", file=sys.stderr, flush=True)
                self._await_commits()
            writer.stop()
            self._kill_ingesters()
            self._read_rest()
            self._verdict(writer.expected(), value)
            if isinstance(writer, RotatedLog):
                self._report.rotations = writer.rotations
        self._report.seconds = round(time.monotonic() - started, 1)
        return self._report

    def _prepare(self) -> tuple[WritingThread, Callable[[bytes], str]]:
        self._broker.start()
        with Admin({"bootstrap.servers": self._broker.bootstrap}) as admin:
            admin.create_topics([NewTopic("out", num_partitions=_PARTITIONS)])
        seed = self._chance.randrange(1 << 30)
        if self._source == "files":
            folder = self._directory / "logs"
            folder.mkdir()
            self._declare(type="files", path=str(folder / "app.log*"))
            return self.log_writer(folder, seed), bytes.decode
        self._server = PostgresServer()
        self._server.start()
        self._server.rows(LateRows.SCHEMA)
        self._declare(type="table", url=self._server.url, password=PASSWORD, table="public.events", column="id")
        return LateRows(self._server, seed), bytes.decode

    def _declare(self, **options: str) -> None:
        lines = [f'kafka.bootstrap.servers = "{self._broker.bootstrap}"', f"[ingest.{NAME}]", 'topic = "out"']
        lines += [f"{name} = {json.dumps(value)}" for name, value in options.items()]
        (self._directory / "pipeline.toml").write_text("\n".join([*lines, *self.declared]))

    # --- faults -----------------------------------------------------------------------------------------------------

    def _happens(self, fault: str) -> None:
        match fault:
            case "ingester":
                self._kill_ingesters()
                self._start()
            case "second ingester":
                self._start()
            case "broker":
                self._broker.kill()
                self._broker.start()
            case "server":
                assert self._server is not None
                self._server.kill()
                self._server.start()

    def _start(self, *options: str) -> None:
        command = ["einmal", "ingest", NAME, "--format", "json", *options]
        number = len(list(self._directory.glob("*.out")))
        with (
            (self._directory / f"{number}.out").open("wb") as output,
            (self._directory / "ingesters.log").open("ab") as log,
        ):
            process = WarmProcess(command, cwd=self._directory, output=output.fileno(), errors=log.fileno())
        self._ingesters.append(process)

    def _kill_ingesters(self) -> None:
        for each in self._ingesters:
            each.kill()
            each.wait()
        self._ingesters.clear()

    # --- progress ---------------------------------------------------------------------------------------------------

    def _await_commits(self) -> None:
        """The newest ingester commits: else a fault may come before anything has begun. Others may be fenced."""
        output = max(self._directory.glob("*.out"), key=lambda path: int(path.stem))
        size = output.stat().st_size
        deadline = time.monotonic() + _PROGRESS_S
        while output.stat().st_size == size:
            self._ingesters = [each for each in self._ingesters if each.poll() is None]
            if not self._ingesters or time.monotonic() > deadline:
                raise AssertionError(f"nothing is committed any more: {self._log()[-4000:]}")
            time.sleep(0.02)

    def _read_rest(self) -> None:
        self._start("--available-now")
        code = self._ingesters.pop().wait(_PROGRESS_S)
        if code:
            self._report.wrong.append(f"the last ingester has ended with {code}: {self._log()[-1000:]}")

    def _log(self) -> str:
        return (self._directory / "ingesters.log").read_text(errors="replace")

    # --- verdict ----------------------------------------------------------------------------------------------------

    def _verdict(self, written: list[str], value: Callable[[bytes], str]) -> None:
        found = committed(self._broker.bootstrap, "out", _PARTITIONS)
        values = [value(each) for place in found for each in place]
        report = self._report
        report.records = len(values)
        report.wrong += wrong_with(written, values)
        for forbidden in (PASSWORD, "Traceback"):
            if forbidden in self._log():
                report.wrong.append(f"{forbidden!r} is in the ingesters' log")

    def _remove(self) -> None:
        self._kill_ingesters()
        self._broker.kill()
        if self._server is not None:
            self._server.remove()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(3), "big"))
    parser.add_argument("--source", choices=SOURCES, action="append", help="default: each of them")
    asked = parser.parse_args()
    failures = 0
    for source in asked.source or SOURCES:
        directory = Path(tempfile.mkdtemp(prefix="einmal-ingest-"))
        print(f"{source}: seed {asked.seed}, {asked.kills} kills, in {directory}", flush=True)
        report = Campaign(directory, source, asked.seed).run(asked.kills)
        print(report, flush=True)
        if report.wrong:
            failures += 1
            print(f"kept: {directory}")
        else:
            shutil.rmtree(directory)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
