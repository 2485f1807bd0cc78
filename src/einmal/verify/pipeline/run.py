"""A user's pipeline in a run: kill -9 and restarts by the seed, and a comparison once its output is quiet."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final, Protocol

from einmal.chaos.command import RestartedCommand
from einmal.checker.history import Anomaly, History
from einmal.client.aio import Consumer
from einmal.client.errors import KafkaError
from einmal.client.records import ConsumerRecord
from einmal.security.redaction import redacted_command
from einmal.types import TopicPartition
from einmal.verify.pipeline.comparison import MissingOutput, Output, OutputComparison
from einmal.verify.pipeline.input import PARTITIONS, PipelineInput
from einmal.verify.pipeline.mapping import (
    NULL,
    InputRecord,
    InputRecords,
    MappingWrong,
    OutputMapping,
    OutputRecord,
    Projection,
    canonical,
)
from einmal.verify.pipeline.table_input import TableFailed, TableInput
from einmal.workloads.endings import close_quietly
from einmal.workloads.recorder import Recorder, text_of

BOOTSTRAP: Final = "BOOTSTRAP_SERVERS"
DATABASE: Final = "INPUT_DATABASE"
TABLE: Final = "INPUT_TABLE"
OUTPUT_BOOTSTRAP: Final = "OUTPUT_BOOTSTRAP_SERVERS"
INPUT: Final = "INPUT_TOPIC"
OUTPUT: Final = "OUTPUT_TOPIC"
QUIET_S: Final = 75.0
"""Longer than the default session of a group, and than the default timeout of a transaction."""
_SETTLED_S: Final = 3.0
_ERRORS_MAX: Final = 100
_DOWN_S: Final = (0.0, 1.0)
_LOOK_S: Final = 0.2
_RESTART_S: Final = 0.5
_READER: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineOptions:
    """``quiet_s``: how long nothing new must have come until what is missing is lost. ``log``: of the command."""

    command: str
    input: str
    output: str
    mapping: OutputMapping
    log: Path
    quiet_s: float = QUIET_S
    output_config: Mapping[str, Any] | None = None
    """Settings of clients at the cluster that has the output; None: the input's."""
    database: str | None = None
    """URL of the PostgreSQL database that ``input`` is a table of; None: it is a topic."""
    projection: Projection | None = None
    """Makes of an output record the values that are compared; None: its value."""


class PipelineSource(Protocol):
    """Input of a pipeline. ``locate``: where a record of it is, in words."""

    async def make(self) -> None: ...

    async def write(self) -> None: ...

    def stop(self) -> None: ...

    async def records(self) -> InputRecords: ...

    def locate(self, record: InputRecord) -> str: ...

    def without_secrets(self, text: str) -> str:
        """The command's words without those that only it may know."""

    async def remove(self) -> list[str]:
        """Return whatever could not be removed."""


class PipelineRun:
    """``config``: of our own clients at the input. ``bootstrap_servers``: which the command gets."""

    name = "pipeline"
    mistake = ""
    groups: tuple[str, ...] = ()
    calm_s: ClassVar = (0.2, 4.0)

    def __init__(
        self, options: PipelineOptions, config: Mapping[str, Any], bootstrap_servers: str, chance: random.Random
    ) -> None:
        self._options = options
        self._config = dict(config if options.output_config is None else options.output_config)
        environment = {
            BOOTSTRAP: bootstrap_servers,
            OUTPUT_BOOTSTRAP: bootstrap_servers
            if options.output_config is None
            else str(options.output_config["bootstrap.servers"]),
            INPUT: options.input,
            OUTPUT: options.output,
        }
        if options.database is not None:
            environment |= {DATABASE: options.database, TABLE: options.input}
        self._command = RestartedCommand(["/bin/sh", "-c", options.command], environment, options.log)
        (command,) = redacted_command([options.command])
        counted = "" if options.projection is None else f"; --output-sql: {options.projection.text}"
        self.client = f"pipeline: {command} (mapping: {options.mapping.text}{counted})"
        outputs = {options.output: PARTITIONS}
        inputs = {options.input: PARTITIONS} if options.database is None else {}
        self.topics = inputs | (outputs if options.output_config is None else {})
        self.output_topics = {} if options.output_config is None else outputs
        """In the cluster of the output, where that is another one."""
        self.recorder = Recorder()
        self._input: PipelineSource
        if options.database is None:
            self._input = PipelineInput(config, options.input, f"{options.input}-writer", chance, self.recorder)
        else:
            self._input = TableInput(
                options.database, options.input, chance, self.recorder, lambda: bool(self._outputs)
            )
        self.gaps: list[str] = []
        self.errors: Counter[str] = Counter()
        self._outputs: list[tuple[TopicPartition, OutputRecord]] = []
        self._counted: list[Output] = []
        """Values of the first outputs, as far as they were asked for."""
        self._counted_until = 0
        self._counted_at = 0.0
        """When an output came that counts."""
        self._positions: dict[TopicPartition, int] = {}
        """Positions of the reader of the output."""
        self._kills = 0
        self._is_read_to_the_end = False
        self._anomalies: list[Anomaly] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._is_wanted = True

    async def make(self) -> None:
        """Make the input, unless it is a topic. Raises TableFailed."""
        await self._input.make()

    async def remove(self) -> list[str]:
        """Return whatever could not be removed."""
        return await self._input.remove()

    def start(self) -> None:
        self._tasks = [
            asyncio.create_task(coroutine) for coroutine in (self._input.write(), self._read(), self._supervise())
        ]

    async def inject(self, chance: random.Random, note: Callable[[str], None]) -> None:
        """Kill the pipeline, and let it be started again."""
        if not self._command.is_running:
            # It has ended by itself: that is no kill.
            return
        note("kill -9 of the pipeline")
        self._is_wanted = False
        self._command.kill()
        self._kills += 1
        try:
            await asyncio.sleep(chance.uniform(*_DOWN_S))
        finally:
            self._is_wanted = True
        note("the pipeline is started again")

    async def calm(self) -> None:
        """Nothing lasts longer than ``inject``."""

    async def stop(self) -> None:
        """Write no more input. The pipeline keeps running."""
        self._input.stop()
        await asyncio.wait(self._tasks[:1])

    async def cancel(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._command.kill()

    async def finish(self) -> None:
        """Wait until the output is complete, or quiet; what prevents a comparison becomes a gap."""
        try:
            # Ended by an error, it may have left a transaction open.
            self._tasks[0].result()
            comparison = OutputComparison(self._input.locate, await self._input.records(), self._mapping)
            if not comparison.wants_output:
                self.gaps.append("pipeline: nothing was written that it had to make output of; give it a longer --time")
            if not self._kills:
                self.gaps.append("pipeline: it was never killed, no output came in time; give it a longer --time")
            unread = await self._settle(comparison.missing())
            outputs = self._output_values()
        except (KafkaError, MappingWrong, TableFailed, TimeoutError) as error:
            self.gaps.append(f"pipeline: its output could not be compared: {error}")
            return
        if not self._outputs:
            error_text = self.errors.most_common(1)[0][0] if self.errors else "it runs"
            self.gaps.append(f"pipeline: it wrote nothing to {self._options.output}; {error_text}")
        else:
            if unread:
                self.gaps.append(f"pipeline: its output could not be read to its end, {unread}")
            self._is_read_to_the_end = not unread
            self._anomalies = list(comparison.anomalies(outputs, is_complete=not unread))

    @property
    def acknowledged(self) -> int:
        """Output records: the progress of the pipeline."""
        return len(self._outputs)

    @property
    def history(self) -> History:
        return self.recorder.history(is_read_to_the_end=self._is_read_to_the_end)

    def anomalies(self) -> list[Anomaly]:
        return self._anomalies

    async def _settle(self, missing: MissingOutput) -> str:
        """Wait until nothing is missing and nothing more comes; or until what is missing has not become less, or the
        output has not settled, for ``quiet_s``. Return why the output is not read to its end; empty: it is. Raises
        KafkaError, MappingWrong."""
        loop = asyncio.get_running_loop()
        self._counted_at = since = loop.time()
        known = 0
        while True:
            before, outputs = missing.count, self._output_values()
            missing.came(outputs[known:])
            known = len(outputs)
            now = loop.time()
            if missing.count < before:
                since = now
            if now - since > self._options.quiet_s:
                return await self._unread()
            if not missing.count and now - self._counted_at > _SETTLED_S:
                if not await self._unread():
                    return ""
                self._counted_at = now
            await asyncio.sleep(_LOOK_S)

    async def _unread(self) -> str:
        """Partitions of the output that an open transaction holds back, or whose end the reader has not reached."""
        committed, ends = await self._ends("read_committed"), await self._ends("read_uncommitted")
        held_back = [key for key in self._output_keys if committed[key] < ends[key]]
        if held_back:
            return f"an open transaction holds back {', '.join(map(str, held_back))}"
        behind = [key for key in self._output_keys if self._positions.get(key, 0) < committed[key]]
        return f"the reader is behind in {', '.join(map(str, behind))}" if behind else ""

    @property
    def _mapping(self) -> OutputMapping:
        mapping = self._options.mapping
        return mapping if self._options.projection is None else mapping._replace(canonical=canonical)

    def _output_values(self) -> list[Output]:
        """Values of the output so far. Raises MappingWrong."""
        new = self._outputs[self._counted_until :]
        if not new:
            return self._counted
        self._counted_until += len(new)
        project = self._options.projection
        records = [record for _, record in new]
        counted = (
            [[NULL if record.value is None else record.value] for record in records]
            if project is None
            else project.values(records)
        )
        values = [
            (key, record.offset, value) for (key, record), values in zip(new, counted, strict=True) for value in values
        ]
        if values:
            self._counted_at = asyncio.get_running_loop().time()
        self._counted += values
        return self._counted

    # --- output -------------------------------------------------------------------------------------------------------

    async def _read(self) -> None:
        consumer = Consumer(self._config, isolation_level="read_committed", enable_auto_commit=False)
        try:
            consumer.assign(self._output_keys)
            for key in self._output_keys:
                consumer.seek(key, 0)
            while True:
                try:
                    records = await consumer.poll(timeout_ms=500)
                except KafkaError as error:
                    self._count_error(f"reader: {error}")
                    await asyncio.sleep(_LOOK_S)
                    continue
                if records:
                    self._seen(records)
                self._positions = {key: await consumer.position(key) for key in self._output_keys}
        finally:
            await close_quietly(consumer)

    def _seen(self, records: list[ConsumerRecord]) -> None:
        self.recorder.polled(_READER, records, read_committed=True)
        self._outputs += [(record.topic_partition, _as_text(record)) for record in records]

    @property
    def _output_keys(self) -> list[TopicPartition]:
        return [TopicPartition(self._options.output, partition) for partition in range(PARTITIONS)]

    async def _ends(self, isolation: str) -> dict[TopicPartition, int]:
        async with Consumer(self._config, isolation_level=isolation, enable_auto_commit=False) as consumer:
            return await consumer.end_offsets(*self._output_keys)

    def _count_error(self, text: str) -> None:
        """Each may have a time, or another number, of its own."""
        is_new = len(self.errors) < _ERRORS_MAX or text in self.errors
        self.errors[text if is_new else "other errors"] += 1

    # --- the command --------------------------------------------------------------------------------------------------

    async def _supervise(self) -> None:
        while True:
            status = self._command.ended()
            if status is not None:
                tail = self._input.without_secrets(self._command.tail())
                self._count_error(f"the command ended with status {status}: {tail}")
                await asyncio.sleep(_RESTART_S)
            if self._is_wanted and not self._command.is_running:
                self._command.start()
            await asyncio.sleep(_LOOK_S)


def _as_text(record: ConsumerRecord) -> OutputRecord:
    key, value = record.key, record.value
    return OutputRecord(
        record.partition,
        record.offset,
        None if key is None else text_of(key),
        None if value is None else text_of(value),
    )
