"""Random kills of ``einmal ingest``, its broker, and its PostgreSQL server, while files are rotated and rows are
written.

    python -m tests.ingest.campaign --kills 100 --seed 1 --source files

In the end the topic must have each line, or each row, once. Exit code 0 where nothing is wrong.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from einmal.chaos.campaign import RandomFaults
from einmal.chaos.instances import Instances
from einmal.chaos.report import CampaignReport
from einmal.chaos.waiting import wait_until
from einmal.client import Admin, NewTopic
from tests.campaigns.command import parser, run_in_folder
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
_CALM_S: Final = (0.0, 1.0)
_PROGRESS_S: Final = 300.0


@dataclass(kw_only=True)
class IngestReport(CampaignReport):
    source: str
    rotations: int = 0
    records: int = 0


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


class IngestCampaign(RandomFaults[IngestReport]):
    log_writer: type[RotatedLog] = RotatedLog
    declared: tuple[str, ...] = ()
    """More lines of pipeline.toml."""

    def __init__(self, directory: Path, source: str, seed: int) -> None:
        faults = _FAULTS | ({"server": 2} if source == "table" else {})
        super().__init__(IngestReport(source=source), seed, faults, _CALM_S)
        self._directory = directory
        self._broker = EinmalBroker(directory / "broker")
        self._server: PostgresServer | None = None
        self._ingesters = Instances(self._launch, directory / "ingesters.log")
        self._writer: WritingThread | None = None

    def start(self) -> None:
        self._writer = self._prepare()
        self._writer.start()
        self._ingesters.start()

    def _prepare(self) -> WritingThread:
        self._broker.start()
        with Admin({"bootstrap.servers": self._broker.bootstrap}) as admin:
            admin.create_topics([NewTopic("out", num_partitions=_PARTITIONS)])
        seed = self.chance.randrange(1 << 30)
        if self.report.source == "files":
            folder = self._directory / "logs"
            folder.mkdir()
            self._declare(type="files", path=str(folder / "app.log*"))
            return self.log_writer(folder, seed)
        assert self.report.source == "table"
        self._server = PostgresServer()
        self._server.start()
        self._server.rows(LateRows.SCHEMA)
        self._declare(type="table", url=self._server.url, password=PASSWORD, table="public.events", column="id")
        return LateRows(self._server, seed)

    def _declare(self, **options: str) -> None:
        lines = [f'kafka.bootstrap.servers = "{self._broker.bootstrap}"', f"[ingest.{NAME}]", 'topic = "out"']
        lines += [f"{name} = {json.dumps(value)}" for name, value in options.items()]
        (self._directory / "pipeline.toml").write_text("\n".join([*lines, *self.declared]))

    # --- faults -----------------------------------------------------------------------------------------------------

    def inject(self, fault: str) -> str:
        match fault:
            case "ingester":
                self._ingesters.kill()
                self._ingesters.start()
            case "second ingester":
                self._ingesters.start()
            case "broker":
                self._broker.kill()
                self._broker.start()
            case "server":
                assert self._server is not None
                self._server.kill()
                self._server.start()

        return fault

    def _launch(self, *options: str) -> WarmProcess:
        command = ["einmal", "ingest", NAME, "--format", "json", *options]
        number = len(list(self._directory.glob("*.out")))
        with (
            (self._directory / f"{number}.out").open("wb") as output,
            (self._directory / "ingesters.log").open("ab") as log,
        ):
            return WarmProcess(command, cwd=self._directory, output=output.fileno(), errors=log.fileno())

    # --- progress ---------------------------------------------------------------------------------------------------

    def await_progress(self) -> None:
        """The newest ingester commits: else a fault may come before anything has begun. Others may be fenced."""
        output = max(self._directory.glob("*.out"), key=lambda path: int(path.stem))
        size = output.stat().st_size

        def has_progress() -> bool:
            assert self._ingesters.running, f"every ingester has ended: {self._ingesters.log()[-4000:]}"
            return output.stat().st_size != size

        wait_until(has_progress, _PROGRESS_S, lambda: f"no commit: {self._ingesters.log()[-4000:]}", pause_s=0.02)

    def finish(self) -> None:
        """The last ingester reads the remaining input, and ends."""
        assert self._writer is not None
        self._writer.stop()
        self._ingesters.kill()
        code = self._ingesters.start("--available-now").wait(_PROGRESS_S)
        if code:
            self.report.wrong.append(f"the last ingester has ended with {code}: {self._ingesters.log()[-1000:]}")

    def close(self) -> None:
        if self._writer is not None:
            self._writer.stop()
        self._ingesters.kill()
        self._broker.kill()
        if self._server is not None:
            self._server.remove()

    # --- verdict ----------------------------------------------------------------------------------------------------

    def check(self) -> None:
        assert self._writer is not None
        found = committed(self._broker.bootstrap, "out", _PARTITIONS)
        values = [each.decode() for partition in found for each in partition]
        self.report.records = len(values)
        self.report.wrong += wrong_with(self._writer.expected(), values)
        for forbidden in (PASSWORD, "Traceback"):
            if forbidden in self._ingesters.log():
                self.report.wrong.append(f"{forbidden!r} is in the ingesters' log")
        if isinstance(self._writer, RotatedLog):
            self.report.rotations = self._writer.rotations


def main() -> int:
    options = parser(__doc__, kills=100)
    options.add_argument("--source", choices=SOURCES, action="append", help="default: each of them")
    asked = options.parse_args()

    def is_good(source: str) -> bool:
        return run_in_folder(
            f"ingest-{source}", asked, lambda folder: IngestCampaign(folder, source, asked.seed).run(asked.kills)
        )

    good = [is_good(source) for source in asked.source or SOURCES]
    return not all(good)


if __name__ == "__main__":
    sys.exit(main())
