"""``einmal chaos``: faults between a program and a cluster, and in both. The faults are on stdout, as they occur.

Exit status: that of the command; 0 without one; 2 where the faults cannot be injected, or wrong usage; 130 interrupted.
"""

from __future__ import annotations

import asyncio
import secrets
import signal
import sys
import time as clock
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from enum import StrEnum
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from einmal.cli.clients import (
    BROKERS_VARIABLES,
    PLACEHOLDER,
    Brokers,
    CommandConfig,
    Settings,
    ended_by_sigterm,
    print_error,
    program_arguments,
    program_environment,
)
from einmal.cli.durations import seconds_of
from einmal.cli.own_cluster import ClusterKind, Nodes, check_target, config_at, own_cluster
from einmal.cli.printing.documents import encoded
from einmal.cli.printing.formats import Format, Output
from einmal.cli.printing.messages import note
from einmal.cli.printing.output import discard_output

if TYPE_CHECKING:
    from einmal.chaos.command import CommandFaults
    from einmal.chaos.connection_faults import ConnectionFaults, RuledConnections
    from einmal.chaos.injector import FaultInjector
    from einmal.chaos.proxy.rules import Rule

_FAILED: Final = 2
_SEEDS: Final = 2**31


class DisturbedPart(StrEnum):
    BROKERS = "brokers"
    NETWORK = "network"
    COMMAND = "command"


def chaos(
    command: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[-- COMMAND ARGS...]",
            help=f"A program that uses the cluster. It finds the address in ${BROKERS_VARIABLES[0]}, and {PLACEHOLDER} "
            "in an argument is replaced by it. Its output goes to stderr. Without one the faults last until Ctrl-C.",
        ),
    ] = None,
    brokers: Brokers = None,
    cluster: Annotated[
        ClusterKind | None,
        typer.Option(help="Start a cluster, whose brokers can be disturbed, too. It ends with the command."),
    ] = None,
    nodes: Nodes = None,
    kafka_home: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER", help="A downloaded Apache Kafka 4, or a folder with its jars, for --cluster kafka."
        ),
    ] = None,
    settings: Settings = None,
    command_config: CommandConfig = None,
    faults: Annotated[
        list[DisturbedPart] | None,
        typer.Option(
            help="What is disturbed; may be repeated. network: a proxy drops answers, breaks, delays and partitions "
            "connections. brokers: kill, pause and restart those of --cluster. command: kill -9 and pause it, "
            "and start it again until it ends by itself. Default without --rule: network, with --cluster brokers, too."
        ),
    ] = None,
    rules: Annotated[
        list[str] | None,
        typer.Option(
            "--rule",
            metavar="RULE",
            help='Network faults of this rule only, such as "on(EndTxn).drop_answer().once()"; may be repeated.',
        ),
    ] = None,
    port: Annotated[
        int, typer.Option(min=0, max=65_535, help="Port of the proxy for the first bootstrap server. 0: any.")
    ] = 0,
    time: Annotated[
        str | None,
        typer.Option("--time", metavar="TIME", help="Duration of the faults, such as 30s; then calm. Default: all."),
    ] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Seed of all draws. Default: random.")] = None,
    output: Output = Format.TEXT,
) -> None:
    """Disturb a cluster's connections, its brokers and a program that uses it, drawn by a seed or by rules.

    Other clients of an existing cluster, and its brokers, notice nothing. The client connects to the proxy without TLS;
    with TLS in the settings, the proxy encrypts its connections to the brokers.
    """
    from einmal.evidence.environment import run_environment

    check_target(brokers, cluster, nodes, disturbs_brokers=DisturbedPart.BROKERS in (faults or ()))
    _check(cluster, kafka_home, command, faults, rules, port)
    parsed = _rules(rules or ())
    seconds = None if time is None else seconds_of("--time", time)
    drawn = secrets.randbelow(_SEEDS) if seed is None else seed
    kinds = _kinds(faults, cluster, parsed)
    printed = _Faults(output)
    with _failures_reported(), ExitStack() as stack:
        folder = stack.enter_context(TemporaryDirectory(prefix="einmal-chaos-"))
        own = stack.enter_context(own_cluster(cluster, nodes, kafka_home, Path(folder)))
        config: Mapping[str, Any] = config_at(own, brokers, settings, command_config)
        injectors: dict[str, FaultInjector] = {}
        if own is not None and DisturbedPart.BROKERS in kinds:
            injectors["faults"] = own
        if DisturbedPart.NETWORK in kinds:
            injectors["network"] = network = stack.enter_context(closing(_network(config, parsed, port)))
            config = network.config
        printed.begin(config, drawn)
        program = None
        if command:
            program = stack.enter_context(_running(command, config))
            if DisturbedPart.COMMAND in kinds:
                injectors["command"] = program
        try:
            status = asyncio.run(_run(injectors, drawn, seconds, printed, program))
        finally:
            # The seed comes before a command, whose own arguments follow.
            arguments = ["chaos", *([] if seed is not None else ["--seed", str(drawn)]), *sys.argv[2:]]
            note(f"repeat: {run_environment(arguments, {}).command}")
    if command and status:
        print(f"error: {command[0]} ended with status {status}", file=sys.stderr)
    raise typer.Exit(status)


async def _run(
    injectors: Mapping[str, FaultInjector],
    seed: int,
    seconds: float | None,
    faults: _Faults,
    program: CommandFaults | None,
) -> int:
    from einmal.chaos.run import ChaosRun

    never: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    ended = never if program is None else program.ended()
    status = await ChaosRun(injectors, seed, seconds, faults.note).run(ended)
    # As a shell has it for a command that a signal has ended.
    return status if status >= 0 else 128 - status


class _Faults:
    """Faults, and their ends, on stdout, as they occur."""

    def __init__(self, output: Format) -> None:
        self._output = output

    def begin(self, config: Mapping[str, Any], seed: int) -> None:
        """Where clients connect to."""
        address = {name: str(config[name]) for name in ("bootstrap.servers", "security.protocol") if name in config}
        if self._output.is_document:
            print(
                encoded(
                    {**{name.replace(".", "_"): value for name, value in address.items()}, "seed": seed}, self._output
                )
            )
        else:
            print("\n".join(f"{name}={value}" for name, value in address.items()))
        sys.stdout.flush()

    def note(self, text: str) -> None:
        now = clock.time()
        if self._output.is_document:
            print(encoded({"at": round(now, 3), "event": text}, self._output), flush=True)
        else:
            print(f"{clock.strftime('%H:%M:%S', clock.localtime(now))} {text}", flush=True)


def _network(config: Mapping[str, Any], rules: Sequence[Rule], port: int) -> ConnectionFaults | RuledConnections:
    """Raises ConfigError, OSError."""
    from einmal.chaos.connection_faults import ConnectionFaults, RuledConnections

    return RuledConnections(config, rules, port) if rules else ConnectionFaults(config, port)


@contextmanager
def _running(command: Sequence[str], config: Mapping[str, Any]) -> Iterator[CommandFaults]:
    from einmal.chaos.command import CommandFaults, RestartedCommand

    program = RestartedCommand(program_arguments(command, config), program_environment(config), None)
    try:
        program.start()
    except OSError as error:
        print(f"error: {command[0]!r} cannot be started: {error.strerror}", file=sys.stderr)
        raise typer.Exit(_FAILED) from error
    try:
        yield CommandFaults(program)
    finally:
        program.kill()


def _check(
    cluster: ClusterKind | None,
    kafka_home: Path | None,
    command: list[str] | None,
    faults: list[DisturbedPart] | None,
    rules: list[str] | None,
    port: int,
) -> None:
    if (cluster is ClusterKind.KAFKA) != (kafka_home is not None):
        raise typer.BadParameter("--kafka-home FOLDER belongs to --cluster kafka, which needs it")
    if faults and DisturbedPart.COMMAND in faults and not command:
        raise typer.BadParameter("--faults command needs a command after --")
    if faults and DisturbedPart.NETWORK in faults and rules:
        raise typer.BadParameter("--rule states the faults of the network, which --faults network draws: name one")
    if port and faults and DisturbedPart.NETWORK not in faults and not rules:
        raise typer.BadParameter("--port is the proxy's, which only --faults network and --rule have")


def _kinds(
    faults: list[DisturbedPart] | None, cluster: ClusterKind | None, rules: Sequence[Rule]
) -> frozenset[DisturbedPart]:
    default = [DisturbedPart.NETWORK, *([DisturbedPart.BROKERS] if cluster and not rules else [])]
    return frozenset((*(faults or default), *([DisturbedPart.NETWORK] if rules else [])))


def _rules(texts: Sequence[str]) -> list[Rule]:
    from einmal.chaos.proxy.rule_text import parse_rule

    try:
        return [parse_rule(text) for text in texts]
    except ValueError as error:
        raise typer.BadParameter(f"--rule: {error}") from error


@contextmanager
def _failures_reported() -> Iterator[None]:
    from einmal.client.errors import KafkaError
    from einmal.local.apache_kafka import KafkaMissing
    from einmal.local.processes import BrokerFailed

    try:
        with ended_by_sigterm():
            yield
    except KafkaError as error:
        print_error(error)
        raise typer.Exit(_FAILED) from error
    except BrokenPipeError:
        # Whoever read the faults has seen enough.
        discard_output()
        raise typer.Exit(128 + signal.SIGPIPE) from None
    except (BrokerFailed, KafkaMissing, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        raise typer.Exit(_FAILED) from error
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
