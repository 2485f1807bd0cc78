"""``einmal txn``: transactions that hold back the last stable offset, and how to end them (KIP-664)."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from einmal.cli.aliases import WithAliases
from einmal.cli.clients import (
    Brokers,
    CommandConfig,
    Settings,
    config_of,
    failures_reported,
    for_each,
    inspecting,
    now_ms,
)
from einmal.cli.completion import topic_names, transactional_ids
from einmal.cli.confirmation import confirm
from einmal.cli.diagnosis import HIDDEN, print_diagnosis, with_options
from einmal.cli.printing.documents import encoded
from einmal.cli.printing.formats import Format, Output
from einmal.cli.printing.messages import note
from einmal.cli.printing.output import print_rows, print_sections, printable
from einmal.cli.profiles import given_profile

if TYPE_CHECKING:
    from einmal.client.descriptions import TransactionDescription
    from einmal.client.errors import KafkaError

txn = typer.Typer(
    cls=WithAliases,
    help="Transactions: doctor, show, list, describe, describe-producers, find-hanging, abort.",
    no_args_is_help=True,
)

Topic = Annotated[str, typer.Option("--topic", help="Topic of the partition.", autocompletion=topic_names)]

Partition = Annotated[
    int | None, typer.Option("--partition", min=0, help="Number of the partition. Default: all of the topic.")
]


@txn.command()
def doctor(
    topics: Annotated[
        list[str] | None,
        typer.Option("--topic", help="Only these topics. Default: all, internal ones too.", autocompletion=topic_names),
    ] = None,
    brokers: Brokers = None,
    settings: Settings = None,
    command_config: CommandConfig = None,
    output: Output = Format.TEXT,
) -> None:
    """Find what holds back readers of committed records: which transaction, since when, why, and the safe way out.

    Status 0: every reader can read to the end; 1: something is held back, past its time-out, or could not be examined.
    """
    from einmal.inspection.doctor import examine
    from einmal.inspection.document import document

    with failures_reported(), inspecting(config_of(brokers, settings, command_config)) as (admin, reader):
        diagnosis = examine(admin, reader, topics, now_ms())
    diagnosis = with_options(diagnosis, _same_cluster(brokers, settings, command_config))
    if output.is_document:
        print(encoded(document(diagnosis), output))
    else:
        print_diagnosis(diagnosis)
    if not diagnosis.is_quiet:
        raise typer.Exit(1)


def _same_cluster(brokers: str | None, settings: Sequence[str] | None, command_config: Path | None) -> str:
    """The options with which a command that is printed finds the same cluster, without secrets."""
    from einmal.security.redaction import redacted_command

    options: list[tuple[str, object]] = []
    if brokers:
        options.append(("--brokers", brokers))
    if command_config is not None:
        options.append(("--command-config", command_config))
    if (profile := given_profile()) is not None:
        options.append(("--profile", profile))
    options += [("-X", setting) for setting in settings or () if redacted_command(["-X", setting])[1] == setting]
    return "".join(f" {name} {shlex.quote(str(value))}" for name, value in options)


@txn.command()
def show(
    transactional_id: Annotated[str, typer.Argument(autocompletion=transactional_ids)],
    brokers: Brokers = None,
    settings: Settings = None,
    command_config: CommandConfig = None,
    output: Output = Format.TEXT,
) -> None:
    """Show an open transaction's records: partitions, first and last offset, and how many."""
    from einmal.inspection.document import document
    from einmal.inspection.transaction import show as show_transaction

    with failures_reported(), inspecting(config_of(brokers, settings, command_config)) as (admin, reader):
        shown = show_transaction(admin, reader, transactional_id, now_ms())
    if output.is_document:
        print(encoded(document(shown), output))
        return
    of = ("transactional_id", "state", "coordinator", "producer_id", "producer_epoch", "timeout_ms", "age_ms")
    parts = ("topic", "partition", "first_offset", "last_offset", "records")
    print_sections(
        {
            "transaction": ([{name: getattr(shown.transaction, name) for name in of}], of),
            "records": ([{name: getattr(partition, name) for name in parts} for partition in shown.parts], parts),
        },
        output,
    )
    if not shown.transaction.is_open:
        note("note: no transaction is open; coordinators forget the partitions of one that is ended")
    elif "partitions" in shown.transaction.unknown:
        note(f"note: partitions: {printable(shown.transaction.unknown['partitions'])}")
    for partition in shown.parts:
        for why in dict.fromkeys(partition.unknown.values()):
            note(f"note: {partition.topic}-{partition.partition}: {printable(why)}")


@txn.command("list")
def list_transactions(
    states: Annotated[
        list[str] | None, typer.Option("--state", help="Only these states, such as Ongoing or PrepareCommit.")
    ] = None,
    duration_filter: Annotated[
        int, typer.Option(metavar="MS", help="Only transactions that began longer ago, in milliseconds.")
    ] = -1,
    brokers: Brokers = None,
    settings: Settings = None,
    command_config: CommandConfig = None,
    output: Output = Format.TEXT,
) -> None:
    """List transactional ids and the states of their transactions."""
    from einmal.client import Admin

    with failures_reported(), Admin(config_of(brokers, settings, command_config)) as admin:
        transactions = admin.list_transactions(states=states or (), longer_than_ms=duration_filter)
    rows = [
        {
            "coordinator": transaction.coordinator_id,
            "transactional_id": transaction.transactional_id,
            "producer_id": transaction.producer_id,
            "state": transaction.state,
        }
        for transaction in transactions
    ]
    print_rows(rows, ("coordinator", "transactional_id", "producer_id", "state"), output)


@txn.command()
def describe(
    names: Annotated[list[str], typer.Argument(metavar="TRANSACTIONAL_ID...", autocompletion=transactional_ids)],
    brokers: Brokers = None,
    settings: Settings = None,
    command_config: CommandConfig = None,
    output: Output = Format.TEXT,
) -> None:
    """Show transactional ids: identity, state, start, timeout, and the partitions of an open transaction.

    A transaction of a two-phase commit has no timeout (KIP-939).
    """
    from einmal.client import Admin

    with failures_reported(), Admin(config_of(brokers, settings, command_config)) as admin:
        outcomes = for_each(names, lambda name: admin.describe_transactions([name])[name])
    now = now_ms()
    rows = [
        {
            "coordinator": transaction.coordinator_id,
            "transactional_id": transaction.transactional_id,
            "producer_id": transaction.producer_id,
            "producer_epoch": transaction.producer_epoch,
            "state": transaction.state,
            "two_phase_commit": transaction.is_two_phase,
            "timeout_ms": None if transaction.is_two_phase else transaction.timeout_ms,
            "start_timestamp": transaction.start_time if transaction.start_time >= 0 else None,
            "duration_ms": max(0, now - transaction.start_time) if transaction.is_open else None,
            "topic_partitions": [str(partition) for partition in transaction.partitions],
        }
        for transaction in outcomes.done.values()
    ]
    columns = ("coordinator", "transactional_id", "producer_id", "producer_epoch", "state", "two_phase_commit")
    if rows or output.is_document:
        print_rows(rows, (*columns, "timeout_ms", "start_timestamp", "duration_ms", "topic_partitions"), output)
    outcomes.exit()


@txn.command("describe-producers")
def describe_producers(
    topic: Topic,
    partition: Partition = None,
    brokers: Brokers = None,
    settings: Settings = None,
    command_config: CommandConfig = None,
    output: Output = Format.TEXT,
) -> None:
    """Show every producer in the states of the partitions' leaders, and the start of its open transaction."""
    from einmal.client import Admin, TopicPartition

    with failures_reported(), Admin(config_of(brokers, settings, command_config)) as admin:
        indexes = list(admin.describe_topics([topic])[topic].partitions) if partition is None else [partition]
        producers, unseen = admin.describe_producers_each([TopicPartition(topic, index) for index in indexes])
    rows = [
        {
            "partition": producer.topic_partition.partition,
            "producer_id": producer.producer_id,
            "producer_epoch": producer.producer_epoch,
            "latest_coordinator_epoch": producer.coordinator_epoch,
            "last_sequence": producer.last_sequence,
            "last_timestamp": producer.last_timestamp,
            "current_transaction_start_offset": _or_none(producer.current_transaction_start_offset),
        }
        for producer in sorted(producers, key=lambda producer: (producer.topic_partition, producer.producer_id))
    ]
    columns = (
        "partition",
        "producer_id",
        "producer_epoch",
        "latest_coordinator_epoch",
        "last_sequence",
        "last_timestamp",
    )
    print_rows(rows, (*columns, "current_transaction_start_offset"), output)
    _report_unseen(unseen)


def _report_unseen(unseen: Mapping[Any, KafkaError]) -> None:
    """Status 1 where a partition, or a topic, could not be asked: its producers are not known."""
    for partition_or_topic, error in unseen.items():
        print(
            f"warning: {printable(str(partition_or_topic))} is not among these: {printable(str(error))}",
            file=sys.stderr,
        )
    if unseen:
        raise typer.Exit(1)


def _or_none(offset: int) -> int | None:
    return offset if offset >= 0 else None


@txn.command("find-hanging")
def find_hanging(
    topics: Annotated[
        list[str] | None, typer.Option("--topic", help="Only these topics.", autocompletion=topic_names)
    ] = None,
    max_timeout_ms: Annotated[
        int, typer.Option(help="The brokers' transaction.max.timeout.ms: a younger transaction may be alive.")
    ] = 900_000,
    brokers: Brokers = None,
    settings: Settings = None,
    command_config: CommandConfig = None,
    output: Output = Format.TEXT,
) -> None:
    """Find open transactions in partitions that no coordinator will end. They block read_committed readers.

    A partition that cannot be asked is a warning, and then the status is 1: a transaction may hang there.
    """
    from einmal.client import Admin
    from einmal.inspection.reading import topics_each

    with failures_reported(), Admin(config_of(brokers, settings, command_config)) as admin:
        described, missing = (None, {}) if topics is None else topics_each(admin, topics)
        hanging = admin.find_hanging_transactions(described, last_timestamp_before=now_ms() - max_timeout_ms)
    rows = [
        {
            "topic": producer.topic_partition.topic,
            "partition": producer.topic_partition.partition,
            "producer_id": producer.producer_id,
            "producer_epoch": producer.producer_epoch,
            "coordinator_epoch": producer.coordinator_epoch,
            "start_offset": producer.current_transaction_start_offset,
            "last_timestamp": producer.last_timestamp,
        }
        for producer in hanging.producers
    ]
    columns = ("topic", "partition", "producer_id", "producer_epoch", "coordinator_epoch", "start_offset")
    print_rows(rows, (*columns, "last_timestamp"), output)
    unseen = f"transactions that began or wrote within {max_timeout_ms:,} ms, and open ones of their coordinators"
    note(f"note: not looked for: {unseen} (einmal txn doctor shows these)")
    if rows:
        note(f"note: {HIDDEN}")
    _report_unseen({name: error for some in (missing, hanging.unseen) for name, error in some.items()})


@txn.command()
def abort(
    transactional_id: Annotated[
        str | None,
        typer.Argument(
            help="Fence its producer and abort its open transaction in all partitions.",
            autocompletion=transactional_ids,
        ),
    ] = None,
    topic: Annotated[
        str | None, typer.Option("--topic", help="Topic of the hanging transaction.", autocompletion=topic_names)
    ] = None,
    partition: Annotated[
        int | None,
        typer.Option("--partition", min=0, help="Partition of the hanging transaction, if the topic has several."),
    ] = None,
    start_offset: Annotated[
        int | None, typer.Option("--start-offset", help="First offset of the hanging transaction.")
    ] = None,
    yes: Annotated[bool, typer.Option("-y", "--yes", help="Do not ask for confirmation.")] = False,
    brokers: Brokers = None,
    settings: Settings = None,
    command_config: CommandConfig = None,
    output: Output = Format.TEXT,
) -> None:
    """Abort an open transaction through its coordinator, or a hanging one in a single partition."""
    if (transactional_id is None) == (topic is None) or (topic is None) != (start_offset is None):
        raise typer.BadParameter("give a TRANSACTIONAL_ID, or --topic, --partition and --start-offset")
    config = config_of(brokers, settings, command_config)
    if transactional_id is not None:
        status = _abort_through_coordinator(config, transactional_id, yes)
        print_rows([{"transactional_id": transactional_id, "status": status}], ("transactional_id", "status"), output)
    elif topic is not None and start_offset is not None:
        partition = _only_partition(config, topic) if partition is None else partition
        confirm(f"Write an abort marker into {topic}-{partition}, past the coordinator?", yes)
        _abort_in_partition(config, topic, partition, start_offset)
        row = {"topic": topic, "partition": partition, "start_offset": start_offset, "status": "aborted"}
        print_rows([row], tuple(row), output)


def _only_partition(config: dict[str, Any], topic: str) -> int:
    """The partition of a topic that has one. Raises typer.BadParameter: a marker goes nowhere unasked."""
    from einmal.client import Admin

    with failures_reported(), Admin(config) as admin:
        indexes = list(admin.describe_topics([topic])[topic].partitions)
    if len(indexes) != 1:
        raise typer.BadParameter(f"topic {topic!r} has {len(indexes)} partitions: name one with --partition")
    return indexes[0]


def _abort_through_coordinator(config: dict[str, str], transactional_id: str, yes: bool) -> str:
    """Abort the open transaction by acquiring its transactional.id with InitProducerId, as a new instance does.

    Returns "aborted"; "fenced" if none was open, because it had never begun or its end was decided already.
    """
    from einmal.client import Admin, TransactionDriver

    with failures_reported():
        with Admin(config) as admin:
            # Taking over an id that nobody has would make it.
            transaction = admin.describe_transactions([transactional_id])[transactional_id]
            if transaction.is_two_phase and transaction.state == "Ongoing":
                prepared = f"{transaction.producer_id}:{transaction.producer_epoch}"
                print(f"warning: {transactional_id!r} takes part in a two-phase commit", file=sys.stderr)
                print(
                    f"hint: if its database has committed {prepared}, this tears it: start its program", file=sys.stderr
                )
                print("hint: instead, which completes it (docs/two-phase-commit.md)", file=sys.stderr)
            confirm(_question(transaction), yes)
            if not yes:
                _refuse_another(transaction, admin.describe_transactions([transactional_id])[transactional_id])
        with TransactionDriver({**config, "transactional.id": transactional_id}) as driver:
            driver.init_producer_id()
    return "aborted" if transaction.state == "Ongoing" else "fenced"


def _question(transaction: TransactionDescription) -> str:
    """Has the age, by which one sees whether it is the transaction that was meant: its producer may have come back."""
    fence = f"Fence the producer of {transaction.transactional_id!r}"
    if not transaction.is_open:
        return f"No transaction is open ({transaction.state}). {fence}?"
    if transaction.state != "Ongoing":
        return f"Its coordinator is ending the transaction ({transaction.state}), which cannot change. {fence}?"
    seconds = max(0, now_ms() - transaction.start_time) / 1000
    return f"{fence} and abort its transaction, open for {seconds:,.0f} s?"


def _refuse_another(asked: TransactionDescription, now: TransactionDescription) -> None:
    """End the command where the transaction is not the one that the user was asked about."""
    seen, present = (
        (one.producer_id, one.producer_epoch, one.state, one.start_time if one.is_open else None)
        for one in (asked, now)
    )
    if seen != present:
        state = f"{now.state}, producer id {now.producer_id}, epoch {now.producer_epoch}"
        print(f"error: {asked.transactional_id!r} has changed since you were asked: {state}", file=sys.stderr)
        print("hint: nothing was done; repeat the command if that is to be ended, too", file=sys.stderr)
        raise typer.Exit(1)


def _abort_in_partition(config: dict[str, str], topic: str, partition: int, start_offset: int) -> None:
    from einmal.client import Admin, TopicPartition

    at = TopicPartition(topic, partition)
    with failures_reported(), Admin(config) as admin:
        open_here = {
            producer.current_transaction_start_offset: producer
            for producer in admin.describe_producers([at])
            if producer.current_transaction_start_offset >= 0
        }
        if start_offset not in open_here:
            known = ", ".join(map(str, sorted(open_here))) or "none"
            print(f"error: no open transaction of {at} begins at {start_offset}", file=sys.stderr)
            print(f"hint: open ones begin at: {known}", file=sys.stderr)
            raise typer.Exit(1)
        producer = open_here[start_offset]
        managed = admin.list_managed_transactions([producer.producer_id])
        if managed:
            name = managed[0].transactional_id
            what = f"the transaction of {at} that begins at {start_offset} does not hang"
            print(f"error: {what}: its coordinator manages it, as {name!r}; a marker would tear it", file=sys.stderr)
            doctor = f"einmal txn doctor --topic {shlex.quote(topic)}"
            print(f"hint: what ends it everywhere: {doctor}, with the same options", file=sys.stderr)
            raise typer.Exit(1)
        admin.abort_transaction(
            at, producer.producer_id, producer.producer_epoch, coordinator_epoch=producer.coordinator_epoch
        )
