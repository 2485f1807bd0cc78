"""``einmal verify``: evidence about a cluster. Progress on stderr, the verdict on stdout.

Exit status: 0 it holds, 1 an anomaly, 2 not enough evidence, or wrong usage; 130 interrupted.
"""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any, Final, NoReturn

import typer

from einmal.cli.clients import (
    Brokers,
    CommandConfig,
    Settings,
    config_of_other,
    ended_by_sigterm,
    key_and_value,
    print_error,
)
from einmal.cli.durations import seconds_of
from einmal.cli.own_cluster import ClusterKind, Nodes, check_target, config_at, java_program, own_cluster
from einmal.cli.printing.documents import encoded
from einmal.cli.printing.formats import Format, Output
from einmal.cli.printing.messages import note
from einmal.cli.printing.output import OutputFailed, discard_output, print_rows

if TYPE_CHECKING:
    from einmal.chaos.connection_faults import ConnectionFaults
    from einmal.evidence.environment import RunEnvironment
    from einmal.verify.clients.processes import JavaLibrary
    from einmal.verify.evidence import Evidence, WorkloadEvidence
    from einmal.verify.pipeline.run import PipelineOptions

_NO_VERDICT: Final = 2
_SEEDS: Final = 2**31
_ERRORS_SHOWN: Final = 3
_PRECEDENCE: Final = (0, _NO_VERDICT, 1)
"""Exit statuses: an anomaly stays one where its page cannot be written."""


class ClientName(StrEnum):
    EINMAL = "einmal"
    CONFLUENT = "confluent-kafka"
    AIOKAFKA = "aiokafka"
    KAFKA_PYTHON = "kafka-python"
    JAVA = "java"


class WorkloadName(StrEnum):
    APPENDS = "appends"
    BANK = "bank"
    BULK = "bulk"


_WORKLOADS: Final = (WorkloadName.APPENDS, WorkloadName.BANK)
"""The default. Bulk writes as much as it can: on a cluster that others use, somebody has to ask for it."""


class ControlName(StrEnum):
    AT_LEAST_ONCE = "at-least-once"
    OFFSETS_FIRST = "offsets-first"
    READ_UNCOMMITTED = "read-uncommitted"
    TWO_TRANSACTIONS = "two-transactions"


class FaultSource(StrEnum):
    BROKERS = "brokers"
    KILLS = "kills"
    PARTITIONS = "partitions"
    CLOCKS = "clocks"
    DISKS = "disks"
    NETWORK = "network"


_OF_BROKERS: Final = (
    FaultSource.BROKERS,
    FaultSource.KILLS,
    FaultSource.PARTITIONS,
    FaultSource.CLOCKS,
    FaultSource.DISKS,
)


def verify(
    bootstrap_server: Brokers = None,
    cluster: Annotated[
        ClusterKind | None,
        typer.Option(
            help="Start a cluster, and kill, pause and restart its brokers. Of an existing cluster nothing is killed, "
            "and the run's own topics and groups are removed afterwards."
        ),
    ] = None,
    nodes: Nodes = None,
    kafka_home: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="A downloaded Apache Kafka 4, or a folder with its jars, for --cluster kafka and --client java.",
        ),
    ] = None,
    settings: Settings = None,
    command_config: CommandConfig = None,
    client: Annotated[ClientName | None, typer.Option(help="Library of all clients. Default: einmal.")] = None,
    workloads: Annotated[
        list[WorkloadName] | None,
        typer.Option("--workload", help="Workload; may be repeated. Default: appends and bank."),
    ] = None,
    control: Annotated[
        ControlName | None,
        typer.Option(help="Negative control: a workload with this mistake, which must end with exit status 1."),
    ] = None,
    pipeline: Annotated[
        str | None,
        typer.Option(
            metavar="COMMAND",
            help="Pipeline under test: a command for the shell, with $BOOTSTRAP_SERVERS, $INPUT_TOPIC and "
            "$OUTPUT_TOPIC. It is killed and started again, and its output compared with its input.",
        ),
    ] = None,
    input_topic: Annotated[
        str | None,
        typer.Option(
            "--input", metavar="TOPIC", help="Topic or table that --pipeline reads. The run makes it, and removes it."
        ),
    ] = None,
    input_database: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="PostgreSQL database that --input is a table of, for change data capture. The command has "
            "$INPUT_DATABASE and $INPUT_TABLE.",
        ),
    ] = None,
    output_topic: Annotated[
        str | None, typer.Option("--output", metavar="TOPIC", help="Topic that --pipeline writes. The run makes it.")
    ] = None,
    output_bootstrap_server: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT,...",
            help="Another cluster, which has the topic of --output: a mirror's target. Nothing of it is disturbed.",
        ),
    ] = None,
    output_command_config: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="client.properties file for --output-bootstrap-server."),
    ] = None,
    sql: Annotated[
        str | None,
        typer.Option(
            metavar="QUERY", help="DuckDB query FROM input: what --pipeline makes of a record. Default: its value."
        ),
    ] = None,
    output_sql: Annotated[
        str | None,
        typer.Option(
            metavar="QUERY", help="DuckDB query FROM output: what is compared of an output record. Default: its value."
        ),
    ] = None,
    map_function: Annotated[
        str | None,
        typer.Option("--map", metavar="MODULE:FUNCTION", help="Python function: what --pipeline makes of a value."),
    ] = None,
    faults: Annotated[
        list[FaultSource] | None,
        typer.Option(
            help="What is disturbed; may be repeated. brokers: kill, pause and restart those of --cluster. kills: only "
            "kill -9 of them, one after another. partitions: cut them off from one another, in network namespaces (root"
            " on Linux). clocks: let theirs jump. disks: let theirs be full or slow. network: drop answers, break "
            "and delay connections of this run's clients. Default: brokers and network with --cluster, else none."
        ),
    ] = None,
    time: Annotated[
        str | None, typer.Option("--time", metavar="TIME", help="Duration, such as 30s, 5m or 1h. Default: 60s.")
    ] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Seed of values, faults and pauses. Default: random.")] = None,
    report: Annotated[
        Path | None,
        typer.Option(metavar="FILE.html", help="Evidence page; FILE.json and the histories are written beside it."),
    ] = None,
    history: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Check this history only, without a cluster: FILE.jsonl of an earlier --report, or FILE.edn of "
            "Jepsen's Kafka workload.",
        ),
    ] = None,
    output: Output = Format.TEXT,
) -> None:
    """Show whether exactly-once processing holds on a cluster: run workloads, disturb them, check every history.

    Exit status: 0 it holds; 1 an anomaly; 2 the evidence is not sufficient, or wrong usage.
    """
    from einmal.evidence.environment import run_environment
    from einmal.verify.pipeline.mapping import projection
    from einmal.verify.run import VerifyOptions, VerifyRun

    of_pipelines = {
        "--input": input_topic,
        "--input-database": input_database,
        "--output": output_topic,
        "--output-bootstrap-server": output_bootstrap_server,
        "--output-command-config": output_command_config,
        "--output-sql": output_sql,
        "--sql": sql,
        "--map": map_function,
    }
    if history is not None:
        of_clusters = (bootstrap_server, cluster, nodes, kafka_home, settings, command_config, client, faults)
        of_runs = (workloads, control, pipeline, time, seed, report)
        if any(value not in (None, []) for value in (*of_clusters, *of_runs, *of_pipelines.values())):
            raise typer.BadParameter("--history checks a file, without a cluster: leave out all options but --format")
        _check_history(history, output)
    check_target(bootstrap_server, cluster, nodes, disturbs_brokers=bool(_of_brokers(faults or ())))
    _check(control, workloads, pipeline)
    if pipeline is None:
        _check_without_pipeline(of_pipelines)
    else:
        is_one_log = input_topic == output_topic and not (input_database or output_bootstrap_server)
        _check_pipeline(client, input_topic if is_one_log else None)
    _check_report(report)
    _check_client_settings(client, settings)
    if output_command_config and not output_bootstrap_server:
        raise typer.BadParameter("--output-command-config needs --output-bootstrap-server")
    seconds = seconds_of("--time", time or "60s")
    needs_kafka = cluster is ClusterKind.KAFKA or client is ClientName.JAVA
    if needs_kafka != (kafka_home is not None):
        raise typer.BadParameter("--kafka-home FOLDER belongs to --cluster kafka and --client java, which need it")
    kinds = _kinds(faults, cluster)
    if FaultSource.PARTITIONS in kinds and nodes == 1:
        raise typer.BadParameter("--faults partitions needs several brokers: one has nobody to be cut off from")
    drawn = secrets.randbelow(_SEEDS) if seed is None else seed
    arguments = [*sys.argv[1:], *([] if seed is not None else ["--seed", str(drawn)])]
    environment = run_environment(arguments, {})
    with _failures_reported(), TemporaryDirectory(prefix="einmal-verify-") as folder:
        tested = _pipeline(pipeline, (input_topic, output_topic), sql, map_function, Path(folder))
        if tested is not None:
            there = output_bootstrap_server and config_of_other(output_bootstrap_server, None, output_command_config)
            tested = replace(
                tested,
                database=input_database,
                output_config=there or None,
                projection=None if output_sql is None else projection(output_sql),
            )
        with own_cluster(cluster, nodes, kafka_home, Path(folder), _of_brokers(kinds)) as own:
            options = VerifyOptions(
                client=(client or ClientName.EINMAL).value,
                java=_java_library(kafka_home) if kafka_home and client is ClientName.JAVA else None,
                workloads=[workload.value for workload in workloads or _WORKLOADS],
                control=None if control is None else control.value,
                pipeline=tested,
                seconds=seconds,
                seed=drawn,
                config=config_at(own, bootstrap_server, settings, command_config),
                software="" if own is None else own.software,
            )
            with _network(kinds, options.config) as network:
                disturbed = own if _of_brokers(kinds) else None
                run = VerifyRun(options, secrets.token_hex(4), disturbed, network, note)
                evidence, left = asyncio.run(run.run())
    for leftover in left:
        print(f"warning: not removed: {leftover}", file=sys.stderr)
    fields = evidence.fields(environment, left)
    with _verdict_printed():
        if output.is_document:
            print(encoded(fields, output))
        else:
            _print(evidence, environment)
    status = evidence.verdict.exit_status
    if report is not None:
        # A pipeline's writes are its input, and its reads the output: no history of one log.
        histories = evidence.workloads if tested is None else ()
        status = max(status, _write(report, evidence, environment, left, fields, histories), key=_PRECEDENCE.index)
    raise typer.Exit(status)


def _check_history(path: Path, output: Format) -> NoReturn:
    from einmal.verify.histories.check import check_history

    with _failures_reported():
        checked = check_history(path)
    with _verdict_printed():
        if output.is_document:
            print(encoded(checked.fields(), output))
        else:
            _print_workloads([checked.workload], checked.began)
            print(f"verdict: {checked.verdict.value}. {checked.sentence}")
    raise typer.Exit(checked.verdict.exit_status)


@contextmanager
def _verdict_printed() -> Iterator[None]:
    """The exit status is the verdict's, whoever reads what is printed."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        discard_output()
    except OutputFailed as error:
        discard_output()
        print(f"error: stdout cannot be written: {error.strerror}", file=sys.stderr)


def _check(control: ControlName | None, workloads: list[WorkloadName] | None, pipeline: str | None) -> None:
    if pipeline is not None and (control is not None or workloads):
        raise typer.BadParameter("--pipeline is what is tested: leave out --workload and --control")
    if control is not None and workloads:
        raise typer.BadParameter("--control has a workload of its own: leave out --workload")


def _check_without_pipeline(options: Mapping[str, object]) -> None:
    given = [name for name, value in options.items() if value is not None]
    if given:
        raise typer.BadParameter(f"{', '.join(given)}: only with --pipeline COMMAND")


def _check_pipeline(client: ClientName | None, common_topic: str | None) -> None:
    """``common_topic``: one that is input and output."""
    if client is not None:
        raise typer.BadParameter("--client is of workloads: --pipeline has clients of its own")
    if common_topic is not None:
        raise typer.BadParameter("--input and --output are two topics: of one, the output is compared with itself")


def _check_report(path: Path | None) -> None:
    """Before the run: its verdict must not be lost for a file that cannot be written."""
    if path is None:
        return
    if path.suffix in (".json", ".jsonl", ".edn"):
        raise typer.BadParameter(f"--report {path}: name the page, FILE.html; FILE.json is written beside it")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.open("a", encoding="utf-8").close()
    except OSError as error:
        raise typer.BadParameter(f"--report: {path} cannot be written: {error.strerror}") from error


def _check_client_settings(client: ClientName | None, settings: list[str] | None) -> None:
    """A warning of settings that another library does not get from us."""
    if client not in (ClientName.AIOKAFKA, ClientName.KAFKA_PYTHON, ClientName.JAVA):
        return
    names = [key_and_value(setting)[0].strip() for setting in settings or ()]
    unused = [name for name in names if not name.startswith(("bootstrap.", "sasl.", "ssl.", "security."))]
    if unused:
        print(f"warning: {', '.join(unused)}: without effect with --client {client.value}", file=sys.stderr)


def _kinds(faults: list[FaultSource] | None, cluster: ClusterKind | None) -> list[FaultSource]:
    if faults and FaultSource.BROKERS in faults and FaultSource.KILLS in faults:
        raise typer.BadParameter("--faults brokers has kills among its faults: name one of brokers and kills")
    return faults or ([] if cluster is None else [FaultSource.BROKERS, FaultSource.NETWORK])


def _of_brokers(faults: Sequence[FaultSource]) -> list[str]:
    return [kind.value for kind in _OF_BROKERS if kind in faults]


def _pipeline(
    command: str | None,
    topics: tuple[str | None, str | None],
    sql: str | None,
    map_function: str | None,
    folder: Path,
) -> PipelineOptions | None:
    """Raises MappingWrong."""
    from einmal.verify.pipeline.mapping import function, identity, query
    from einmal.verify.pipeline.run import PipelineOptions

    source, target = topics
    if command is None:
        return None
    if not source or not target:
        raise typer.BadParameter("--pipeline needs --input TOPIC and --output TOPIC")
    if sql and map_function:
        raise typer.BadParameter("name one mapping: --sql or --map")
    mapping = query(sql) if sql else function(map_function) if map_function else identity()
    log = folder / "pipeline.log"
    return PipelineOptions(command=command, input=source, output=target, mapping=mapping, log=log)


def _java_library(home: Path) -> JavaLibrary:
    """Raises KafkaMissing."""
    from einmal.local.apache_kafka import KafkaJars
    from einmal.verify.clients.processes import JavaLibrary

    return JavaLibrary(KafkaJars.locate(home, of_clients=True), java_program())


@contextmanager
def _network(kinds: list[FaultSource], config: Mapping[str, Any]) -> Iterator[ConnectionFaults | None]:
    if FaultSource.NETWORK not in kinds:
        yield None
        return
    from einmal.chaos.connection_faults import ConnectionFaults

    network = ConnectionFaults(config)
    try:
        yield network
    finally:
        network.close()


@contextmanager
def _failures_reported() -> Iterator[None]:
    """End the command with status 2 after a failure that prevents a verdict."""
    from einmal.client.errors import ConfigError, KafkaError
    from einmal.local.apache_kafka import KafkaMissing
    from einmal.local.processes import BrokerFailed
    from einmal.security.errors import SecuritySettingError
    from einmal.verify.clients.processes import ClientMissing
    from einmal.verify.histories.files import HistoryUnreadable
    from einmal.verify.pipeline.mapping import MappingWrong
    from einmal.verify.pipeline.table_input import TableFailed

    # Clients warn of what the history has: records without an acknowledgement, connections that broke.
    logging.disable(logging.WARNING)
    try:
        with ended_by_sigterm():
            yield
    except ClientMissing as error:
        print(f"error: {error}\nhint: {error.hint}", file=sys.stderr)
    except KafkaError as error:
        print_error(error)
    except SecuritySettingError as error:
        print_error(ConfigError(meaning=error.meaning, what_to_do=error.hint))
    except (BrokerFailed, HistoryUnreadable, KafkaMissing, MappingWrong, TableFailed, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    except (typer.Exit, typer.BadParameter):
        raise
    except Exception as error:  # noqa: BLE001 - a traceback has the status of an anomaly.
        frame = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(frame.filename).name}:{frame.lineno}"
        print(f"error: {type(error).__name__} in {where}: {error}", file=sys.stderr)
        print("hint: this is a fault of einmal verify, and no verdict; please report it", file=sys.stderr)
    else:
        return
    finally:
        logging.disable(logging.NOTSET)
    raise typer.Exit(_NO_VERDICT)


def _write(
    path: Path,
    evidence: Evidence,
    environment: RunEnvironment,
    left: list[str],
    fields: dict[str, object],
    with_histories: Sequence[WorkloadEvidence],
) -> int:
    """The exit status: 0 where everything is written."""
    from einmal.verify.histories.files import write_edn, write_json
    from einmal.verify.page import page

    try:
        path.write_text(page(evidence, environment, left), encoding="utf-8")
        path.with_suffix(".json").write_text(json.dumps(fields, indent=2) + "\n", encoding="utf-8")
        for workload in with_histories:
            write_json(workload.history, path.with_name(f"{path.stem}-{workload.name}.jsonl"))
            if workload.history.is_read_to_the_end:
                write_edn(workload.history, path.with_name(f"{path.stem}-{workload.name}.edn"))
            else:
                # Whoever checks one takes what was not read for lost.
                note(f"note: {workload.name} was not read to its end: no .edn is written")
    except OSError as error:
        print(f"error: --report: {path} cannot be written: {error.strerror}", file=sys.stderr)
        return _NO_VERDICT
    histories = f", histories: {path.with_name(path.stem)}-*.jsonl and .edn" if with_histories else ""
    note(f"report: {path} and {path.with_suffix('.json')}{histories}")
    return 0


def _print(evidence: Evidence, environment: RunEnvironment) -> None:
    _print_workloads(evidence.workloads, evidence.began)
    for workload in evidence.workloads:
        for line in workload.frequent_errors(_ERRORS_SHOWN):
            print(f"errors of clients: {line}")
    print(f"\ndurability: {', '.join(f'{name}={value}' for name, value in evidence.durability.items())}")
    print(f"not tested: {'; '.join(evidence.not_tested)}")
    print(f"repeat: {environment.command}")
    print(f"verdict: {evidence.verdict.value}. {evidence.sentence}")


def _print_workloads(workloads: Sequence[WorkloadEvidence], began: float) -> None:
    from einmal.verify.page import HEADS, rows
    from einmal.verify.verdict import definition

    print_rows([dict(zip(HEADS, row, strict=True)) for row in rows(workloads)], HEADS, Format.TEXT)
    for workload in workloads:
        if workload.mistake:
            print(f"\nnegative control: {workload.mistake}")
        for anomaly in workload.shown(began, examples_max=1):
            print(f"\n{anomaly.kind} ({anomaly.count}): {definition(anomaly.kind)}\n  {anomaly.detail}")
            for line in anomaly.operations:
                print(f"    {line}")
