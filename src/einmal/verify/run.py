"""A run: workloads, replaced processes and faults for a time; then calm, a last reader, the verdict, a clean cluster.

Nothing but its own clients and their connections is disturbed on a cluster that exists. Everything that the run makes
has its prefix.
"""

from __future__ import annotations

import asyncio
import gc
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from einmal.chaos.connection_faults import ConnectionFaults
from einmal.chaos.injector import FaultInjector, inject_faults
from einmal.chaos.own_cluster import OwnCluster
from einmal.checker.history import Anomaly, History
from einmal.verify.clients.processes import ClientLibrary, JavaLibrary, library
from einmal.verify.evidence import Evidence, NotedFault, WorkloadEvidence
from einmal.verify.pipeline.run import PipelineOptions, PipelineRun
from einmal.verify.scratch import Scratch
from einmal.verify.verdict import (
    DEFINITION,
    HOLDS,
    ORDERED_DEFINITION,
    PIPELINE_DEFINITION,
    PIPELINE_HOLDS,
    PROJECTED_DEFINITION,
    PROJECTED_HOLDS,
    decide,
)
from einmal.verify.workload_run import WorkloadRun
from einmal.workloads.bank import Bank
from einmal.workloads.bulk import Bulk
from einmal.workloads.controls import CONTROLS
from einmal.workloads.ledger import Ledger

PREFIX: Final = "einmal-verify-"
WORKLOADS: Final[Mapping[str, type[Bank] | type[Ledger]]] = {"appends": Ledger, "bank": Bank, "bulk": Bulk}
_SESSION_MS: Final = 6_000
"""Kafka's default of group.min.session.timeout.ms."""
_LOOK_S: Final = 0.2
_PROGRESS_S: Final = 5.0
_REPLACE_S: Final = (4.0, 9.0)


class TestedRun(Protocol):
    """A workload, or a user's pipeline. ``client``: in words. ``acknowledged``: grows with its progress."""

    gaps: list[str]
    errors: Counter[str]

    @property
    def name(self) -> str: ...

    @property
    def client(self) -> str: ...

    @property
    def mistake(self) -> str: ...

    @property
    def topics(self) -> Mapping[str, int]: ...

    @property
    def groups(self) -> tuple[str, ...]: ...

    @property
    def acknowledged(self) -> int: ...

    @property
    def history(self) -> History: ...

    def start(self) -> None: ...

    async def stop(self) -> None: ...

    async def cancel(self) -> None: ...

    async def finish(self) -> None: ...

    def anomalies(self) -> list[Anomaly]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyOptions:
    """``control``: a name of ``CONTROLS``, or a ``pipeline``, instead of ``workloads``.

    ``config``: of the clients' connections. ``java``: for the client of this name.
    """

    client: str
    java: JavaLibrary | None = None
    workloads: Sequence[str]
    control: str | None
    pipeline: PipelineOptions | None = None
    seconds: float
    seed: int
    config: Mapping[str, Any]
    software: str = ""
    """Name and version of the brokers, where the run has started them."""


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
    _injected: Counter[str] = field(default_factory=Counter)
    """Notes of faults, by their source."""
    _began: float = 0.0
    _waited: float = 0.0
    """How long for the first output of a pipeline."""

    async def run(self) -> tuple[Evidence, list[str]]:
        """Return the evidence, and what could not be removed. Raises KafkaError, ClientMissing, BrokerFailed."""
        options = self.options
        clients = library(options.client, options.config if self.network is None else self.network.config, options.java)
        try:
            return await self._run(clients)
        finally:
            clients.close()

    async def _run(self, clients: ClientLibrary) -> tuple[Evidence, list[str]]:
        workloads = self._workloads(clients)
        pipeline = self._pipeline()
        runs: list[TestedRun] = [*workloads] if pipeline is None else [pipeline]
        topics = {topic: count for run in runs for topic, count in run.topics.items()}
        groups = [group for run in runs for group in run.groups]
        scratch = Scratch(self.options.config, topics, groups)
        scratches = [scratch, *self._output_scratch(pipeline)]
        facts = await scratch.cluster()
        if self.options.software:
            facts = {"software": self.options.software, **facts}
        for one in scratches:
            await one.check()
        left: list[str] = []
        is_over = False
        try:
            for one in scratches:
                await one.make()
            if pipeline is not None:
                await pipeline.make()
            durability = await scratch.durability()
            for one in scratches[1:]:
                durability |= {f"{name} (output)": value for name, value in (await one.durability()).items()}
            self._began = asyncio.get_running_loop().time()
            await self._disturbed(runs, workloads, pipeline)
            await self._calm(runs)
            is_over = True
        finally:
            await asyncio.gather(*(run.cancel() for run in runs), return_exceptions=True)
            left = [name for one in scratches for name in await self._remove(one)]
            left += [] if pipeline is None else await pipeline.remove()
            for name in () if is_over else left:
                # Nobody gets the list any more.
                self.say(f"warning: not removed: {name}")
        with _collector_paused():
            return self._evidence(runs, facts, durability), left

    def _workloads(self, clients: ClientLibrary) -> list[WorkloadRun]:
        options = self.options
        kinds = {options.control: CONTROLS[options.control]} if options.control else WORKLOADS
        names = [options.control] if options.control else options.workloads if options.pipeline is None else []
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

    def _output_scratch(self, pipeline: PipelineRun | None) -> list[Scratch]:
        """The topics on a second cluster, which has a pipeline's output."""
        options = self.options.pipeline
        if pipeline is None or options is None or options.output_config is None:
            return []
        return [Scratch(options.output_config, pipeline.output_topics, ())]

    def _pipeline(self) -> PipelineRun | None:
        options = self.options
        if options.pipeline is None:
            return None
        config = options.config if self.network is None else self.network.config
        chance = random.Random(f"{options.seed}/input")
        return PipelineRun(options.pipeline, options.config, config["bootstrap.servers"], chance)

    async def _disturbed(
        self, runs: Sequence[TestedRun], workloads: Sequence[WorkloadRun], pipeline: PipelineRun | None
    ) -> None:
        for run in runs:
            run.start()
        disturbing = [self._report(runs)]
        if workloads:
            disturbing.append(self._replace(workloads))
        for name, source in (("brokers", self.cluster), ("network", self.network), ("pipeline", pipeline)):
            if source is not None:
                chance = random.Random(f"{self.options.seed}/{name}")
                disturbing.append(self._disturb(name, source, chance, runs))
        tasks = [asyncio.ensure_future(coroutine) for coroutine in disturbing]
        try:
            if pipeline is not None and self.options.pipeline is not None:
                await self._first_output(pipeline, self.options.pipeline.quiet_s, tasks)
            await _until_one_fails(tasks, self.options.seconds)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _first_output(self, pipeline: PipelineRun, seconds: float, tasks: Sequence[asyncio.Future[None]]) -> None:
        """The time begins with it, or after so many seconds without: a JVM may take half a minute to start."""
        latest = self._now() + seconds
        while not pipeline.acknowledged and self._now() < latest:
            await _until_one_fails(tasks, _LOOK_S)
            self._waited = self._now()

    async def _disturb(
        self, name: str, source: FaultInjector, chance: random.Random, runs: Sequence[TestedRun]
    ) -> None:
        """One fault after another until cancelled, each after progress and a calm."""

        def note(text: str) -> None:
            self._injected[name] += 1
            self._note(text, name)

        await inject_faults(source, chance, note, lambda: _progress(runs))

    async def _calm(self, runs: Sequence[TestedRun]) -> None:
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
            self._note(f"second {run.replace(chance)} of {run.name}", "clients")

    async def _report(self, runs: Sequence[TestedRun]) -> None:
        while True:
            await asyncio.sleep(_PROGRESS_S)
            counts = [f"{run.name} {run.acknowledged} acknowledged" for run in runs]
            passed = max(0.0, self._now() - self._waited)
            self.say(f"{passed:.0f} of {self.options.seconds:.0f} s: {', '.join(counts)}")

    def _note(self, text: str, of: str = "") -> None:
        self.faults.append(NotedFault(round(self._now(), 3), text, of))
        self.say(f"{self._now():.0f} s: {text}")

    def _now(self) -> float:
        return asyncio.get_running_loop().time() - self._began

    async def _remove(self, scratch: Scratch) -> list[str]:
        self.say("removing topics and groups")
        try:
            return await scratch.remove()
        except Exception as error:  # noqa: BLE001 - the run's own error, or its verdict, matters more
            return [f"everything named {PREFIX}{self.name}-*: {error}"]

    def _evidence(self, runs: Sequence[TestedRun], facts: Mapping[str, str], durability: Mapping[str, str]) -> Evidence:
        workloads = [
            WorkloadEvidence.of(run.name, run.history, run.anomalies(), mistake=run.mistake, client_errors=run.errors)
            for run in runs
        ]
        gaps = [gap for run in runs for gap in run.gaps]
        anomalies = [anomaly for workload in workloads for anomaly in workload.anomalies]
        definition, holds = self._claim()
        verdict, sentence = decide(anomalies, gaps, holds)
        return Evidence(
            verdict=verdict,
            sentence=sentence,
            definition=definition,
            workloads=tuple(workloads),
            faults=tuple(self.faults),
            client=runs[0].client,
            control=self.options.control,
            seed=self.options.seed,
            seconds=self.options.seconds,
            began=self._began,
            not_compared=self._not_compared(),
            cluster=dict(facts),
            durability=dict(durability),
            has_broker_faults=self.cluster is not None and self.cluster.failures > 0,
            has_network_faults=self._injected["network"] > 0,
            has_partitions=self.cluster is not None and self.cluster.partitions > 0,
            has_clock_steps=self.cluster is not None and self.cluster.clock_steps > 0,
        )

    def _claim(self) -> tuple[str, str]:
        """Return what is to hold, and the sentence where it does."""
        if self.options.pipeline is None:
            return DEFINITION, HOLDS
        is_projected = self.options.pipeline.projection is not None
        definition, holds = (
            (PROJECTED_DEFINITION, PROJECTED_HOLDS) if is_projected else (PIPELINE_DEFINITION, PIPELINE_HOLDS)
        )
        if self.options.pipeline.database is not None:
            definition = f"{definition} {ORDERED_DEFINITION}"
        return definition, holds

    def _not_compared(self) -> str:
        """Parts of a pipeline's output; empty: there is none."""
        options = self.options.pipeline
        if options is None:
            return ""
        parts = ["headers", "timestamps"]
        if options.projection is None:
            parts += ["keys", "partitions"]
        if options.database is None:
            parts.append("order")
        return f"{', '.join(parts)} of the output's records: what is compared are values"


@contextmanager
def _collector_paused() -> Iterator[None]:
    """Checks make millions of objects and no cycle of references: looking for one takes half of the index's time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


async def _until_one_fails(tasks: Sequence[asyncio.Future[None]], seconds: float) -> None:
    """Or for so many seconds; its failure ends the run."""
    done, _ = await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_EXCEPTION)
    for task in done:
        task.result()


async def _progress(runs: Sequence[TestedRun]) -> None:
    """Wait until every workload has acknowledged more than now."""
    before = [run.acknowledged for run in runs]
    while any(run.acknowledged <= count for run, count in zip(runs, before, strict=True)):  # noqa: ASYNC110
        await asyncio.sleep(_LOOK_S)
