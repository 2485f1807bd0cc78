"""``einmal topic``: create, list, describe and delete topics; produce and consume. On any Kafka cluster."""

from __future__ import annotations

import json
import re
import sys
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from einmal.cli.clients import (
    Brokers,
    CommandConfig,
    Offsets,
    Settings,
    config_of,
    failures_told,
    for_each,
    key_and_value,
)
from einmal.cli.formats import Format, Output
from einmal.cli.output import print_rows, print_sections

if TYPE_CHECKING:
    from concurrent.futures import Future

    from einmal.client import Consumer, ConsumerRecord, RecordMetadata, TopicPartition

topic = typer.Typer(help="Topics: create, list, describe, delete, produce, consume.", no_args_is_help=True)


@topic.command()
def create(
    names: Annotated[list[str], typer.Argument(metavar="TOPIC...")],
    partitions: Annotated[
        int, typer.Option("-p", "--partitions", help="Partitions per topic; -1: the broker's default.")
    ] = -1,
    replicas: Annotated[
        int, typer.Option("-r", "--replicas", help="Replicas per partition; -1: the broker's default.")
    ] = -1,
    topic_config: Annotated[
        list[str] | None, typer.Option("-c", "--topic-config", metavar="KEY=VALUE", help="Setting of the topics.")
    ] = None,
    if_not_exists: Annotated[bool, typer.Option(help="Do not fail if the topic exists.")] = False,
    brokers: Brokers = None,
    settings: Settings = None,
    command_config: CommandConfig = None,
    output: Output = Format.TEXT,
) -> None:
    """Create topics, and report the outcome for each."""
    from einmal.client import Admin, NewTopic

    configs = dict(map(key_and_value, topic_config or ()))
    with failures_told(), Admin(config_of(brokers, settings, command_config)) as admin:

        def make(name: str) -> str:
            created = admin.create_topics([NewTopic(name, partitions, replicas, configs)], if_not_exists=if_not_exists)
            return "created" if created else "exists"

        outcomes = for_each(names, make)
        outcomes.print("topic", output)
        outcomes.exit()


@topic.command("list")
def list_topics(
    internal: Annotated[bool, typer.Option("-i", "--internal", help="Include internal topics.")] = False,
    brokers: Brokers = None,
    settings: Settings = None,
    command_config: CommandConfig = None,
    output: Output = Format.TEXT,
) -> None:
    """List topics."""
    from einmal.client import Admin

    with failures_told(), Admin(config_of(brokers, settings, command_config)) as admin:
        described = admin.describe_topics()
    rows = [
        {
            "name": name,
            "partitions": len(each.partitions),
            "replicas": max((len(partition.replicas) for partition in each.partitions.values()), default=0),
        }
        for name, each in described.items()
        if internal or not each.is_internal
    ]
    print_rows(rows, ("name", "partitions", "replicas"), output)


@topic.command()
def describe(
    name: Annotated[str, typer.Argument(metavar="TOPIC")],
    brokers: Brokers = None,
    settings: Settings = None,
    command_config: CommandConfig = None,
    output: Output = Format.TEXT,
) -> None:
    """Show a topic's partitions with their offsets, and its own settings."""
    from einmal.client import EARLIEST, LATEST, Admin, IsolationLevel, TopicPartition

    with failures_told(), Admin(config_of(brokers, settings, command_config)) as admin:
        described = admin.describe_topics([name])[name]
        wanted = [TopicPartition(name, index) for index in described.partitions]
        log = Offsets(admin)
        starts, ends = log.of(wanted, EARLIEST), log.of(wanted, LATEST)
        stable = log.of(wanted, LATEST, IsolationLevel.READ_COMMITTED)
        configs = admin.describe_configs([name])[name]
    partitions = [
        {
            "partition": each.partition,
            "leader": each.leader,
            "epoch": each.leader_epoch,
            "replicas": list(each.replicas),
            "isr": list(each.isr),
            "log_start_offset": starts[at],
            "last_stable_offset": stable[at],
            "high_watermark": ends[at],
        }
        for at, each in zip(wanted, described.partitions.values(), strict=True)
    ]
    changed = [{"key": each.name, "value": each.value} for each in configs.values() if not each.is_default]
    summary = [{"name": name, "topic_id": str(described.topic_id), "internal": described.is_internal}]
    columns = ("partition", "leader", "epoch", "replicas", "isr")
    print_sections(
        {
            "summary": (summary, ("name", "topic_id", "internal")),
            "configs": (changed, ("key", "value")),
            "partitions": (partitions, (*columns, "log_start_offset", "last_stable_offset", "high_watermark")),
        },
        output,
    )


@topic.command()
def delete(
    names: Annotated[list[str], typer.Argument(metavar="TOPIC...")],
    brokers: Brokers = None,
    settings: Settings = None,
    command_config: CommandConfig = None,
    output: Output = Format.TEXT,
) -> None:
    """Delete topics and all their records, and report the outcome for each."""
    from einmal.client import Admin

    with failures_told(), Admin(config_of(brokers, settings, command_config)) as admin:

        def delete_one(name: str) -> str:
            admin.delete_topics([name])
            return "deleted"

        outcomes = for_each(names, delete_one)
        outcomes.print("topic", output)
        outcomes.exit()


# --- produce ------------------------------------------------------------------------------------------------------


@topic.command()
def produce(
    name: Annotated[str, typer.Argument(metavar="TOPIC")],
    key: Annotated[str | None, typer.Option("-k", "--key", help="Key of all records.")] = None,
    key_delimiter: Annotated[
        str | None, typer.Option("-K", "--key-delimiter", help="Separator of key and value in a line.")
    ] = None,
    partition: Annotated[int | None, typer.Option("-p", "--partition", min=0, help="Partition to write to.")] = None,
    headers: Annotated[
        list[str] | None, typer.Option("-H", "--header", metavar="KEY=VALUE", help="Header of all records.")
    ] = None,
    compression: Annotated[
        str, typer.Option("-z", "--compression", help="Codec: none, gzip, snappy, lz4 or zstd.")
    ] = "none",
    one_transaction: Annotated[
        str | None,
        typer.Option("--transactional-id", help="Write all lines in one transaction, under this transactional.id."),
    ] = None,
    brokers: Brokers = None,
    settings: Settings = None,
    command_config: CommandConfig = None,
    output: Output = Format.TEXT,
) -> None:
    """Write each line of stdin as a record, exactly once; print partition and offset of each record."""
    from einmal.client import Producer

    if key_delimiter == "":
        raise typer.BadParameter("--key-delimiter cannot be empty")
    fixed = {"key": key, "partition": partition, "headers": [_header(each) for each in headers or ()]}
    # A partition that is not there is waited for; a person does not want to wait for a minute.
    config = config_of(brokers, settings, command_config, "ProducerSettings")
    config = {"max.block.ms": 10_000, **config, "compression.type": compression}
    if one_transaction is not None:
        config["transactional.id"] = one_transaction
    sent: deque[Future[RecordMetadata]] = deque()
    with failures_told(), Producer(config) as producer:
        if one_transaction is None:
            for fields in _lines(key_delimiter, fixed):
                sent.append(producer.send(name, **fields))
                while sent[0].done() and len(sent) > 1:
                    _print_written(sent.popleft().result(), output)
        else:
            # A record's offset is printed once it is committed.
            with producer.transaction() as transaction:
                sent.extend(transaction.send(name, **fields) for fields in _lines(key_delimiter, fixed))
        for each in sent:
            _print_written(each.result(), output)


def _print_written(written: RecordMetadata, output: Format) -> None:
    if output is Format.JSON:
        print(json.dumps(written._asdict()))
    else:
        print(f"partition {written.partition} offset {written.offset} timestamp {written.timestamp}")


def _lines(delimiter: str | None, fixed: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for line in sys.stdin.buffer:
        value = line.rstrip(b"\n")
        if delimiter is None:
            yield {**fixed, "value": value}
        else:
            key, found, rest = value.partition(delimiter.encode())
            yield {**fixed, "key": key if found else fixed["key"], "value": rest if found else value}


def _header(text: str) -> tuple[str, bytes]:
    name, value = key_and_value(text)
    return name, value.encode()


# --- consume ------------------------------------------------------------------------------------------------------

_OFFSET: Final = re.compile(r"^(?P<at>start|end|\d+|@\d+)(?::(?P<until>end|\d+))?$")
_BLANK: Final = {r"\n": "\n", r"\t": "\t", "%%": "%"}
_LETTERS: Final = re.compile(r"%[tpokvdh%]|\\[nt]")


@topic.command()
def consume(
    names: Annotated[list[str], typer.Argument(metavar="TOPIC...")],
    offset: Annotated[
        str,
        typer.Option(
            "-o",
            "--offset",
            help="First offset: start, end, an offset, or @ms. With an end, as in 'start:end' or '5:9', stop there.",
        ),
    ] = "start",
    number: Annotated[int | None, typer.Option("-n", "--num", min=1, help="Maximum number of records.")] = None,
    partitions: Annotated[
        list[int] | None, typer.Option("-p", "--partition", min=0, help="Only these partitions.")
    ] = None,
    group: Annotated[str | None, typer.Option("-g", "--group", help="Consumer group to join.")] = None,
    read_uncommitted: Annotated[
        bool, typer.Option("--read-uncommitted", help="Include records of open and aborted transactions.")
    ] = False,
    template: Annotated[
        str | None,
        typer.Option(
            "-f", "--template", help=r"%t topic, %p partition, %o offset, %k key, %v value, %d ms, %h headers."
        ),
    ] = None,
    brokers: Brokers = None,
    settings: Settings = None,
    command_config: CommandConfig = None,
    output: Output = Format.TEXT,
) -> None:
    """Print records: their values, a template's text, or JSON Lines. Only committed records by default."""
    from einmal.client import Consumer

    range_ = _OFFSET.match(offset)
    if range_ is None:
        raise typer.BadParameter(f"{offset!r} is not start, end, an offset or @ms, alone or with :end or :OFFSET")
    if group is not None and (partitions or range_["until"] or range_["at"] not in ("start", "end")):
        raise typer.BadParameter("a group has its own partitions and position: with --group, only -o start or -o end")
    config = config_of(brokers, settings, command_config, "ConsumerSettings")
    config["isolation.level"] = "read_uncommitted" if read_uncommitted else "read_committed"
    config["auto.offset.reset"] = "latest" if range_["at"] == "end" else "earliest"
    if group is not None:
        config["group.id"] = group
    show = _shower(template, output)
    with failures_told(), Consumer(config) as consumer:
        ends = None
        if group is not None:
            consumer.subscribe(names)
        else:
            assigned = [each for name in names for each in _chosen(consumer, name, partitions)]
            consumer.assign(assigned)
            _seek(consumer, assigned, range_["at"])
            ends = _ends(consumer, assigned, range_["until"])
        _print_records(consumer, number, ends, show)


def _chosen(consumer: Consumer, name: str, partitions: list[int] | None) -> list[TopicPartition]:
    """The topic's partitions, or those of them that were asked for. Raises UnknownTopic."""
    from einmal.client import TopicPartition
    from einmal.client.errors import UnknownTopic
    from einmal.types import ErrorCode

    known = consumer.partitions_for_topic(name)
    wanted = [TopicPartition(name, each) for each in partitions or ()] or known
    for each in wanted:
        if each not in known:
            raise UnknownTopic(
                ErrorCode.unknown_topic_or_partition,
                str(each),
                meaning=f"topic {name!r} has {len(known)} partition(s), counted from 0",
                what_to_do="choose another --partition",
            )
    return wanted


def _seek(consumer: Consumer, assigned: list[TopicPartition], at: str) -> None:
    if at.startswith("@"):
        for each, found in consumer.offsets_for_times(dict.fromkeys(assigned, int(at[1:]))).items():
            if found is None:
                consumer.seek_to_end(each)
            else:
                consumer.seek(each, found.offset)
    elif at.isdigit():
        for each in assigned:
            consumer.seek(each, int(at))


def _ends(consumer: Consumer, assigned: list[TopicPartition], until: str | None) -> dict[TopicPartition, int] | None:
    """Where to stop in each partition; None: never."""
    if until is None:
        return None
    ends = consumer.end_offsets(*assigned)
    return ends if until == "end" else {each: min(int(until), end) for each, end in ends.items()}


def _print_records(
    consumer: Consumer,
    number: int | None,
    ends: dict[TopicPartition, int] | None,
    show: Callable[[ConsumerRecord], None],
) -> None:
    printed = 0
    while ends is None or any(consumer.position(each) < end for each, end in ends.items()):
        # Never more than are printed: a group's position moves past everything that poll gave.
        for record in consumer.poll(500, None if number is None else min(500, number - printed)):
            if ends is None or record.offset < ends[record.topic_partition]:
                show(record)
                printed += 1
        if printed == number:
            return
        sys.stdout.flush()


def _shower(template: str | None, output: Format) -> Callable[[ConsumerRecord], None]:
    if output is Format.JSON:
        return lambda record: print(json.dumps(_as_json(record)))
    if template is not None:
        return lambda record: print(_LETTERS.sub(lambda match: _letter(match[0], record), template), end="")
    return lambda record: print(_text(record.value))


def _letter(letter: str, record: ConsumerRecord) -> str:
    if letter in _BLANK:
        return _BLANK[letter]
    values: dict[str, Any] = {
        "%t": record.topic,
        "%p": record.partition,
        "%o": record.offset,
        "%d": record.timestamp,
        "%k": _text(record.key),
        "%v": _text(record.value),
        "%h": ",".join(f"{each.key}={_text(each.value)}" for each in record.headers),
    }
    return str(values[letter])


def _as_json(record: ConsumerRecord) -> dict[str, Any]:
    return {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        "key": _json_value(record.key),
        "value": _json_value(record.value),
        "headers": [{"key": each.key, "value": _json_value(each.value)} for each in record.headers],
    }


def _text(value: bytes | None) -> str:
    return "" if value is None else value.decode(errors="replace")


def _json_value(value: bytes | None) -> Any:
    """Text if it is UTF-8; else an object that names the encoding, because JSON has no bytes."""
    if value is None:
        return None
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"hex": value.hex()}
