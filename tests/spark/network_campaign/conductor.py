"""Leads the campaign: cuts executors off from their driver, lets them write meanwhile, and computes the verdict.

``python -m tests.spark.network_campaign`` is its entry point. Driver and master are one machine, each worker another,
each in a network namespace of its own; the broker is on this machine. While a cut lasts, a task that is cut off may
write to the broker, and Spark, which has lost its executor, gives its work to another one.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import product
from pathlib import Path
from typing import Any, Final, NamedTuple

from einmal.chaos.campaign import Campaign
from einmal.chaos.processes import session_of
from einmal.chaos.report import CampaignReport, differences
from einmal.chaos.reporting import ProcessEnded
from einmal.chaos.waiting import holds_within
from einmal.local.namespaces import MACHINE, Namespaces
from einmal.local.ports import free_ports
from tests.campaigns.spark_driver import READY_S, REPOSITORY, SparkDriver, java_options, spark_config
from tests.interop.einmal_broker import EinmalBroker
from tests.spark.campaign import verdict
from tests.spark.campaign.outcome import Feeder, input_ends, positions, read_outputs
from tests.spark.campaign.pipelines import Place, output_topic
from tests.spark.network_campaign.driver import FORMAT, STREAM
from tests.spark.standalone import Machine, StandaloneCluster, executor_id, executors_of
from tests.spark.topics import create, records

DRIVER: Final = 1
WORKERS: Final = {"worker-0": 2, "worker-1": 3}
"""Nodes, each with one executor."""
NAMES: Final = (STREAM, FORMAT)
INPUT: Final = "copy-in"
SLOTS: Final = 3
"""Of an executor."""
BOTH: Final = "both ways"
FROM_DRIVER: Final = "from the driver"
FROM_EXECUTOR: Final = "from the executor"
CLAIMED: Final = "claimed"
ACKNOWLEDGED: Final = "acknowledged"
ANY_TIME: Final = "any time"

_NETWORK_TIMEOUT_S: Final = 12
"""Spark's default is two minutes."""
_MOMENT_S: Final = 30.0
_ANY_TIME_S: Final = 1.5
_LOST_S: Final = 180.0
_AFTER_S: Final = 10.0
"""At most: how long a cut lasts after Spark has lost the executors."""
_PROGRESS_S: Final = 300.0
"""A claim of a task that is cut off is waited for, for two minutes."""
_JOINED_S: Final = 180.0
_HOOKS: Final = REPOSITORY / "tests" / "spark" / "programs" / "hold_claims"
_POLL_S: Final = 0.05


class Cut(NamedTuple):
    """``with_broker``: executors lose the broker, too. ``late``: tasks that are cut off write when Spark has lost their
    executor, and not before. ``outlasts``: the cut lasts until the queries have committed more without it."""

    direction: str
    with_broker: bool
    moment: str
    late: bool
    everybody: bool
    outlasts: bool

    def __str__(self) -> str:
        what = f"{self.direction}, {'also from the broker' if self.with_broker else 'not from the broker'}"
        return f"{what}, tasks {self.moment}, {'both executors' if self.everybody else 'one executor'}"


class NetworkDriver(SparkDriver):
    def __init__(self, directory: Path, settings: dict[str, Any], env: dict[str, str], inside: Sequence[str]) -> None:
        self.commits: Counter[str] = Counter()
        self.ends: list[str] = []
        self.refused: list[str] = []
        self.restarts: list[str] = []
        self.executors: frozenset[str] = frozenset()
        """By their ids, those that Spark gives tasks."""
        self.is_finished = False
        super().__init__(directory, "tests.spark.network_campaign.driver", settings, env, inside=inside)

    def hear(self, message: dict[str, Any]) -> None:
        if "ready" in message:
            self.jvm = message["ready"]
        elif "executors" in message:
            self.executors = frozenset(message["executors"])
        elif "committed" in message:
            self.commits[message["committed"]] += 1
        elif "ended" in message:
            (self.refused if message["refused"] else self.ends).append(f"{message['ended']}: {message['why']}")
        elif "restarted" in message:
            self.restarts.append(f"{message['restarted']}: {message['why']}")
        elif "finished" in message:
            self.is_finished = True


@dataclass(kw_only=True)
class NetworkReport(CampaignReport):
    seed: int
    held: int = 0
    """Tasks that were cut off while they were held."""
    zombies: int = 0
    """Those whose records the broker acknowledged after Spark had lost their executor."""
    lost_s: list[float] = field(default_factory=list)
    """From a cut until Spark had lost the executors."""
    continued: int = 0
    """Cuts during which both queries committed on."""
    waits: list[float] = field(default_factory=list)
    """From the end of a cut, or its beginning where it was outlasted, until both queries had committed on."""
    missed: Counter[str] = field(default_factory=Counter)
    ends: list[str] = field(default_factory=list)
    restarts: list[str] = field(default_factory=list)
    rejoined: int = 0
    """Workers that had to be started again."""
    count: int = 0
    """Numbers in the input, without the closing one."""
    committed: Counter[str] = field(default_factory=Counter)
    aborted: Counter[str] = field(default_factory=Counter)
    """Records in the output of aborted transactions, which only read_uncommitted readers see."""
    batches: Counter[str] = field(default_factory=Counter)

    def __str__(self) -> str:
        waits, lost = sorted(self.waits) or [0.0], sorted(self.lost_s) or [0.0]
        lines = ["", *(f"{count:>4} x {name}" for name, count in sorted(self.kills.items()))]
        lines.append(f"lost after       median {lost[len(lost) // 2]:.1f} s, longest {lost[-1]:.1f} s")
        lines.append(f"continues after  median {waits[len(waits) // 2]:.1f} s, longest {waits[-1]:.1f} s")
        lines.append(f"outlasted        {self.continued} cuts; {self.rejoined} workers started again")
        lines.append(f"cut off          {self.held} writing tasks; {self.zombies} wrote when Spark had lost them")
        lines.append(f"did not come     {dict(self.missed) or 'none'}")
        for kind, texts in (("ended, again", self.ends), ("restarted", self.restarts)):
            causes = Counter(text.partition("\n")[0][:200] for text in texts)
            lines += [f"{kind:<16} {count} x {why}" for why, count in causes.most_common(10)]
        for name in NAMES:
            figures = f"{self.committed[name]} committed, {self.aborted[name]} aborted, {self.batches[name]} batches"
            lines.append(f"{name:<16} {self.count} numbers read; records: {figures}")
        lines += [f"WRONG            {each}" for each in self.wrong]
        found = f"{len(self.wrong)} wrong" if self.wrong else "0 lost, 0 doubled, positions = outputs"
        lines.append(f"verdict          {self.kills.total()} cuts in {self.seconds:.0f} s, seed {self.seed}: {found}")
        return "\n".join(lines)


class NetworkCampaign(Campaign[NetworkReport]):
    """``network``: of three nodes."""

    def __init__(self, network: Namespaces, directory: Path, *, seed: int) -> None:
        super().__init__(NetworkReport(seed=seed), seed)
        self._network = network
        self._directory = directory
        self._holds = directory / "holds"
        self._holds.mkdir()
        self._number = 0
        """Of the last hold."""
        self._stack = contextlib.ExitStack()
        self._feeder: Feeder | None = None

    def start(self) -> None:
        host = self._network.host(MACHINE)
        (port,) = free_ports([(host, 0)])
        broker = EinmalBroker(self._directory / "broker", {"listeners": f"PLAINTEXT://{host}:{port}"})
        broker.start()
        self._stack.callback(broker.stop)
        self._place = Place(broker.bootstrap, str(self._directory / "checkpoints"))
        create(broker.bootstrap, INPUT, *map(output_topic, NAMES))
        machines = {name: self._machine(node) for name, node in {"master": DRIVER, **WORKERS}.items()}
        options = (
            f"-Dspark.worker.timeout={_NETWORK_TIMEOUT_S} "
            # Else the master forgets a worker after 16 time-outs, and ends the application after ten executors that
            # found no driver.
            "-Dspark.dead.worker.persistence=1000 -Dspark.deploy.maxExecutorRetries=-1"
        )
        self._spark = self._stack.enter_context(
            StandaloneCluster(self._directory / "spark", cores=SLOTS, machines=machines, options=options)
        )
        self._feeder = Feeder(broker.bootstrap, (INPUT,))
        self._stack.callback(self._feeder.close)
        self._driver = self._launch()
        self._stack.callback(self._driver.sweep)
        self._driver.wait_until_ready()
        self._driver.order(begin=True)
        self._await_commits(Counter())

    def disturb(self, kills: int) -> None:
        """Until something is wrong: then the rest shows nothing."""
        for cut in self._cuts():
            if self.report.kills.total() == kills or self.report.wrong:
                return
            try:
                self._strike(cut)
            except ProcessEnded as error:
                self.report.wrong.append(f"the driver ended by itself: {error}")

    def finish(self) -> None:
        assert self._feeder is not None
        if self.report.wrong:
            return
        self.report.count = self._feeder.finish()
        self._ends = input_ends(self._place.bootstrap, (INPUT,))
        wanted = {INPUT: self._ends[INPUT]}

        def is_through() -> bool:
            found = positions(self._place, NAMES)
            return all(each["commit record"] == wanted for each in found.values())

        holds_within(_PROGRESS_S, is_through, pause_s=0.5)
        self._driver.order(stop=True)
        self._driver.wait_for(lambda: self._driver.is_finished, READY_S)

    def check(self) -> None:
        report, driver = self.report, self._driver
        report.ends += driver.ends
        report.restarts += driver.restarts
        report.batches += driver.commits
        report.wrong += driver.refused[:3]
        # Of the two, only Spark's own writer may end with Spark's error.
        report.wrong += [end for end in driver.ends if end.startswith(f"{STREAM}:")][:3]
        if report.wrong:
            return
        bootstrap = self._place.bootstrap
        numbers = [int(value) for _, value in read_outputs(bootstrap, INPUT)]
        report.wrong += verdict.wrong_with_input(INPUT, numbers, report.count)
        for name in NAMES:
            topic = output_topic(name)
            outputs = read_outputs(bootstrap, topic)
            # By the numbers alone, too, which needs to know nothing of the query.
            report.wrong += differences(topic, (int(value.partition(":")[0]) for _, value in outputs), numbers)
            report.wrong += verdict.wrong_with_output("copy", outputs, report.count)
            report.committed[name] = len(outputs)
            report.aborted[name] = len(records(bootstrap, topic, committed=False)) - len(outputs)
        found = positions(self._place, NAMES)
        report.wrong += verdict.wrong_with_positions(found, self._ends, dict.fromkeys(NAMES, (INPUT,)))

    def close(self) -> None:
        self._let_go(self._held())
        self._stack.close()

    # --- machines -----------------------------------------------------------------------------------------------------

    def _machine(self, node: int) -> Machine:
        return Machine(self._network.host(node), self._network.command(node))

    def _launch(self) -> NetworkDriver:
        directory = self._directory / "driver"
        host, inside = self._machine(DRIVER)
        hooked = os.pathsep.join(map(str, (_HOOKS, REPOSITORY / "src", REPOSITORY)))
        config = spark_config(directory, self._spark, executor_cores=SLOTS) | {
            "spark.driver.host": host,
            "spark.driver.extraJavaOptions": java_options(),
            "spark.scheduler.mode": "FAIR",
            "spark.network.timeout": f"{_NETWORK_TIMEOUT_S}s",
            "spark.network.timeoutInterval": "1s",
            "spark.executor.heartbeatInterval": "1s",
            "spark.executorEnv.PYTHONPATH": hooked,
            "spark.executorEnv.EINMAL_HOLD": str(self._holds),
        }
        settings = {"master": self._spark.master, "config": config, "place": asdict(self._place)}
        return NetworkDriver(directory, settings, {**os.environ, "SPARK_LOCAL_IP": host}, inside)

    # --- cuts ---------------------------------------------------------------------------------------------------------

    def _cuts(self) -> Iterator[Cut]:
        """Each direction, with and without the broker, equally often."""
        while True:
            kinds = list(product((BOTH, FROM_DRIVER, FROM_EXECUTOR), (False, True)))
            self.chance.shuffle(kinds)
            for direction, with_broker in kinds:
                (moment,) = self.chance.choices((CLAIMED, ACKNOWLEDGED, ANY_TIME), (3, 2, 1))
                everybody = self.chance.random() < 0.2
                late, outlasts = self.chance.random() < 0.75, not everybody and self.chance.random() < 0.5
                yield Cut(direction, with_broker, moment, late, everybody, outlasts)

    def _strike(self, cut: Cut) -> None:
        held = self._hold(cut.moment)
        executors = self._executors()
        nodes = sorted(WORKERS.values())
        if not cut.everybody:
            nodes = [self.chance.choice(sorted(set(held.values())) or nodes)]
        before, began = self._driver.commits.copy(), time.monotonic()
        self._cut(cut, nodes)
        cut_off = [pid for pid, node in held.items() if node in nodes]
        self.report.held += len(cut_off)
        (self._holds / "plan").unlink(missing_ok=True)
        self._let_go([pid for pid in self._held() if not cut.late or pid not in cut_off])
        lost = {executor for executor, node in executors.items() if node in nodes}
        if not self._driver.wait_for(lambda: not lost & self._driver.executors, _LOST_S):
            self.report.wrong.append(f"Spark has not lost {sorted(lost)}: {cut}")
        self.report.lost_s.append(time.monotonic() - began)
        self._let_go(self._held())
        if cut.outlasts:
            self._await_commits(before)
            self.report.continued += 1
        time.sleep(self.chance.uniform(0, _AFTER_S))
        lasted = time.monotonic() - began
        self._restore(nodes)
        if not cut.outlasts:
            began = time.monotonic()
            self._await_commits(before)
        self.report.waits.append(time.monotonic() - began)
        if cut.late:
            self.report.zombies += sum((self._holds / f"{pid}.wrote").exists() for pid in cut_off)
        what = f"{len(cut_off)} tasks held, {'late, ' if cut.late else ''}lasted {lasted:.1f} s"
        self.report.note(str(cut), f"{what}; continues after {self.report.waits[-1]:.1f} s")
        self._rejoin()

    def _cut(self, cut: Cut, nodes: Sequence[int]) -> None:
        for node in nodes:
            if cut.direction != FROM_DRIVER:
                self._network.cut(node, DRIVER)
            if cut.direction != FROM_EXECUTOR:
                self._network.cut(DRIVER, node)
            if cut.with_broker:
                self._network.cut(node, MACHINE)

    def _restore(self, nodes: Sequence[int]) -> None:
        for node in nodes:
            self._network.restore(node, DRIVER)
            self._network.restore(DRIVER, node)
            self._network.restore(node, MACHINE)

    def _rejoin(self) -> None:
        """Wait until Spark has an executor on each worker again."""

        def lacking() -> list[str]:
            return [name for name, node in WORKERS.items() if node not in self._executors().values()]

        if holds_within(_JOINED_S, lambda: not lacking(), pause_s=0.5):
            return
        for name in lacking():
            self._spark.restart_worker(name)
            self.report.rejoined += 1
        if not holds_within(_JOINED_S, lambda: not lacking(), pause_s=0.5):
            self.report.wrong.append(f"no executor on {lacking()}")

    def _executors(self) -> dict[str, int]:
        """The nodes of those that Spark gives tasks."""
        found = {}
        for name, node in WORKERS.items():
            for pid in executors_of(self._spark.pids[name]):
                with contextlib.suppress(OSError, ValueError):
                    found[executor_id(pid)] = node
        return {executor: node for executor, node in found.items() if executor in self._driver.executors}

    def _await_commits(self, before: Counter[str]) -> None:
        """Of both queries, beyond ``before``."""

        def waiting() -> list[str]:
            return [name for name in NAMES if self._driver.commits[name] <= before[name]]

        deadline = time.monotonic() + _PROGRESS_S
        while waiting() and time.monotonic() < deadline:
            self._driver.wait_for(lambda: not waiting(), 1.0)
            # A task that came to the moment while the plan was removed.
            self._let_go(self._held())
        if waiting():
            self.report.wrong.append(f"{waiting()} stand still: {[*self._driver.ends, *self._driver.restarts][-2:]}")

    # --- held tasks ---------------------------------------------------------------------------------------------------

    def _hold(self, moment: str) -> dict[int, int]:
        """By pid, the nodes of tasks that have come to the moment, and wait; none if it does not come."""
        if moment == ANY_TIME:
            time.sleep(self.chance.uniform(0, _ANY_TIME_S))
            return {}
        self._number += 1
        for path in self._holds.glob("*.wrote"):
            path.unlink()
        (self._holds / "plan").write_text(f"{moment}\n{self._number}")
        if not holds_within(_MOMENT_S, self._held, pause_s=_POLL_S):
            self.report.missed[moment] += 1
        sessions = {pid: node for name, node in WORKERS.items() for pid in session_of(self._spark.pids[name])}
        return {pid: sessions[pid] for pid in self._held() if pid in sessions}

    def _held(self) -> list[int]:
        return sorted(int(path.stem) for path in self._holds.glob("*.held"))

    def _let_go(self, pids: Sequence[int]) -> None:
        for pid in pids:
            (self._holds / f"{pid}.held").unlink(missing_ok=True)
