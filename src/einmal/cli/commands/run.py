"""``einmal run``: a pipeline from its file until it ends or is stopped. Progress on stderr, batches on stdout as JSON.

Exit status, beside the usual: 3 refused (it must not run like this, a restart does not help), 4 fenced (another
instance has taken over). Ctrl-C or SIGTERM ends it between two batches, a second one at once; until its query
runs, so does the first.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from einmal.cli.clients import failures_reported, key_and_value
from einmal.cli.declarations import why_unreadable, wrong_usage
from einmal.cli.printing.formats import Format
from einmal.cli.printing.messages import note
from einmal.cli.printing.waiting import waiting

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from einmal.spark.api.program import Program
    from einmal.spark.protocol.queries import Queries

REFUSED: Final = 3
FENCED: Final = 4
_INTERRUPTED: Final = 130
_PATIENCE_S: Final = 5.0
_WAITING: Final = "still waiting for an answer of the brokers; each cluster has default.api.timeout.ms for it (60 s)"

PipelineFile = Annotated[Path, typer.Argument(metavar="PIPELINE", help="pipeline.toml or Python program.")]
Master = Annotated[str | None, typer.Option("--master", help="Spark's master. Default: all cores of this machine.")]
Confs = Annotated[
    list[str] | None, typer.Option("--conf", metavar="KEY=VALUE", help="Spark setting; overrides the file's.")
]
Overrides = Annotated[
    list[str] | None,
    typer.Option("-X", metavar="KEY=VALUE", help="Top-level key of the pipeline, such as kafka.KEY, or einmal.adopt."),
]


def run(
    file: PipelineFile,
    master: Master = None,
    confs: Confs = None,
    settings: Overrides = None,
    available_now: Annotated[
        bool, typer.Option("--available-now", help="End when all data present at the start is processed.")
    ] = False,
    trigger: Annotated[
        str | None,
        typer.Option("--trigger", metavar="INTERVAL", help='Interval between batches, such as "10 seconds".'),
    ] = None,
    metrics: Annotated[
        str | None,
        typer.Option(
            "--metrics",
            metavar="[HOST:]PORT",
            help="Address of the Prometheus metrics endpoint. Port 0 selects a free one.",
        ),
    ] = None,
    output: Annotated[Format, typer.Option("--format", help="json: one line per batch on stdout.")] = Format.TEXT,
) -> None:
    """Run a pipeline: a declaration in TOML, a declared Python function, or a complete program. Needs einmal[spark]."""
    overrides = dict(map(key_and_value, settings or ()))
    if available_now:
        overrides["trigger.availableNow"] = "true"
    if trigger is not None:
        overrides["trigger.processingTime"] = trigger
    with pipeline_failures_reported(file):
        from einmal.spark.environment.spark_version import require_spark

        require_spark()
        from einmal.spark.api.program import ProgramKind, kind_of, load, run_whole
        from einmal.spark.protocol.queries import queries_of

        kind = kind_of(file)
        if kind is ProgramKind.WHOLE and overrides:
            raise typer.BadParameter("a whole program takes no -X, --available-now or --trigger: it does all itself")
        # A file of tables is checked before the seconds that a session takes to start.
        program = load(file, overrides) if kind is ProgramKind.TABLES else None
        spark = new_session(file, program, master, confs, overrides)
        with watched(spark, metrics, output):
            if kind is ProgramKind.WHOLE:
                _run_whole(lambda: run_whole(file), queries_of(spark))
            else:
                _run_declared(program or load(file, overrides), spark)
        spark.stop()


def new_session(
    file: Path,
    program: Program | None,
    master: str | None,
    confs: Sequence[str] | None,
    overrides: Mapping[str, str],
) -> SparkSession:
    """The Spark session of a file; ``program``: of tables. What is beside the file can be imported, in workers too."""
    from einmal.spark.api.program import session_settings

    declared = session_settings(file) if program is None else dict(program.declaration.spark)
    given = {name: value for name, value in overrides.items() if name.startswith("spark.")}
    name = file.stem if program is None else program.declaration.name
    return named_session(file, name, master, declared | given, confs)


def named_session(
    file: Path, name: str, master: str | None, config: Mapping[str, str], confs: Sequence[str] | None
) -> SparkSession:
    """The Spark session of a file, under this name; ``confs`` are settings that win over those of ``config``. Raises
    DeclarationError where Spark refuses a setting."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    from einmal.declare.document import DeclarationError
    from einmal.spark import session
    from einmal.spark.errors import reason_of

    warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning)
    quiet_py4j()
    beside = str(file.parent.resolve())
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [beside, os.environ.get("PYTHONPATH")]))
    began = time.monotonic()
    settings = {**config, **dict(map(key_and_value, confs or ()))}
    try:
        with waiting(f"{name}: starting Spark"), _interrupted_at_once():
            spark = session(name, master=master, config=settings)
    except (PySparkException, Py4JError) as error:
        raise DeclarationError([f"Spark does not start with these settings: {reason_of(error)}"]) from error
    note(f"{name}: Spark {spark.version} on {spark.sparkContext.master}, after {time.monotonic() - began:.1f} s")
    return spark


def quiet_py4j() -> None:
    """It logs, by the root logger, the traceback of whatever interrupts it; an error it raises besides."""
    logging.getLogger().addFilter(_is_not_py4js)


def _is_not_py4js(record: logging.LogRecord) -> bool:
    return "py4j" not in record.pathname


@contextmanager
def _interrupted_at_once() -> Iterator[None]:
    """For the start of Spark: PySpark, interrupted while it waits for its JVM, removes what this one is about to write
    to, and leaves it behind for ever. A JVM whose Python is gone ends by itself."""
    before = signal.signal(signal.SIGINT, _end_at_once)
    try:
        yield
    finally:
        # A new Spark context has put a handler of its own there.
        if signal.getsignal(signal.SIGINT) is _end_at_once:
            signal.signal(signal.SIGINT, before)


def _end_at_once(*_: object) -> None:
    os._exit(_INTERRUPTED)


@contextmanager
def pipeline_failures_reported(file: Path) -> Iterator[None]:
    """As ``failures_reported``, for everything that can be wrong with a pipeline."""
    from einmal.options.values import OptionError
    from einmal.pipeline.errors import PipelineError, PipelineFenced, PipelineRefused
    from einmal.spark.environment.java import JavaMissing
    from einmal.spark.errors import SparkUnsupported

    with failures_reported():
        try:
            yield
        except OptionError as error:
            raise wrong_usage(file, error) from error
        except PipelineError as error:
            print(f"error: {error}", file=sys.stderr)
            refused = isinstance(error, PipelineRefused)
            raise typer.Exit(REFUSED if refused else FENCED if isinstance(error, PipelineFenced) else 1) from error
        except (OSError, JavaMissing, SparkUnsupported) as error:
            if isinstance(error, OSError) and error.filename == str(file):
                problem = f"{file} cannot be read: {why_unreadable(error)}"
                hint = "\nhint: pass the path of a pipeline.toml or of a Python program"
            else:
                problem, hint = str(error), ""
            print(f"error: {problem}{hint}", file=sys.stderr)
            raise typer.Exit(1) from error
        except KeyboardInterrupt as error:
            # Nothing runs: Spark has just started, or a batch program is ending.
            raise typer.Exit(_INTERRUPTED) from error


@contextmanager
def watched(spark: SparkSession, metrics: str | None, output: Format) -> Iterator[None]:
    """Show the pipelines that run meanwhile; ``metrics``: where their figures are served besides."""
    from einmal.cli.printing.progress import Console
    from einmal.spark.operate.metrics import ADDRESS, served
    from einmal.spark.operate.watch import Watch
    from einmal.spark.protocol.queries import queries_of

    queries = queries_of(spark)
    with Console(output) as console:
        watch = Watch(console)
        queries.add_observer(watch)
        try:
            if metrics is not None:
                spark.conf.set(ADDRESS, metrics)
            for where in served(spark):
                note(f"metrics: {where}")
            yield
        finally:
            queries.remove_observer(watch)
            watch.close()


# --- running ----------------------------------------------------------------------------------------------------


def _run_declared(program: Program, spark: SparkSession) -> None:
    from einmal.spark.api.program import writer

    # Until it runs there is nothing that could be ended between two batches.
    signal.signal(signal.SIGINT, _end_at_once)
    note(f"{program.declaration.name}: planning the query")
    started = writer(program, spark)
    # From here on it is the brokers that are waited for, up to the first thing that happens.
    patience = threading.Timer(_PATIENCE_S, lambda: note(_WAITING))
    patience.start()
    try:
        query = started.listener(lambda _: patience.cancel()).start()
    finally:
        patience.cancel()
    stopping: list[threading.Thread] = []

    def stop(*_: object) -> None:
        if stopping:
            _end_at_once()
        note("stopping after this batch; once more to stop at once")
        stopping.append(threading.Thread(target=query.stop, name="einmal-stop", daemon=True))
        stopping[0].start()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    # With a timeout: a wait without one would not let the signal's handler run on every system.
    while not query.awaitTermination(1.0):
        pass
    for thread in stopping:
        thread.join()


def _run_whole(program: Callable[[], list[str]], queries: Queries) -> None:
    """``program``: returns the names of declared functions that it has left. Raises DeclarationError if nothing ran."""
    from einmal.declare.document import DeclarationError

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, interrupt)
    try:
        left = program()
    except KeyboardInterrupt:
        note("stopping after this batch; once more to stop at once")
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, _end_at_once)
        queries.stop_all()
        return
    if left and not queries.has_started:
        raise DeclarationError(
            [
                f"the declared function {', '.join(left)} did not run: as a whole program the file started no query\n"
                "hint: @pipeline(...) of einmal.spark, right above a function at the top of the file, is recognised"
            ]
        )
