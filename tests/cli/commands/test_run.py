"""Claims about ``einmal run`` that need no Spark: an invalid file is reported before anything starts."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
import typer

from einmal.cli.commands.run import _run_whole, pipeline_failures_reported
from einmal.declare.document import DeclarationError
from einmal.options.values import OptionError
from einmal.pipeline.errors import BatchLost, PipelineFailed, PipelineFenced, PipelineRefused, PreflightFailed
from einmal.spark.protocol.queries import Queries
from tests.cli.running import Cli


def run(path: Path, *options: str, status: int) -> list[str]:
    return Cli("127.0.0.1:1")("run", str(path), *options, status=status).errors


def test_every_problem_of_a_file_is_reported_with_status_2(tmp_path: Path) -> None:
    path = tmp_path / "pipeline.toml"
    path.write_text('kafka.bootstrap.servers = "h:1"\n[source.orders]\n[sinks.x]\n')
    told = run(path, status=2)
    assert [line for line in told if line.startswith("error: ")][0] == f"error: {path}: unknown key 'source.orders'"
    assert sum(line.startswith("error: ") for line in told) >= 3


@pytest.mark.parametrize(
    "words", [("run",), ("explain",), ("pipeline", "status", "-f"), ("demo", "--input")], ids=" ".join
)
def test_a_file_that_is_not_there_is_a_failure_with_a_hint(words: tuple[str, ...]) -> None:
    status = 2 if words == ("demo", "--input") else 1
    error, hint = Cli("127.0.0.1:1")(*words, "none.toml", status=status).errors
    assert error == "error: none.toml cannot be read: No such file or directory"
    assert hint.startswith("hint: ")


def test_a_whole_program_takes_no_settings_of_a_declaration(tmp_path: Path) -> None:
    path = tmp_path / "whole.py"
    path.write_text("raise SystemExit('it was run')\n")
    assert "a whole program takes no -X" in " ".join(run(path, "--available-now", status=2))


def test_an_interval_that_is_none_is_refused_before_spark_and_the_brokers(tmp_path: Path) -> None:
    path = tmp_path / "pipeline.toml"
    path.write_text(
        'transactional.id = "p"\ncheckpointLocation = "/c"\nkafka.bootstrap.servers = "127.0.0.1:1"\n'
        '[sources.orders]\nsubscribe = "orders"\n[sinks.out]\nfrom = "orders"\ntopic = "out"\n'
    )
    problem, hint = run(path, "--trigger", "10s", status=2)
    assert "trigger.processingTime is an interval" in problem and "'10s'" in problem
    assert hint.startswith('hint: "10 seconds"')


def test_a_whole_program_that_starts_no_query_and_leaves_a_declared_function_is_refused() -> None:
    queries, before = Queries(), signal.getsignal(signal.SIGTERM)
    try:
        with pytest.raises(DeclarationError, match="the declared function even did not run"):
            _run_whole(lambda: ["even"], queries)
        _run_whole(list, queries)
        queries.has_started = True
        _run_whole(lambda: ["even"], queries)
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (PipelineRefused("no", "do that"), 3),
        (PreflightFailed([("no topic", "create it")]), 3),
        (PipelineFenced("another"), 4),
        (PipelineFailed("a task"), 1),
        (BatchLost("a batch"), 1),
        (OptionError("misspelt"), 2),
    ],
)
def test_the_exit_status_shows_whether_a_restart_helps(
    error: Exception, status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(typer.Exit) as ended, pipeline_failures_reported(Path("p.toml")):
        raise error
    assert ended.value.exit_code == status
    told = capsys.readouterr().err
    assert told.startswith("error: ") and str(error).splitlines()[0] in told
