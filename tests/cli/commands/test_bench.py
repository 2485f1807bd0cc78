"""Claims about ``einmal bench`` without a measurement: what it refuses before anything starts, and how it reports."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

from einmal.bench.cases import Figure
from einmal.bench.load import BenchRefused
from einmal.bench.workloads import WORKLOADS
from einmal.spark.environment.java import JavaMissing
from einmal.spark.errors import SparkUnsupported
from tests.cli.running import invoke

BROKER = "127.0.0.1:1"
REFUSED = [
    (["no-such-case"], "no case no-such-case", "failover and pipeline, which run alone"),
    (["pipeline", "single"], "pipeline runs alone", "in a run of their own"),
    (["pipeline", "--beside", BROKER], "pipeline does not support --beside", "with -b HOST:PORT"),
    (["pipeline", "--command-config", "f"], "pipeline does not support --command-config", "without security"),
    (["pipeline", "-b", BROKER, "-X", "num.partitions=1"], "-X excludes -b", "fresh brokers"),
    (["pipeline", "--tls"], "pipeline does not support --tls", "without security"),
    (["pipeline", "--workload", "1 MB"], "no workload '1 MB'", ", ".join(map(repr, WORKLOADS))),
    (["pipeline", "--trigger", "soon"], "invalid trigger 'soon'", "'1 second'"),
    (["pipeline", "--trigger", "1 second", "--workload", "1 KB"], "--trigger excludes --workload", "of their own"),
    (["pipeline", "--trigger", "1 second", "--connector", "."], "--trigger excludes --workload", "of their own"),
    (["pipeline", "--connector", "empty"], "no jars in empty", "make bench-pipeline"),
    (["failover", "-b", BROKER], "failover does not support -b", "brokers of its own"),
    (["failover", "--beside", BROKER], "failover does not support --beside", "brokers of its own"),
    (["failover", "--command-config", "f"], "failover does not support --command-config", "brokers of its own"),
    (["failover", "--brokers", "2"], "failover does not support --brokers", "brokers of its own"),
    (["failover", "--tls"], "failover does not support --tls", "brokers of its own"),
    (["failover", "--spark", "local"], "failover does not support --spark", "brokers of its own"),
    (["single", "--workload", "1 KB"], "do not support --workload", "einmal bench pipeline"),
    (["--trigger", "1 second"], "do not support --trigger", "einmal bench pipeline"),
    (["single", "--connector", "."], "do not support --connector", "einmal bench pipeline"),
    (["single", "--spark", "local"], "do not support --spark", "einmal bench pipeline"),
    (["single", "-b", BROKER, "-X", "num.partitions=1"], "-X excludes -b", "fresh brokers"),
    (["single", "-b", BROKER, "--beside", BROKER, "-X", "num.partitions=1"], "-X excludes -b", "fresh brokers"),
    (["client", "-b", BROKER, "--brokers", "3"], "--brokers excludes -b", "fresh brokers"),
    (["client", "--tls", "--command-config", "f"], "--tls excludes --command-config", "in the file"),
    (["single", "--java", "."], "--java belongs to the cases client and price", "einmal bench client --java FOLDER"),
    (["price", "single", "--java", "."], "--java belongs to the cases client and price", "einmal bench client"),
    (["--java", "."], "--java belongs to the cases client and price", "einmal bench client --java FOLDER"),
    (["price", "--java", ".", "--tls"], "--java excludes --tls", "without security"),
    (["price", "--java", ".", "--command-config", "f"], "--java excludes --command-config", "without security"),
    (["pipeline", "--java", "."], "pipeline does not support --java", "einmal bench client price"),
    (["failover", "--java", "."], "failover does not support --java", "brokers of its own"),
    (["price", "--java", "empty"], "no kafka-tools-*.jar in empty", "make bench-java"),
]


def bench(*arguments: str) -> Result:
    result = invoke(["bench", *arguments])
    assert isinstance(result.exception, SystemExit | None), result.exception
    return result


@pytest.fixture
def measure(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[..., Any]], None]:
    """Replaces the measurement."""
    return lambda run: monkeypatch.setattr("einmal.bench.run.run", run)


@pytest.mark.parametrize(("arguments", "error", "hint"), REFUSED, ids=lambda value: " ".join(value)[:60])
def test_an_option_without_effect_is_refused_before_anything_starts(
    arguments: list[str], error: str, hint: str, measure: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "f").touch()
    measure(lambda *_, **__: pytest.fail("a measurement has started"))
    result = bench(*arguments)
    assert result.exit_code == 2
    first, second = result.stderr.splitlines()[:2]
    assert first.startswith("error: ") and error in first
    assert second.startswith("hint: ") and hint in second


@pytest.mark.parametrize(
    ("error", "status", "text"),
    [
        (JavaMissing("Java 17 or newer is needed; found: none"), 1, "error: Java 17 or newer"),
        (SparkUnsupported("found 3.5.0"), 1, "error: found 3.5.0"),
        (BenchRefused("Spark did not start on spark://h:7077: no"), 1, "error: Spark did not start on spark://h:7077"),
        (ModuleNotFoundError("No module named 'psutil'", name="psutil"), 2, "hint: pip install '.[bench,spark]'"),
        (
            ModuleNotFoundError("No module named 'pyspark'", name="pyspark"),
            2,
            "hint: pip install '.[bench,spark]'",
        ),
        (KeyboardInterrupt(), 130, ""),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else None,
)
def test_a_measurement_that_fails_reports_why_without_a_traceback(
    error: BaseException, status: int, text: str, measure: Any
) -> None:
    def run(*_: Any, **__: Any) -> Iterator[Figure]:
        yield Figure("latency, p50", 1.0, "ms")
        raise error

    measure(run)
    result = bench("pipeline")
    assert result.exit_code == status
    assert text in result.stderr
    assert result.stdout.startswith("latency, p50")


def test_a_file_of_security_settings_that_cannot_be_read_is_wrong_usage(measure: Any, tmp_path: Path) -> None:
    measure(lambda *_, **__: pytest.fail("a measurement has started"))
    file = tmp_path / "client.properties"
    for problem in ("No such file or directory", "it is not UTF-8"):
        result = bench("single", "--command-config", str(file))
        assert result.exit_code == 2
        assert problem in " ".join(result.stderr.split())
        file.write_bytes(b"\xe9")
