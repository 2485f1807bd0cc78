"""The contenders of a pipeline's measurement: einmal's sink under two guarantees, the same exactly-once sink through
Spark's own writer, and Spark's own Kafka connector.

All of them run the same query (``workloads``) in one Spark session, on one broker and one input.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from einmal.bench.cases import Figure
from einmal.bench.load import BenchRefused
from einmal.bench.topics import BenchTopics
from einmal.bench.workloads import PipelineWorkload
from einmal.pipeline import events
from einmal.pipeline.errors import PipelineError
from einmal.spark import session, write_stream
from einmal.spark.errors import reason_of

EXACTLY_ONCE: Final = "exactly_once_v2"
AT_LEAST_ONCE: Final = "at_least_once"
FORMAT: Final = 'format("einmal")'
CONNECTOR: Final = "spark's kafka connector"
_ROUNDS: Final = 3
"""Measured rounds, after one that is not measured."""
_LONG_S: Final = 10.0
"""From this trigger on one round is enough."""


@dataclass(frozen=True, slots=True)
class BenchRun:
    """One run of one contender. ``trigger``: as Spark's."""

    workload: PipelineWorkload
    source: str
    sink: str
    checkpoint: str
    trigger: dict[str, Any]
    records_per_batch: int | None = None


class Contenders:
    """``jars``: of Spark's own connector; without them it does not take part. ``folder``: for checkpoints. ``master``:
    see ``PipelineCases``. Raises BenchRefused."""

    def __init__(self, bootstrap: str, jars: Sequence[str], folder: str, master: str | None) -> None:
        self.names = [EXACTLY_ONCE, AT_LEAST_ONCE, FORMAT, *([CONNECTOR] if jars else [])]
        self.bootstrap = bootstrap
        self._folder = folder
        self._runs = 0
        self._topics = BenchTopics(bootstrap)
        config = {"spark.jars": ",".join(jars)} if jars else None
        what = "Spark did not start" + (f" on {master}" if master else "")
        with failures_refused(what, hint="Spark's log on stderr may have more"):
            self._spark: SparkSession = session("einmal bench", master=master, config=config)
            self.is_local: bool = str(self._spark.sparkContext.master).startswith("local")

    def __enter__(self) -> Contenders:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # A JVM that has died cannot be stopped.
        with suppress(Exception):
            self._spark.stop()
        self._topics.__exit__(kind)

    def topic(self, name: str, workload: PipelineWorkload) -> str:
        """The whole name, which stands for all topics of the workload. Raises BenchRefused."""
        self._topics.create_all(workload.names(name), workload.partitions)
        return self._topics.prefix + name

    def new_source(self, name: str, workload: PipelineWorkload) -> str:
        """As ``topic``, under a name that no other run has."""
        return self.topic(f"{name}-{self._runs}", workload)

    def delete_output(self, run: BenchRun) -> None:
        """Raises BenchRefused."""
        self._topics.delete(run.workload.names(run.sink))

    def new_run(
        self, workload: PipelineWorkload, source: str, trigger: dict[str, Any], records_per_batch: int | None = None
    ) -> BenchRun:
        """With output topics and a checkpoint of its own. Raises BenchRefused."""
        self._runs += 1
        sink = self.topic(f"output-{self._runs}", workload)
        return BenchRun(workload, source, sink, f"{self._folder}/checkpoint-{self._runs}", trigger, records_per_batch)

    def start(self, contender: str, run: BenchRun, listener: Callable[[events.Event], None] | None = None) -> Any:
        """The query, running. ``listener``: of einmal's sink. See ``failures_refused`` for what it raises."""
        if contender == CONNECTOR:
            return self._started_by_spark("kafka", run)
        if contender == FORMAT:
            return self._started_by_spark("einmal", run, {"transactional.id": run.sink})
        writer = (
            write_stream(self._rows("einmal", run))
            .options(**self._sink(run))
            .option("transactional.id", run.sink)
            .option("processing.guarantee", contender)
            .outputMode(run.workload.output_mode)
            .trigger(**run.trigger)
        )
        return (writer if listener is None else writer.listener(listener)).start()

    def _started_by_spark(self, kind: str, run: BenchRun, options: Mapping[str, str] | None = None) -> Any:
        """``kind``: of source and sink."""
        return (
            self._rows(kind, run)
            .writeStream.format(kind)
            .options(**self._sink(run), **(options or {}))
            .outputMode(run.workload.output_mode)
            .trigger(**run.trigger)
            .start()
        )

    def _sink(self, run: BenchRun) -> dict[str, str]:
        options = {"kafka.bootstrap.servers": self.bootstrap, "checkpointLocation": run.checkpoint}
        options |= {f"kafka.{name}": value for name, value in run.workload.settings.items()}
        return options if run.workload.topics > 1 else options | {"topic": run.sink}

    def _rows(self, kind: str, run: BenchRun) -> DataFrame:
        reader = self._spark.readStream.format(kind).option("kafka.bootstrap.servers", self.bootstrap)
        reader = reader.option("subscribe", ",".join(run.workload.names(run.source)))
        reader = reader.option("startingOffsets", "earliest")
        reader = reader.option("kafka.isolation.level", "read_committed")
        if run.records_per_batch is not None:
            reader = reader.option("maxOffsetsPerTrigger", run.records_per_batch)
        return run.workload.query(reader.load(), f"{run.sink}-")


def turns(
    names: Sequence[str], label: str, say: Callable[[str], None], trigger_s: float = 0.0
) -> Iterator[tuple[str, bool]]:
    """The contenders in turn, in another order in each round, and whether the round counts: the first one is warm-up,
    for the JVM compiles what it runs often. At a long trigger there is one round."""
    rounds = _ROUNDS if trigger_s < _LONG_S else 0
    for round_number in range(rounds + 1):
        for name in names if round_number % 2 else names[::-1]:
            say(f"{label}, round {round_number}: {name}")
            yield name, bool(round_number or not rounds)


@contextmanager
def failures_refused(what: str, *, hint: str = "") -> Iterator[None]:
    """Errors of Spark, of its JVM and of a pipeline become BenchRefused. ``what`` did not happen."""
    try:
        yield
    except (PySparkException, Py4JError, ConnectionError, PipelineError) as error:
        # ConnectionError: py4j's, where the JVM has died.
        reason = f"{what}: {reason_of(error)}"
        raise BenchRefused(f"{reason}\nhint: {hint}" if hint else reason) from error


def ratios(label: str, values: dict[str, float]) -> Iterator[Figure]:
    """Exactly-once against the other contenders."""
    exactly_once = values[EXACTLY_ONCE]
    for contender, value in values.items():
        if contender != EXACTLY_ONCE:
            yield Figure(f"{label}, {EXACTLY_ONCE} : {contender}", exactly_once / value, "")
