"""``einmal topic``: create, list, describe and delete topics; produce and consume. On any Kafka cluster."""

from __future__ import annotations

import os
import re
import sys
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

import typer

from einmal.cli.aliases import WithAliases
from einmal.cli.clients import (
    Brokers,
    CommandConfig,
    LogOffsets,
    Settings,
    config_of,
    failures_reported,
    for_each,
    inspecting,
    key_and_value,
    without_repetition,
)
from einmal.cli.completion import group_names, topic_names
from einmal.cli.confirmation import confirm
from einmal.cli.printing.counted_output import CountedOutput
from einmal.cli.printing.documents import encoded
from einmal.cli.printing.formats import Format, Output
from einmal.cli.printing.messages import note
from einmal.cli.printing.output import Row, Section, ServiceOutput, print_rows, print_sections, printable
from einmal.cli.printing.record_output import LETTERS_HELP, Shown, shower, unescaped

if TYPE_CHECKING:
    from concurrent.futures import Future

    from einmal.client import Admin, Consumer, ConsumerRecord, Producer, RecordMetadata, TopicPartition
    from einmal.client.errors import KafkaError
    from einmal.inspection.topic import PartitionContent

topic = typer.Typer(
    cls=WithAliases,
    help="Topics: create, list, describe, alter, delete, produce, consume.",
    no_args_is_help=True,
)


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

    configs = without_repetition(map(key_and_value, topic_config or ()))
    with failures_reported(), Admin(config_of(brokers, settings, command_config)) as admin:

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

    with failures_reported(), Admin(config_of(brokers, settings, command_config)) as admin:
        described = admin.describe_topics()
    rows = [
        {
            "name": name,
            "partitions": len(metadata.partitions),
            "replicas": max((len(partition.replicas) for partition in metadata.partitions.values()), default=0),
            "internal": metadata.is_internal,
            "topic_id": str(metadata.topic_id),
        }
        for name, metadata in described.items()
        if internal or not metadata.is_internal
    ]
    more = ("internal", "topic_id") if output.has_all else ()
    print_rows(rows, ("name", "partitions", "replicas", *more), output)


@topic.command()
def describe(
    name: Annotated[str, typer.Argument(metavar="TOPIC", autocompletion=topic_names)],
    content: Annotated[
        bool,
        typer.Option(
            "--content",
            help="Read the partitions, those of up to 100,000 offsets, and count committed and aborted records and "
            "markers; JSON has the range of each aborted or open transaction.",
        ),
    ] = False,
    brokers: Brokers = None,
    settings: Settings = None,
    command_config: CommandConfig = None,
    output: Output = Format.TEXT,
) -> None:
    """Show a topic's partitions with their offsets, and its own settings."""
    from einmal.client import EARLIEST, LATEST, IsolationLevel, TopicPartition
    from einmal.inspection.reading import log_ends_of
    from einmal.inspection.topic import contents_of

    with failures_reported(), inspecting(config_of(brokers, settings, command_config)) as (admin, reader):
        described = admin.describe_topics([name])[name]
        wanted = [TopicPartition(name, index) for index in described.partitions]
        log = LogOffsets(admin)
        starts, ends = log.of(wanted, EARLIEST), log.of(wanted, LATEST)
        stable = log.of(wanted, LATEST, IsolationLevel.READ_COMMITTED)
        log_ends, _ = log_ends_of(admin, wanted) if output.has_all else ({}, {})
        configs = _configs_of(admin, name)
        contents = contents_of(admin, reader, name) if content else ()
    partitions = [
        {
            "partition": partition.partition,
            "leader": partition.leader,
            "epoch": partition.leader_epoch,
            "replicas": list(partition.replicas),
            "isr": list(partition.isr),
            "log_start_offset": starts[at],
            "last_stable_offset": stable[at],
            "high_watermark": ends[at],
            "log_end_offset": log_ends.get(at),
        }
        for at, partition in zip(wanted, described.partitions.values(), strict=True)
    ]
    summary = [{"name": name, "topic_id": str(described.topic_id), "internal": described.is_internal}]
    columns = ("partition", "leader", "epoch", "replicas", "isr")
    offsets = ("log_start_offset", "last_stable_offset", "high_watermark")
    more = ("log_end_offset",) if output.has_all else ()
    sections: dict[str, Section] = {
        "summary": (summary, ("name", "topic_id", "internal")),
        "configs": (configs, ("key", "value")),
        "partitions": (partitions, (*columns, *offsets, *more)),
    }
    if content:
        sections["content"] = (
            [_content_row(partition_content) for partition_content in contents],
            _content_columns(output),
        )
    print_sections(sections, output)


def _configs_of(admin: Admin, name: str) -> list[Row] | None:
    """The topic's own settings; None, after a warning, where a permission lacks that its records do not need."""
    from einmal.client.errors import NotAuthorized

    try:
        configs = admin.describe_configs([name])[name].values()
    except NotAuthorized as error:
        print(f"warning: settings are not known: {printable(str(error))}", file=sys.stderr)
        return None
    return [{"key": config.name, "value": config.value} for config in configs if not config.is_default]


def _content_columns(output: Format) -> tuple[str, ...]:
    counts = ("partition", "committed", "aborted", "markers", "behind")
    return (*counts, "aborted_ranges", "open_ranges", "unknown") if output.is_document else counts


def _content_row(content: PartitionContent) -> dict[str, Any]:
    from einmal.inspection.document import document

    row: dict[str, Any] = document(content)
    for why in dict.fromkeys(content.unknown.values()):
        note(f"note: partition {content.partition}: {printable(why)}")
    return row


@topic.command()
def alter(
    names: Annotated[list[str], typer.Argument(metavar="TOPIC...", autocompletion=topic_names)],
    changed: Annotated[
        list[str] | None, typer.Option("-c", "--topic-config", metavar="KEY=VALUE", help="Set a setting.")
    ] = None,
    unset: Annotated[
        list[str] | None, typer.Option("-d", "--delete-config", metavar="KEY", help="Take one back to its default.")
    ] = None,
    partitions: Annotated[
        int | None, typer.Option("-p", "--partitions", min=1, help="So many partitions in all; never fewer than now.")
    ] = None,
    brokers: Brokers = None,
    settings: Settings = None,
    command_config: CommandConfig = None,
    output: Output = Format.TEXT,
) -> None:
    """Change settings or add partitions of topics, and report the outcome for each: all of it, or nothing where one
    change is refused."""
    from einmal.client import Admin

    wanted = without_repetition(map(key_and_value, changed or ()))
    if both := sorted(wanted.keys() & set(unset or ())):
        raise typer.BadParameter(f"{', '.join(both)}: set by -c and taken back by -d; give one of them")
    configs: dict[str, str | None] = {**wanted, **dict.fromkeys(unset or ())}
    if not configs and partitions is None:
        raise typer.BadParameter("nothing to change: give -c KEY=VALUE, -d KEY or -p NUMBER")
    with failures_reported(), Admin(config_of(brokers, settings, command_config)) as admin:

        def alter_one(name: str) -> str:
            _refuse_unknown(admin, name, unset or ())
            if configs and partitions is not None:
                # What is refused afterwards would leave half of it done.
                admin.create_partitions({name: partitions}, validate_only=True)
            if configs:
                admin.alter_configs(name, configs)
            if partitions is not None:
                admin.create_partitions({name: partitions})
            return "altered"

        outcomes = for_each(names, alter_one)
        outcomes.print("topic", output)
        outcomes.exit()


def _refuse_unknown(admin: Admin, name: str, settings: Sequence[str]) -> None:
    """Brokers take back a setting that does not exist without a word: a misspelt one would remain as it is. Raises
    RequestRefused."""
    from einmal.client.errors import NotAuthorized, error_for
    from einmal.types import ErrorCode

    if not settings:
        return
    try:
        known = admin.describe_configs([name])[name]
    except NotAuthorized:
        # The change may be allowed all the same.
        return
    if unknown := [setting for setting in settings if setting not in known]:
        raise error_for(ErrorCode.invalid_config, f"topic {name!r} has no setting {', '.join(unknown)}")


@topic.command()
def delete(
    names: Annotated[list[str], typer.Argument(metavar="TOPIC...", autocompletion=topic_names)],
    yes: Annotated[bool, typer.Option("-y", "--yes", help="Do not ask for confirmation.")] = False,
    brokers: Brokers = None,
    settings: Settings = None,
    command_config: CommandConfig = None,
    output: Output = Format.TEXT,
) -> None:
    """Delete topics and all their records, and report the outcome for each. Asks first on a terminal."""
    from einmal.client import Admin

    question = f"Delete {', '.join(map(printable, names))} with all records, for ever?"
    # A script has nobody to ask.
    confirm(question, yes or not sys.stdin.isatty())
    with failures_reported(), Admin(config_of(brokers, settings, command_config)) as admin:

        def delete_one(name: str) -> str:
            admin.delete_topics([name])
            return "deleted"

        outcomes = for_each(names, delete_one)
        outcomes.print("topic", output)
        outcomes.exit()


# --- produce ------------------------------------------------------------------------------------------------------


@topic.command()
def produce(
    name: Annotated[str, typer.Argument(metavar="TOPIC", autocompletion=topic_names)],
    key: Annotated[str | None, typer.Option("-k", "--key", help="Key of all records.")] = None,
    key_delimiter: Annotated[
        str | None,
        typer.Option(
            "-K", "--key-delimiter", help=r"Separator of key and value in a line; \t is a tab, as in consume -f."
        ),
    ] = None,
    partition: Annotated[int | None, typer.Option("-p", "--partition", min=0, help="Partition to write to.")] = None,
    headers: Annotated[
        list[str] | None, typer.Option("-H", "--header", metavar="KEY=VALUE", help="Header of all records.")
    ] = None,
    compression: Annotated[
        str | None,
        typer.Option("-z", "--compression", help="Codec: none, gzip, snappy, lz4 or zstd; else compression.type."),
    ] = None,
    tombstone: Annotated[bool, typer.Option("-Z", "--tombstone", help="Write an empty value as null.")] = False,
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

    delimiter = None if key_delimiter is None else unescaped(key_delimiter)
    if delimiter is not None and (not delimiter or b"\n" in delimiter):
        raise typer.BadParameter("--key-delimiter cannot be empty, or have a line break: a record is one line")
    fixed = {
        "key": None if key is None else os.fsencode(key),
        "partition": partition,
        "headers": [_header(header) for header in headers or ()],
    }
    # A partition that is not there is waited for; a person does not want to wait for a minute.
    config = config_of(brokers, settings, command_config, "ProducerSettings")
    config = {"max.block.ms": 10_000, **config}
    if compression is not None:
        config["compression.type"] = compression
    if one_transaction is not None:
        config["transactional.id"] = one_transaction
    with failures_reported(), Producer(config) as producer:
        lines = _lines(delimiter, fixed, tombstone, producer.settings.max_request_size)
        if one_transaction is None:
            _produce_each(producer, name, lines, output)
            return
        # A record's offset is printed once it is committed.
        with producer.transaction() as transaction:
            sent = [transaction.send(name, **fields) for fields in lines]
        for future in sent:
            print(_written_line(future.result(), output))


def _produce_each(producer: Producer, name: str, lines: Iterator[dict[str, Any]], output: Format) -> None:
    """Whatever ends the input, an error or a signal: each line that is written is printed. Raises the first error.

    Where nobody reads what is printed, the input is still written to its end.
    """
    sent: deque[Future[RecordMetadata]] = deque()
    printed = ServiceOutput()
    try:
        for fields in lines:
            sent.append(producer.send(name, **fields))
            while len(sent) > 1 and _is_written(sent[0]):
                printed.print(_written_line(sent.popleft().result(), output), flush=False)
            if sent[0].done() and not _is_written(sent[0]):
                break
    finally:
        producer.flush()
        errors = [error for future in sent if (error := future.exception()) is not None]
        for future in filter(_is_written, sent):
            printed.print(_written_line(future.result(), output), flush=False)
        printed.flush()
        if len(errors) > 1:
            print(f"warning: {len(errors):,} of the lines that were read are not written", file=sys.stderr)
    if errors:
        raise errors[0]
    if printed.failure is not None:
        raise printed.failure


def _is_written(sent: Future[RecordMetadata]) -> bool:
    return sent.done() and sent.exception() is None


def _written_line(written: RecordMetadata, output: Format) -> str:
    if output.is_document:
        return encoded(written._asdict(), output)
    return f"partition {written.partition} offset {written.offset} timestamp {written.timestamp}"


def _lines(delimiter: bytes | None, fixed: dict[str, Any], tombstone: bool, size_max: int) -> Iterator[dict[str, Any]]:
    """``size_max``: of a record; of a longer line no more is read, it may have no end. Raises RecordTooLarge."""
    longest = size_max + len(delimiter or b"") + 1
    for number, line in enumerate(iter(partial(sys.stdin.buffer.readline, longest + 1), b""), 1):
        if len(line) > longest:
            raise _too_long(number, size_max)
        value = line.rstrip(b"\n")
        key = fixed["key"]
        if delimiter is not None:
            before, separator, after = value.partition(delimiter)
            key, value = (before, after) if separator else (key, value)
        yield {**fixed, "key": key, "value": None if tombstone and not value else value}


def _too_long(number: int, size_max: int) -> KafkaError:
    from einmal.client.errors import RecordTooLarge
    from einmal.types import ErrorCode

    detail = f"line {number:,}; max.request.size is {size_max}"
    return RecordTooLarge(
        ErrorCode.message_too_large,
        detail,
        meaning="a line is longer than the producer's max.request.size",
        what_to_do="raise max.request.size, or split the line; lines from here on are not written",
    )


def _header(text: str) -> tuple[str, bytes]:
    name, value = key_and_value(text)
    return name, os.fsencode(value)


# --- consume ------------------------------------------------------------------------------------------------------

_OFFSET: Final = re.compile(r"^(?P<at>start|end|-?\d+|@\d+)(?::(?P<until>end|\d+))?$")
_OTHER_WORDS: Final = {"earliest": "start", "beginning": "start", "latest": "end"}
_OFFSET_MAX: Final = 9_223_372_036_854_775_807
_FOLLOW: Final = _OFFSET_MAX
"""The end of what is read where there is none."""


@topic.command()
def consume(
    names: Annotated[list[str], typer.Argument(metavar="TOPIC...", autocompletion=topic_names)],
    offset: Annotated[
        str | None,
        typer.Option(
            "-o",
            "--offset",
            help="First offset: start, end, an offset, -N for the last N, or @ms. With an end, as in 'start:end' or "
            "'5:9', stop there. earliest, latest and s@ms are accepted, too. Default: that of auto.offset.reset, else "
            "start.",
        ),
    ] = None,
    number: Annotated[int | None, typer.Option("-n", "--num", min=1, help="Maximum number of records.")] = None,
    partitions: Annotated[
        list[int] | None, typer.Option("-p", "--partition", min=0, help="Only these partitions.")
    ] = None,
    group: Annotated[
        str | None, typer.Option("-g", "--group", help="Consumer group to join.", autocompletion=group_names)
    ] = None,
    read_uncommitted: Annotated[
        bool, typer.Option("--read-uncommitted", help="Include records of open and aborted transactions.")
    ] = False,
    template: Annotated[
        str | None,
        typer.Option("-f", "--template", help=LETTERS_HELP),
    ] = None,
    control_records: Annotated[
        bool,
        typer.Option(
            "--print-control-records",
            help="Print the log as it is: markers, and records of open and aborted transactions. Needs an end in -o.",
        ),
    ] = False,
    brokers: Brokers = None,
    settings: Settings = None,
    command_config: CommandConfig = None,
    output: Output = Format.TEXT,
) -> None:
    """Print records: their values as they are, a template's text, or JSON Lines. Only committed records by default.

    An offset that a partition does not have any more, or not yet, is a warning: nothing before it is read.
    """
    from einmal.client import Consumer

    config = config_of(brokers, settings, command_config, "ConsumerSettings")
    reset = config.get("auto.offset.reset")
    range_ = _OFFSET.match(_in_our_words(offset or ("end" if reset == "latest" else "start")))
    if range_ is None or any(int(number) > _OFFSET_MAX for number in re.findall(r"\d+", range_[0])):
        raise typer.BadParameter(f"{offset!r} is not start, end, an offset, -N or @ms, alone or with :end or :OFFSET")
    if group is not None and (partitions or range_["until"] or range_["at"] not in ("start", "end")):
        raise typer.BadParameter("a group has its own partitions and position: with --group, only -o start or -o end")
    if read_uncommitted:
        config["isolation.level"] = "read_uncommitted"
    config.setdefault("isolation.level", "read_committed")
    if offset is not None or reset is None:
        # A position that was asked for is never replaced by another one without a word.
        config["auto.offset.reset"] = {"start": "earliest", "end": "latest"}.get(range_["at"], "none")
    if group is not None:
        config["group.id"] = group
    elif unused := [name for name in ("group.id", "group.instance.id") if config.pop(name, None)]:
        # It would commit where this command was, and the group's own program would continue there.
        note(f"note: {' and '.join(unused)}: not used without --group; the group's position stays")
    show = shower(template, output)
    if control_records and (group is not None or range_["until"] is None):
        raise typer.BadParameter("--print-control-records needs an end, as in -o start:end, and no --group")
    with failures_reported(), Consumer(config) as consumer:
        if group is not None:
            consumer.subscribe(names)
            _print_records(consumer, number, None, show)
            return
        assigned = [partition for name in names for partition in _chosen(consumer, name, partitions)]
        ranges, lacking = _ranges(consumer, assigned, range_["at"], range_["until"])
        if control_records:
            _print_log(config, ranges, number, show)
            return
        is_followed = range_["until"] is None
        _assign(consumer, ranges, lacking if is_followed else [], range_["at"])
        _print_records(consumer, number, ranges if ranges or not is_followed else None, show)
    if lacking and not is_followed:
        raise typer.Exit(1)


def _in_our_words(offset: str) -> str:
    """An offset as other tools write it: Kafka's words, and kcat's s@ms."""
    at, colon, until = offset.removeprefix("s").partition(":") if offset.startswith("s@") else offset.partition(":")
    return _OTHER_WORDS.get(at, at) + colon + _OTHER_WORDS.get(until, until)


def _chosen(consumer: Consumer, name: str, partitions: list[int] | None) -> list[TopicPartition]:
    """The topic's partitions, or those of them that were asked for. Raises UnknownTopic."""
    from einmal.client import TopicPartition
    from einmal.client.errors import UnknownTopic
    from einmal.types import ErrorCode

    known = consumer.partitions_for_topic(name)
    wanted = [TopicPartition(name, partition) for partition in partitions or ()] or known
    for partition in wanted:
        if partition not in known:
            raise UnknownTopic(
                ErrorCode.unknown_topic_or_partition,
                str(partition),
                meaning=f"topic {name!r} has {len(known)} partition(s), counted from 0",
                what_to_do="choose another --partition",
            )
    return wanted


class _Range(NamedTuple):
    """Range of a partition that is read: records from ``first`` to before ``last``. Reading begins at offset
    ``begin``."""

    begin: int
    first: int
    last: int


def _range_of(at: str, until: str | None, start: int, end: int, since: int | None) -> _Range:
    """``since``: the offset that belongs to a time, -1 for none. An offset after the end is waited for."""
    if at.isdigit():
        chosen = int(at)
    elif at.startswith("-"):
        chosen = max(start, end + int(at))
    elif since is None:
        chosen = start if at == "start" else end
    else:
        chosen = since if since >= 0 else end
    last = _FOLLOW if until is None else end if until == "end" else min(int(until), end)
    return _Range(min(max(chosen, start), end), chosen if chosen > end else 0, last)


def _ranges(
    consumer: Consumer, assigned: list[TopicPartition], at: str, until: str | None
) -> tuple[dict[TopicPartition, _Range], list[TopicPartition]]:
    """Return the range to read of each partition, and the partitions that have no answer now."""
    from einmal.client import EARLIEST, LATEST
    from einmal.client.errors import KafkaError

    wanted = [EARLIEST, LATEST, *([int(at[1:])] if at.startswith("@") else [])]
    asked = list(assigned)
    offsets: dict[TopicPartition, list[int]] = {partition: [] for partition in assigned}
    for timestamp in wanted:
        for partition, answer in consumer.list_offsets_each(dict.fromkeys(asked, timestamp)).items():
            if isinstance(answer, KafkaError):
                print(f"warning: {partition} is not read now: {printable(str(answer))}", file=sys.stderr)
                asked.remove(partition)
            else:
                offsets[partition].append(answer.offset)
    ranges = {}
    for partition in asked:
        start, end, *since = offsets[partition]
        ranges[partition] = _range_of(at, until, start, end, since[0] if since else None)
        if at.isdigit() and not start <= int(at) <= end:
            print(f"warning: {partition} has offsets {start} to {end}: nothing before {at} is read", file=sys.stderr)
    return ranges, [partition for partition in assigned if partition not in ranges]


def _assign(consumer: Consumer, ranges: Mapping[TopicPartition, _Range], later: list[TopicPartition], at: str) -> None:
    """Assign what is read now, and what is read once it can be, where an offset is known for it."""
    later = [] if at.startswith("@") else later
    consumer.assign([*ranges, *later])
    for partition, wanted in ranges.items():
        consumer.seek(partition, wanted.begin)
    for partition in later if at.isdigit() else ():
        consumer.seek(partition, int(at))


def _print_records(
    consumer: Consumer,
    number: int | None,
    ranges: Mapping[TopicPartition, _Range] | None,
    show: Callable[[Shown], bytes],
) -> None:
    """Until ``number`` records, or the ends of the ranges. None: a group's partitions."""
    printed = 0
    while ranges is None or any(consumer.position(partition) < wanted.last for partition, wanted in ranges.items()):
        # Never more than are printed: a group's position moves past everything that poll gave.
        records = consumer.poll(500, None if number is None else min(500, number - printed))
        if ranges is not None:
            records = [record for record in records if _is_wanted(record, ranges.get(record.topic_partition))]
        _print_all(consumer, records, show)
        printed += len(records)
        if printed == number:
            return


def _is_wanted(record: ConsumerRecord, wanted: _Range | None) -> bool:
    return wanted is None or wanted.first <= record.offset < wanted.last


def _print_all(consumer: Consumer, records: list[ConsumerRecord], show: Callable[[Shown], bytes]) -> None:
    """Print these. What has not reached stdout when that ends is given back: a group must not commit it."""
    out = CountedOutput()
    shown: list[bytes] = []
    ends = {
        partition: consumer.ends(partition) for partition in dict.fromkeys(record.topic_partition for record in records)
    }
    try:
        shown.extend(show(Shown(record, ends[record.topic_partition])) for record in records)
        out.write(b"".join(shown))
    except BaseException:
        last_bytes = list(accumulate(map(len, shown)))
        consumer.give_back(records[bisect_right(last_bytes, out.written) :])
        raise


def _print_log(
    config: Mapping[str, Any],
    ranges: Mapping[TopicPartition, _Range],
    number: int | None,
    show: Callable[[Shown], bytes],
) -> None:
    """Everything in the ranges, as it is in the log: markers and aborted records, too."""
    from einmal.client import ConsumerRecord, OffsetRange, RangeReader
    from einmal.client.records import LogEnds

    wanted = {
        partition: OffsetRange(max(range_.begin, range_.first), range_.last) for partition, range_ in ranges.items()
    }
    out, printed = CountedOutput(), 0
    with RangeReader({**config, "isolation.level": "read_uncommitted"}) as reader:
        for batch in reader.read(wanted, with_markers=True):
            at = batch.topic_partition
            for record in batch.records(wanted[at]):
                offset, timestamp, key, value, headers = record
                shown = ConsumerRecord(*at, offset, timestamp, key, value, headers, batch.header)
                out.write(show(Shown(shown, LogEnds(-1, ranges[at].last))))
                printed += 1
                if printed == number:
                    return
