"""A run: workloads, replaced processes and faults for a time; then calm, a last reader, the verdict, a clean cluster.

Nothing but its own clients and their connections is disturbed on a cluster that exists. Everything that the run makes
has its prefix.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from einmal.checker.history import OpOutcome
from einmal.verify.clients.processes import library
from einmal.verify.evidence import Evidence, NotedFault, WorkloadEvidence
from einmal.verify.faults import OwnCluster
from einmal.verify.network import ConnectionFaults
from einmal.verify.scratch import Scratch
from einmal.verify.verdict import decide
from einmal.verify.workload_run import WorkloadRun
from einmal.workloads.bank import Bank
from einmal.workloads.controls import CONTROLS
from einmal.workloads.ledger import Ledger

PREFIX: Final = "einmal-verify-"
WORKLOADS: Final[Mapping[str, type[Bank] | type[Ledger]]] = {"appends": Ledger, "bank": Bank}
_SESSION_MS: Final = 6_000
"""Kafka's default of group.min.session.timeout.ms."""
_LOOK_S: Final = 0.2
_PROGRESS_S: Final = 5.0
_REPLACE_S: Final = (4.0, 9.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyOptions:
    """``control``: a name of ``CONTROLS``, instead of ``workloads``. ``config``: of the clients' connections."""

    client: str
    workloads: Sequence[str]
    control: str | None
    seconds: float
    seed: int
    config: Mapping[str, Any]


@dataclass(slots=True)
class VerifyRun:
    """``name``: unique, part of everything that the run makes. ``say``: prints a line of progress.

    ``cluster``: whose brokers are disturbed. ``network``: the clients' connections, if they are.
    """

    options: VerifyOptions
    name: str
    cluster: OwnCluster | None
    network: ConnectionFaults | None
    say: Callable[[str], None]
    faults: list[NotedFault] = field(default_factory=list)
    _began: float = 0.0

    async def run(self) -> tuple[Evidence, list[str]]:
        """Return the evidence, and what could not be removed. Raises KafkaError, ClientMissing, BrokerFailed."""
        runs = self._workloads()
        topics = {topic: count for run in runs for topic, count in run.workload.topics.items()}
        groups = [group for run in runs for group in run.workload.groups]
        scratch = Scratch(self.options.config, topics, groups)
        facts = await scratch.cluster()
        left: list[str] = []
        try:
            await scratch.make()
            durability = await scratch.durability()
            self._began = asyncio.get_running_loop().time()
            await self._disturbed(runs)
            await self._calm(runs)
        finally:
            for run in runs:
                await run.cancel()
            left = await self._remove(scratch)
        return self._evidence(runs, facts, durability), left

    def _workloads(self) -> list[WorkloadRun]:
        options = self.options
        clients = library(options.client, options.config if self.network is None else self.network.config)
        kinds = {options.control: CONTROLS[options.control]} if options.control else WORKLOADS
        names = [options.control] if options.control else options.workloads
        prefix = f"{PREFIX}{self.name}-"
        return [
            WorkloadRun(
                name,
                kind(prefix, _SESSION_MS) if issubclass(kind, Bank) else kind(prefix),
                clients,
                str(options.seed),
            )
            for name, kind in ((name, kinds[name]) for name in names)
        ]

    async def _disturbed(self, runs: Sequence[WorkloadRun]) -> None:
        for run in runs:
            run.start()
        disturbing = [self._replace(runs), self._report(runs)]
        for name, source in (("faults", self.cluster), ("network", self.network)):
            if source is not None:
                chance = random.Random(f"{self.options.seed}/{name}")
                disturbing.append(source.disturb(chance, self._note, partial(_progress, runs)))
        tasks = [asyncio.ensure_future(each) for each in disturbing]
        try:
            # A fault that fails ends the run.
            done, _ = await asyncio.wait(tasks, timeout=self.options.seconds, return_when=asyncio.FIRST_EXCEPTION)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _calm(self, runs: Sequence[WorkloadRun]) -> None:
        self._note("calm")
        for source in (self.cluster, self.network):
            if source is not None:
                await source.calm()
        for run in runs:
            await run.stop()
        self.say("calm: reading everything to its end")
        await asyncio.gather(*(run.finish() for run in runs))

    async def _replace(self, runs: Sequence[WorkloadRun]) -> None:
        chance = random.Random(f"{self.options.seed}/replaced")
        while True:
            await asyncio.sleep(chance.uniform(*_REPLACE_S))
            run = chance.choice(runs)
            self._note(f"second {run.replace(chance)} of {run.name}")

    async def _report(self, runs: Sequence[WorkloadRun]) -> None:
        while True:
            await asyncio.sleep(_PROGRESS_S)
            counts = [f"{run.name} {run.acknowledged} acknowledged" for run in runs]
            self.say(f"{self._now():.0f} of {self.options.seconds:.0f} s: {', '.join(counts)}")

    def _note(self, text: str) -> None:
        self.faults.append(NotedFault(round(self._now(), 3), text))
        self.say(f"{self._now():.0f} s: {text}")

    def _now(self) -> float:
        return asyncio.get_running_loop().time() - self._began

    async def _remove(self, scratch: Scratch) -> list[str]:
        self.say("removing topics and groups")
        try:
            return await scratch.remove()
        except Exception as error:  # noqa: BLE001 - the run's own error, or its verdict, matters more
            return [f"everything named {PREFIX}{self.name}-*: {error}"]

    def _evidence(
        self, runs: Sequence[WorkloadRun], facts: Mapping[str, str], durability: Mapping[str, str]
    ) -> Evidence:
        parts = []
        for run in runs:
            history = run.history
            counts = {outcome: run.workload.recorder.count(outcome) for outcome in OpOutcome}
            parts.append(
                WorkloadEvidence(
                    name=run.name,
                    mistake=run.workload.mistake,
                    acknowledged=counts[OpOutcome.OK],
                    failed=counts[OpOutcome.FAIL],
                    unknown=counts[OpOutcome.INFO],
                    read=sum(len(poll.records) for op in history.ops for poll in op.polls),
                    anomalies=tuple(run.anomalies()),
                    history=history,
                    client_errors=dict(run.errors),
                )
            )
        gaps = [gap for run in runs for gap in run.gaps]
        verdict, sentence = decide([anomaly for part in parts for anomaly in part.anomalies], gaps)
        return Evidence(
            verdict=verdict,
            sentence=sentence,
            workloads=tuple(parts),
            faults=tuple(self.faults),
            client=f"{self.options.client} {runs[0].library.version}",
            control=self.options.control,
            seed=self.options.seed,
            seconds=self.options.seconds,
            began=self._began,
            cluster=dict(facts),
            durability=dict(durability),
            has_broker_faults=self.cluster is not None,
            has_network_faults=self.network is not None,
        )


async def _progress(runs: Sequence[WorkloadRun]) -> None:
    """Wait until every workload has acknowledged more than now."""
    before = [run.acknowledged for run in runs]
    while any(run.acknowledged <= count for run, count in zip(runs, before, strict=True)):  # noqa: ASYNC110
        await asyncio.sleep(_LOOK_S)
