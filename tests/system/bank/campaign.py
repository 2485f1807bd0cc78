"""Random kills under the bank across a topic and PostgreSQL: of the writer, at every step and at any moment, of the
broker, of the server, of several at once; and second writers under the same name.

    python -m tests.system.bank.campaign --kills 300 --seed 1
    python -m tests.system.bank.campaign --kills 50 --seed 1 --mode database-first    # without two-phase commit

Readers compare the two halves all the time (``readers``). At the end both have the same transfers, each once. Exit code
0 where nothing differs; without a two-phase commit, where something does.
"""

from __future__ import annotations

import signal
import sys
import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from einmal.chaos.campaign import RandomFaults
from einmal.chaos.instances import Instances
from einmal.chaos.report import CampaignReport
from einmal.chaos.waiting import wait_until
from einmal.client import Admin, Consumer
from tests.campaigns.command import parser, run_in_folder, with_keep
from tests.interop.einmal_broker import EinmalBroker
from tests.interop.topics import Broker, create_topic
from tests.sinks.postgres.server import PostgresServer
from tests.suite.warm import WarmProcess
from tests.system.bank.database import NAME, Database
from tests.system.bank.events import PARTITIONS, TOPIC, Event
from tests.system.bank.readers import PARTITION_KEYS, Reader
from tests.system.bank.writer import MODES, STEPS, TOPIC_FIRST, TWO_PHASE

AT_A_STEP: Final = "writer at a step"
_FAULTS: Final = {
    AT_A_STEP: 6,
    "writer": 3,
    "broker": 2,
    "server": 2,
    "writer, broker": 1,
    "writer, server": 1,
    "writer, broker, server": 1,
    "second writer": 1,
    "paused writer": 1,
}
"""And how often each is chosen."""
_CALM_S: Final = (0.0, 1.0)
"""Often none, between one fault and the next, once a transaction was committed since."""
_TRANSACTIONS: Final = 12
"""A writer that dies at a step dies in one of its first transactions."""
_PATIENCE_S: Final = 180.0
_PAUSE_S: Final = 0.02
_REPOSITORY: Final = Path(__file__).parents[3]


@dataclass(kw_only=True)
class BankReport(CampaignReport):
    mode: str
    transactions: int = 0
    transfers: int = 0
    compared: int = 0
    """Moments at which a reader has compared the sum."""
    differing: int = 0
    ahead: int = 0
    """Moments at which the topic showed a transaction that the database did not have."""
    torn: dict[str, int] = field(default_factory=dict)
    """Transactions that one half lacks or has twice, by the fault that came before."""
    wait_s_max: float = 0.0
    """A reader's longest wait for a transaction that the database has."""


class BankCampaign(RandomFaults[BankReport]):
    """``mode``: of the writer. ``steps``: at which it is killed, and at no other moment; None: everything is killed."""

    def __init__(
        self, directory: Path, seed: int, mode: str = TWO_PHASE, *, steps: Sequence[str] | None = None
    ) -> None:
        super().__init__(BankReport(mode=mode), seed, _FAULTS if steps is None else {AT_A_STEP: 1}, _CALM_S)
        self._directory = directory
        self._server = PostgresServer()
        self._broker = EinmalBroker(directory / "broker", {"transaction.two.phase.commit.enable": "true"})
        self._writers = Instances(self._launch, directory / "writers.log")
        self._readers: list[Reader] = []
        self._steps = steps or STEPS
        self._next_steps: list[str] = []
        self._faults_seen: list[tuple[int, str]] = []
        """The number of the first transaction that was seen in the database after a fault, and the fault."""

    def start(self) -> None:
        self._server.start()
        database = Database(self._server.url)
        database.create()
        database.close()
        self._broker.start()
        create_topic(Broker(self._broker.host, self._broker.port), TOPIC, PARTITIONS)
        for name, is_new in (("steady reader", False), ("new readers", True)):
            reader = Reader(name, self._broker.bootstrap, self._server.url, is_new=is_new)
            reader.start()
            self._readers.append(reader)

    def finish(self) -> None:
        while 0 not in self._stop_writers():
            self.await_progress()
        for reader in self._readers:
            reader.finish()

    def close(self) -> None:
        self._writers.kill()
        self._broker.kill()
        self._server.remove()

    # --- faults -------------------------------------------------------------------------------------------------

    def calm(self) -> None:
        if self.chance.random() < 0.5:
            super().calm()

    def inject(self, fault: str) -> str:
        """The name of a fault at a step has the step."""
        match fault:
            case _ if fault == AT_A_STEP:
                return self._kill_at_a_step()
            case "second writer":
                # Under the same name, while the first one runs: one of them ends, or both do.
                self._writers.start()
            case "paused writer":
                self._pause_writer()
            case _:
                self._kill(fault.split(", "))
        return fault

    def recovered(self, fault: str) -> None:
        self._faults_seen.append((self._number(), fault))

    def _kill(self, parts: list[str]) -> None:
        # All at once, not one after the other: each would notice that the one before is gone.
        if "writer" in parts:
            self._writers.kill()
        if "broker" in parts:
            self._broker.kill()
        if "server" in parts:
            self._server.kill()
            self._server.start()
        if "broker" in parts:
            self._broker.start()

    def _kill_at_a_step(self) -> str:
        """Replace the writer by one that dies at a step; each step has its turn."""
        if not self._next_steps:
            self._next_steps = self.chance.sample(self._steps, len(self._steps))
        step = self._next_steps.pop()
        self._stop_writers()
        writer = self._writers.start(step, str(self.chance.randint(1, _TRANSACTIONS)))
        assert writer.wait(_PATIENCE_S) == -signal.SIGKILL, f"never came to {step}: {self._writers.log()[-4000:]}"
        return f"writer {step}"

    def _pause_writer(self) -> None:
        """The writer stops, another takes over, and the first one resumes: a zombie."""
        if not self._writers.running:
            return
        paused = self._writers.running[0]
        paused.send_signal(signal.SIGSTOP)
        self._writers.start()
        time.sleep(self.chance.uniform(0, 3))
        paused.send_signal(signal.SIGCONT)

    # --- writers ------------------------------------------------------------------------------------------------

    def _launch(self, *death: str) -> WarmProcess:
        arguments = [self.report.mode, self._broker.bootstrap, self._server.url, str(self.chance.getrandbits(30))]
        with (self._directory / "writers.log").open("ab") as log:
            return WarmProcess(
                ["tests.system.bank.writer", *arguments, *death],
                output=log.fileno(),
                errors=log.fileno(),
                cwd=_REPOSITORY,
            )

    def await_progress(self) -> None:
        """A transaction was committed since; a writer that has ended is replaced."""
        before = self._number()

        def has_progress() -> bool:
            if self._number() != before:
                return True
            self._writers.ensure()
            return False

        wait_until(
            has_progress,
            _PATIENCE_S,
            lambda: f"nothing after transaction {before}: {self._writers.log()[-4000:]}",
            pause_s=_PAUSE_S,
        )

    def _number(self) -> int:
        return int(self._server.rows("SELECT number FROM writers")[0][0])

    def _stop_writers(self) -> list[int]:
        """Between two transactions; their exit statuses. One that another has replaced meanwhile ends with an error."""
        stopped = self._writers.release()
        for writer in stopped:
            writer.send_signal(signal.SIGTERM)
        return [writer.wait(_PATIENCE_S) for writer in stopped]

    # --- the verdict --------------------------------------------------------------------------------------------

    def check(self) -> None:
        report = self.report
        torn: dict[int, None] = {}
        for reader in self._readers:
            report.compared += reader.compared
            report.differing += reader.differing
            report.ahead += reader.ahead
            report.wait_s_max = round(max(report.wait_s_max, reader.wait_s_max), 1)
            report.wrong += reader.anomalies
            torn |= reader.torn
        in_topic = self._in_topic()
        in_database = Counter(
            (transfer, number, -delta)
            for transfer, number, delta in self._server.rows("SELECT transfer, number, delta FROM entries")
        )
        report.transactions, report.transfers = self._number(), sum(in_database.values())
        if not (in_topic and in_database):
            # Not among what is wrong, which a campaign in another mode must find.
            raise AssertionError("topic or database has nothing: nothing is shown")
        for where, surplus in (("topic", in_topic - in_database), ("database", in_database - in_topic)):
            for (transfer, number, _delta), count in surplus.items():
                report.wrong.append(f"the {where} alone has {transfer} of transaction {number}, {count} times")
                torn[number] = None
        report.wrong += [f"{each} is there {count} times" for each, count in in_topic.items() if count > 1]
        report.torn = dict(Counter(self._fault_before(number) for number in torn))
        with Admin({"bootstrap.servers": self._broker.bootstrap}) as admin:
            state = admin.describe_transactions([NAME])[NAME].state
        if state not in ("CompleteCommit", "CompleteAbort"):
            report.wrong.append(f"the last transaction is left in {state}")

    def _in_topic(self) -> Counter[tuple[str, int, int]]:
        """(transfer, number, delta) of each committed event."""
        found: Counter[tuple[str, int, int]] = Counter()
        settings = {"bootstrap.servers": self._broker.bootstrap, "isolation.level": "read_committed"}
        with Consumer({**settings, "auto.offset.reset": "earliest", "enable.auto.commit": "false"}) as consumer:
            consumer.assign(PARTITION_KEYS)
            ends = consumer.end_offsets(*PARTITION_KEYS)
            while any(consumer.position(key) < end for key, end in ends.items()):
                for record in consumer.poll(200):
                    event = Event.decode(record.value)
                    found[event.transfer, event.number, event.delta] += 1
        return found

    def _fault_before(self, number: int) -> str:
        """The fault that tore this transaction: the database had it, or was about to have it, and not yet the one that
        was seen after the fault."""
        last = number - 1 if self.report.mode == TOPIC_FIRST else number
        place = bisect_right([seen for seen, _ in self._faults_seen], last)
        return self._faults_seen[place][1] if place < len(self._faults_seen) else "none"


def main() -> int:
    options = with_keep(parser(__doc__, kills=300))
    options.add_argument("--mode", choices=MODES, default=TWO_PHASE)
    asked = options.parse_args()
    return not run_in_folder(
        f"bank-{asked.mode}",
        asked,
        lambda folder: BankCampaign(folder, asked.seed, asked.mode).run(asked.kills),
        is_good=lambda report: bool(report.wrong) == (asked.mode != TWO_PHASE),
    )


if __name__ == "__main__":
    sys.exit(main())
