"""``einmal trace``: one transaction, drawn as the requests between its producer, its brokers and its readers."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from einmal.cli.clients import (
    BROKERS_VARIABLES,
    PLACEHOLDER,
    Brokers,
    CommandConfig,
    Settings,
    config_of,
    failures_reported,
    program_arguments,
    program_environment,
)
from einmal.cli.printing.documents import encoded
from einmal.cli.printing.formats import Format, Output
from einmal.cli.printing.output import printable

if TYPE_CHECKING:
    from einmal.client import Consumer
    from einmal.trace.exchanges import Exchange
    from einmal.trace.transactions import Traced

_PARTITIONS: Final = 2
_READ_S: Final = 30.0
_STDERR: Final = 2
_INTERRUPTED: Final = 130


def trace(
    command: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[-- COMMAND ARGS...]",
            help=f"A program that uses the cluster. It finds the proxy's address in ${BROKERS_VARIABLES[0]}, and "
            f"{PLACEHOLDER} in an argument is replaced by it. Its output goes to stderr.",
        ),
    ] = None,
    topic: Annotated[
        str | None, typer.Option(help="Of the command's transactions, show one that wrote to this topic.")
    ] = None,
    transactional_id: Annotated[
        str | None, typer.Option(help="Of the command's transactions, show one of this id. Default: the last of all.")
    ] = None,
    svg: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the diagram to this file, too.")] = None,
    brokers: Brokers = None,
    settings: Settings = None,
    command_config: CommandConfig = None,
    output: Output = Format.TEXT,
) -> None:
    """Draw the requests of one transaction, and when each side knows its outcome, on any cluster.

    A proxy listens on this machine, in front of the cluster. Without a command, a producer and a read_committed reader
    run one small transaction through it, on a topic that is deleted afterwards. With TLS in the settings, the proxy
    encrypts its connections to the brokers; the command itself connects without TLS.
    """
    if not command and (topic or transactional_id):
        raise typer.BadParameter("--topic and --transactional-id choose among the transactions of a command")
    from einmal.chaos.proxy.clients import settings_behind, upstream_tls
    from einmal.chaos.proxy.server import KafkaProxy
    from einmal.trace.recorder import ExchangeRecorder

    recorder = ExchangeRecorder()
    status: int | None = 0
    config = config_of(brokers, settings, command_config)
    with failures_reported():
        proxy = KafkaProxy(str(config["bootstrap.servers"]), observer=recorder, upstream_tls=upstream_tls(config))
        with proxy:
            behind = settings_behind(config, proxy.bootstrap_servers)
            if command:
                status = _run(command, behind)
            else:
                _run_own(config, behind)
    exchanges = recorder.exchanges()
    try:
        _show(_chosen(exchanges, topic, transactional_id), exchanges, svg, output)
    except typer.Exit:
        if status is not None:
            raise
    if status is None:
        raise typer.Exit(_INTERRUPTED)
    if status:
        print(f"error: {command[0] if command else ''} ended with status {status}", file=sys.stderr)
        raise typer.Exit(1)


def _run(command: Sequence[str], config: Mapping[str, Any]) -> int | None:
    """The command's exit status; None where Ctrl-C has ended it: what was seen until then is shown."""
    arguments = program_arguments(command, config)
    environment = {**os.environ, **program_environment(config)}
    try:
        child = subprocess.Popen(arguments, env=environment, stdout=_STDERR)
    except OSError as error:
        print(f"error: {command[0]!r} cannot be started: {error.strerror}", file=sys.stderr)
        raise typer.Exit(1) from error
    try:
        return child.wait()
    except KeyboardInterrupt:
        child.wait()
        return None
    finally:
        if child.poll() is None:
            child.kill()
            child.wait()


def _run_own(direct: Mapping[str, Any], behind: Mapping[str, Any]) -> None:
    """One transaction with a record in each partition of a topic of its own, and a reader of committed records."""
    from einmal.client import Admin, Consumer, Producer, TopicPartition

    name = f"einmal-trace-{uuid.uuid4().hex[:6]}"
    partitions = [TopicPartition(name, index) for index in range(_PARTITIONS)]
    with Admin(direct) as admin, _temporary(admin, name):
        reader = {
            **behind,
            "client.id": f"{name}-reader",
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
        }
        writer = {**behind, "client.id": f"{name}-producer", "transactional.id": name}
        with Consumer(reader) as consumer, Producer(writer) as producer:
            consumer.assign(partitions)
            consumer.poll(timeout_ms=200)
            producer.init_transactions()
            producer.begin_transaction()
            for partition in partitions:
                producer.send(name, b"one record", partition=partition.partition)
            producer.flush()
            consumer.poll(timeout_ms=200)
            producer.commit_transaction()
            _read(consumer)


def _read(consumer: Consumer) -> None:
    """Until the reader has all records, or some time has passed: the diagram shows what was seen."""
    deadline = time.monotonic() + _READ_S
    records = 0
    while records < _PARTITIONS and time.monotonic() < deadline:
        records += len(consumer.poll(timeout_ms=500))


@contextmanager
def _temporary(admin: Any, name: str) -> Iterator[None]:
    from einmal.client import NewTopic

    admin.create_topics([NewTopic(name, _PARTITIONS)])
    try:
        yield
    finally:
        admin.delete_topics([name])


def _chosen(exchanges: Sequence[Exchange], topic: str | None, transactional_id: str | None) -> Traced:
    """The last one that fits. Raises typer.Exit where none does."""
    from einmal.trace.transactions import transactions

    seen = transactions(exchanges)
    fitting = [
        transaction
        for transaction in seen
        if transactional_id in (None, transaction.transactional_id) and (topic is None or topic in transaction.topics)
    ]
    if fitting:
        return fitting[-1]
    ids = ", ".join(printable(name) for name in dict.fromkeys(transaction.transactional_id for transaction in seen))
    if seen:
        print(f"error: no transaction fits; those seen have the transactional ids {ids}", file=sys.stderr)
    else:
        print("error: no transaction was seen", file=sys.stderr)
        print(
            f"hint: the command must connect to the proxy: its address is in ${BROKERS_VARIABLES[0]}, and replaces "
            f"{PLACEHOLDER} in an argument",
            file=sys.stderr,
        )
    raise typer.Exit(1)


def _show(traced: Traced, exchanges: Sequence[Exchange], svg: Path | None, output: Format) -> None:
    """Raises typer.Exit where the file cannot be written."""
    from einmal.inspection.document import document
    from einmal.trace.story import story

    diagram = story(traced, exchanges)
    if svg is not None:
        _write(svg, diagram)
    if output.is_document:
        print(encoded(document(diagram), output))
    else:
        from einmal.trace.text import drawn

        print("\n".join(printable(line) for line in drawn(diagram).splitlines()))


def _write(path: Path, diagram: Any) -> None:
    from einmal.trace.svg import drawn

    try:
        path.write_text(drawn(diagram), encoding="utf-8")
    except OSError as error:
        print(f"error: {path} cannot be written: {error.strerror}", file=sys.stderr)
        raise typer.Exit(1) from error
