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
from einmal.verify.pipeline.comparison import Output, OutputComparison
from einmal.verify.pipeline.input import PARTITIONS, PipelineInput
from einmal.verify.pipeline.mapping import (
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
    """Makes of an output record the values that count; None: its value."""


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
        counted = "" if options.projection is None else f"; of the output counts: {options.projection.text}"
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
        self._output_at = 0.0
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
        note("kill -9 of the pipeline")
        self._is_wanted = False
        self._command.kill()
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
            self._output_at = asyncio.get_running_loop().time()
            while not self._is_quiet(comparison):  # noqa: ASYNC110
                await asyncio.sleep(_LOOK_S)
            held_back = await self._held_back()
        except (KafkaError, MappingWrong, TableFailed, TimeoutError) as error:
            self.gaps.append(f"pipeline: its output could not be compared: {error}")
            return
        if not self._outputs:
            error_text = self.errors.most_common(1)[0][0] if self.errors else "it runs"
            self.gaps.append(f"pipeline: it wrote nothing to {self._options.output}; {error_text}")
        else:
            outputs = self._output_values()
            if held_back and not comparison.is_met(outputs):
                self.gaps.append(f"pipeline: an open transaction holds back {held_back}")
            self._anomalies = list(comparison.anomalies(outputs, is_complete=not held_back))

    @property
    def acknowledged(self) -> int:
        """Output records: the progress of the pipeline."""
        return len(self._outputs)

    @property
    def history(self) -> History:
        return self.recorder.history(is_read_to_the_end=not self.gaps)

    def anomalies(self) -> list[Anomaly]:
        return self._anomalies

    def _is_quiet(self, comparison: OutputComparison) -> bool:
        quiet = asyncio.get_running_loop().time() - self._output_at
        return quiet > self._options.quiet_s or (quiet > _SETTLED_S and comparison.is_met(self._output_values()))

    @property
    def _mapping(self) -> OutputMapping:
        mapping = self._options.mapping
        return mapping if self._options.projection is None else mapping._replace(canonical=canonical)

    def _output_values(self) -> list[Output]:
        """Values of the output so far. Raises MappingWrong."""
        new = self._outputs[self._counted_until :]
        self._counted_until += len(new)
        project = self._options.projection
        records = [record for _, record in new]
        counted = [[record.value or ""] for record in records] if project is None else project.values(records)
        self._counted += [
            (key, record.offset, value) for (key, record), values in zip(new, counted, strict=True) for value in values
        ]
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
                    self.errors[f"reader: {error}"] += 1
                    await asyncio.sleep(_LOOK_S)
                    continue
                if records:
                    self._seen(records)
        finally:
            await close_quietly(consumer)

    def _seen(self, records: list[ConsumerRecord]) -> None:
        self.recorder.polled(_READER, records, read_committed=True)
        self._outputs += [(record.topic_partition, _as_text(record)) for record in records]
        self._output_at = asyncio.get_running_loop().time()

    @property
    def _output_keys(self) -> list[TopicPartition]:
        return [TopicPartition(self._options.output, partition) for partition in range(PARTITIONS)]

    async def _held_back(self) -> str:
        """The partitions whose last stable offset is behind their end."""
        ends = []
        for isolation in ("read_committed", "read_uncommitted"):
            async with Consumer(self._config, isolation_level=isolation, enable_auto_commit=False) as consumer:
                ends.append(await consumer.end_offsets(*self._output_keys))
        return ", ".join(str(key) for key in self._output_keys if ends[0][key] < ends[1][key])

    # --- the command --------------------------------------------------------------------------------------------------

    async def _supervise(self) -> None:
        while True:
            status = self._command.ended()
            if status is not None:
                tail = self._input.without_secrets(self._command.tail())
                self.errors[f"the command ended with status {status}: {tail}"] += 1
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
