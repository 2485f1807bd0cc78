"""Rates of Kafka's Java producer, and the price of exactly-once, by Apache Kafka's own ``kafka-producer-perf-test``."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

from einmal.bench import records
from einmal.bench.cases import RECORD_SIZES, Figure, MeasuredBroker, cost, produced
from einmal.bench.load import BenchRefused

_TOOL: Final = "org.apache.kafka.tools.ProducerPerformance"
_JVM: Final = ("-server", "-Xms512m", "-Xmx512m", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20")
"""As the tool's own start script has them."""
_RECORDS: Final = 400_000
_CLIENT_RECORDS_MAX: Final = 2_000_000
_CLIENT_BYTES: Final = 400_000_000
_CODECS: Final = ("none", "lz4", "zstd")
_WARM_UP: Final = 0.4
"""The share of records that the tool leaves out of its figures: the JVM compiles meanwhile."""
_END_S: Final = 600.0
_RESULT: Final = re.compile(r"^\d+ steady state records sent, ([\d.]+) records/sec", re.MULTILINE)

GUARANTEES: Final[Mapping[str, tuple[str, ...]]] = {
    "at-most-once": (
        *("--command-property", "acks=1", "enable.idempotence=false"),
        "max.in.flight.requests.per.connection=5",
    ),
    "at-least-once, ordered": (
        *("--command-property", "acks=all", "enable.idempotence=false"),
        "max.in.flight.requests.per.connection=1",
    ),
    "exactly-once": ("--transaction-duration-ms", "100"),
}
"""The tool's options for each guarantee, as in the first measurement of Kafka's transactions (Confluent, 2017)."""


@dataclass(frozen=True, slots=True)
class ProducerPerformance:
    """The tool with the jars in a folder: those of an installation of Apache Kafka, its ``libs``, or Maven's."""

    java: Path
    jars: Path

    def __post_init__(self) -> None:
        """Raises BenchRefused where the tool is not among the jars."""
        if not any(self.jars.glob("kafka-tools-*.jar")):
            raise BenchRefused(
                f"no kafka-tools-*.jar in {self.jars}\nhint: name the folder libs of Apache Kafka 4.2 or newer; "
                "`make bench-java` fetches it"
            )

    def rate(self, target: MeasuredBroker, topic: str, size: int, count: int, options: Iterable[str]) -> float:
        """Records per second of ``count`` records with values of ``size`` bytes on average. Raises BenchRefused."""
        with tempfile.TemporaryDirectory(prefix="einmal-bench-") as folder:
            values = Path(folder, "values")
            # A value with a line's end would be two.
            values.write_bytes(b"\n".join(record.value or b"" for record in records.varied(size)))
            command = [
                *(str(self.java), *_JVM, "-cp", str(self.jars / "*"), _TOOL, "--bootstrap-server", target.bootstrap),
                *("--topic", topic, "--payload-file", str(values), "--num-records", str(count), "--throughput", "-1"),
                *("--warmup-records", str(int(_WARM_UP * count)), *options),
            ]
            try:
                done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_END_S)
            except (OSError, subprocess.TimeoutExpired) as error:
                raise BenchRefused(f"kafka-producer-perf-test: {error}") from error
        match = _RESULT.search(done.stdout)
        if done.returncode or match is None:
            raise BenchRefused(f"kafka-producer-perf-test has failed:\n{(done.stderr or done.stdout)[-2_000:]}")
        return float(match[1])

    def client(self, target: MeasuredBroker, scale: float) -> Iterator[Figure]:
        """A case: produce by record size and codec with the producer's own settings, and the brokers' CPU time for it.
        A topic has a partition for each broker."""
        with target.topics() as topics:
            brokers = topics.brokers()
            for size in reversed(RECORD_SIZES):
                count = max(5_000, int(scale * min(_CLIENT_RECORDS_MAX, _CLIENT_BYTES // size)))
                for codec in _CODECS:
                    topic = topics.create(f"java-{size}-{codec}", len(brokers))
                    options = ("--command-property", f"compression.type={codec}")
                    rate = partial(self.rate, target, topic, size, count, options)
                    for figure in produced(brokers, count, rate):
                        yield replace(figure, name=f"Java, {size} B, {codec}: {figure.name}")

    def price(self, target: MeasuredBroker, scale: float) -> Iterator[Figure]:
        """A case, one round: the guarantees in turn, 1 KB records."""
        with target.topics() as topics:
            topic = topics.create("price-java")
            rates = {
                name: self.rate(target, topic, 1_000, max(5_000, int(scale * _RECORDS)), options)
                for name, options in GUARANTEES.items()
            }
        for name, rate in rates.items():
            yield Figure(f"Java, {name}, 1 KB records", rate, "records/s")
        exact = rates["exactly-once"]
        ordered, lossy = (cost(exact, rates[name]) for name in ("at-least-once, ordered", "at-most-once"))
        yield Figure("Java, exactly-once against at-least-once", ordered, "%", 3, at_most=True)
        yield Figure("Java, exactly-once against at-most-once", lossy, "%", 20, at_most=True)
