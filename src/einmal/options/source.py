"""The options of a source: the names of Spark's ``format("kafka")``."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from einmal.client.config import ConsumerSettings
from einmal.commit_protocol.commit_record import COMMIT_TOPIC
from einmal.options.values import OptionError, Options
from einmal.types import TopicPartition

EARLIEST: Final = -2

LATEST: Final = -1
"""As in Spark's JSON of starting offsets, and in Kafka's ListOffsets."""

Offsets = dict[str, dict[int, int]]
"""Topic, partition, offset: the shape of Spark's JSON, whose partitions are strings."""


@dataclass(frozen=True, slots=True)
class Times:
    """Times in ms: one for every partition, or (an ``int``) the same for all."""

    ms: int | Offsets


Position = str | Offsets | Times
"""Where to begin or end: "earliest", "latest", offsets with EARLIEST and LATEST, or times."""

MAX_OFFSETS_PER_TRIGGER: Final = 1_000_000
"""A first backfill must not become one batch that outlives its transaction: so there is a limit by default."""

MAX_TRIGGER_DELAY_MS: Final = 900_000
"""Spark's default: a batch of fewer than ``minOffsetsPerTrigger`` offsets waits no longer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    client: Mapping[str, str]
    topics: tuple[str, ...] = ()
    pattern: str | None = None
    assigned: tuple[TopicPartition, ...] = ()
    starting: Position
    ending: Position = "latest"
    starting_without_record: str = "latest"
    """Where a partition begins whose time has no record at or after it: "latest", or "error"."""
    max_offsets_per_trigger: int
    min_offsets_per_trigger: int | None = None
    max_trigger_delay_ms: int = MAX_TRIGGER_DELAY_MS
    min_partitions: int | None = None
    max_records_per_partition: int | None = None
    fail_on_data_loss: bool = True
    include_headers: bool = False
    undated: bool = False
    """A record whose timestamp is none of Spark's has no timestamp, instead of an error."""
    set_for_client: frozenset[str] = frozenset()
    """Those of the client's settings that are not defaults of the source."""
    without_effect: tuple[str, ...] = ()
    """Accepted options without effect here."""

    @property
    def divides_partitions(self) -> bool:
        """Whether a partition of a topic may be read by several tasks."""
        return self.min_partitions is not None or self.max_records_per_partition is not None

    @property
    def isolation(self) -> str:
        return self.client["isolation.level"]


UNDATED: Final = "einmal.undated"
"""Set by ``decode``, which makes a dead letter of a record without a timestamp, and by no user."""

_SOURCE: Final = (
    "subscribe",
    "subscribePattern",
    "assign",
    "startingOffsets",
    "startingTimestamp",
    "startingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "endingOffsets",
    "endingTimestamp",
    "endingOffsetsByTimestamp",
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "minPartitions",
    "maxRecordsPerPartition",
    "failOnDataLoss",
    "includeHeaders",
    "groupIdPrefix",
    UNDATED,
)

_SOURCE_WITHOUT_EFFECT: Final = (
    "kafkaConsumer.pollTimeoutMs",
    "fetchOffset.numRetries",
    "fetchOffset.retryIntervalMs",
    # A data source has a path in Spark's own catalog.
    "path",
)


_OF_A_TABLE: Final = "provider"
"""Among the properties that Spark gives instead of options where a table is created, and which it reads without any."""

_MAY_BE_EMPTY: Final = ("subscribe", "subscribePattern", "assign", "groupIdPrefix", "includeHeaders")
"""Empty they are as if they were not set: one of the first three selects topics, whichever has a value."""


def source_options(given: Mapping[str, Any], *, streaming: bool) -> SourceOptions:
    """Raises OptionError. By default a stream begins at "latest", a batch query at "earliest"."""
    options = Options(given)
    if options.text(_OF_A_TABLE) is not None:
        raise OptionError(
            "a table of Spark's catalog (CREATE TABLE ... USING einmal) keeps no options for a source in Python\n"
            "hint: CREATE TEMPORARY VIEW ... USING einmal OPTIONS (...)"
        )
    options.refuse_unknown((*_SOURCE, *_SOURCE_WITHOUT_EFFECT))
    options.refuse_empty([name for name in _SOURCE if name not in _MAY_BE_EMPTY])
    options.required("kafka.bootstrap.servers", "127.0.0.1:9092")
    chosen = [name for name in ("subscribe", "subscribePattern", "assign") if (options.text(name) or "").strip()]
    if len(chosen) != 1:
        raise OptionError(
            f'one of "subscribe", "subscribePattern" and "assign" selects the topics; set: {chosen or "none"}\n'
            'hint: .option("subscribe", "topic1,topic2")'
        )
    for name in ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"):
        if streaming and options.text(name):
            raise OptionError(f'option "{name}" ends a batch query (spark.read); a stream has no end')
    topics = tuple(name.strip() for name in (options.text("subscribe") or "").split(",") if name.strip())
    assigned = _assigned(options.text("assign"))
    if chosen != ["subscribePattern"] and not (topics or assigned):
        raise OptionError(
            f'option "{chosen[0]}" selects nothing: {options.text(chosen[0])!r}\n'
            'hint: .option("subscribe", "topic1,topic2"), or .option("assign", \'{"topic1":[0,1]}\')'
        )
    if COMMIT_TOPIC in topics or any(partition.topic == COMMIT_TOPIC for partition in assigned):
        raise OptionError(
            f"topic {COMMIT_TOPIC!r} holds the commit records of pipelines and cannot be read as a source: every batch "
            "would add a record to it, which the next batch would read\n"
            "hint: einmal pipeline status shows the commit records"
        )
    settings = options.client(ConsumerSettings)
    client = {"isolation.level": "read_committed"} | settings.settings
    most = options.number("maxOffsetsPerTrigger") or MAX_OFFSETS_PER_TRIGGER
    least = options.number("minOffsetsPerTrigger")
    if least is not None and least > most:
        raise OptionError(f'option "minOffsetsPerTrigger" ({least}) is larger than maxOffsetsPerTrigger ({most})')
    # The source assigns itself partitions and joins no group: the prefix only names the client in the broker's logs.
    client.setdefault("client.id", options.text("groupIdPrefix") or "einmal-spark-source")
    return SourceOptions(
        client=client,
        topics=topics,
        pattern=_pattern(options.text("subscribePattern")),
        assigned=assigned,
        starting=_position(options, "starting", ("earliest", "latest"), "latest" if streaming else "earliest"),
        ending=_position(options, "ending", ("latest",), "latest"),
        starting_without_record=_one_of(options, "startingOffsetsByTimestampStrategy", ("latest", "error")),
        max_offsets_per_trigger=most,
        min_offsets_per_trigger=least,
        max_trigger_delay_ms=options.duration_ms("maxTriggerDelay", MAX_TRIGGER_DELAY_MS),
        min_partitions=options.number("minPartitions"),
        max_records_per_partition=options.number("maxRecordsPerPartition"),
        fail_on_data_loss=options.flag("failOnDataLoss", True),
        include_headers=options.flag("includeHeaders", False),
        undated=options.flag(UNDATED, False),
        set_for_client=frozenset(settings.settings),
        without_effect=settings.without_effect + options.without_effect(_SOURCE_WITHOUT_EFFECT[:-1]),
    )


def _one_of(options: Options, name: str, values: tuple[str, ...]) -> str:
    """The first value is the default. Raises OptionError."""
    value = (options.text(name) or values[0]).strip().lower()
    if value not in values:
        raise OptionError(f'option "{name}" is {" or ".join(values)}, not {value!r}')
    return value


def _position(options: Options, side: str, words: tuple[str, ...], default: str) -> Position:
    """If several options are set, Spark's precedence: one time, a time for each partition, offsets."""
    timestamp = options.number(f"{side}Timestamp", minimum=0)
    if timestamp is not None:
        return Times(timestamp)
    times = f"{side}OffsetsByTimestamp"
    text = options.text(times)
    if text is not None:
        return Times(_by_partition(text, f'option "{times}" is JSON of times in ms', 0))
    name = f"{side}Offsets"
    text = options.text(name) or default
    if text.strip().lower() in words:
        return text.strip().lower()
    # As in Spark: no range ends at "earliest".
    least = EARLIEST if "earliest" in words else LATEST
    return _by_partition(text, f'option "{name}" is {" or ".join(words)}, or JSON', least)


def _by_partition(text: str, what: str, least: int) -> Offsets:
    """``least``: the smallest number. Raises OptionError."""
    try:
        given = {
            topic: {_whole(partition): _whole(number) for partition, number in partitions.items()}
            for topic, partitions in _json(text).items()
        }
    except OptionError:
        raise
    except (ValueError, AttributeError, TypeError) as error:
        raise OptionError(f'{what} such as {{"topic":{{"0":23,"1":{least}}}}}, not {text!r}') from error
    if any(number < least for numbers in given.values() for number in numbers.values()):
        raise OptionError(f"{what}, with numbers of at least {least}, not {text!r}{_SPECIAL[least]}")
    return given


def _json(text: str) -> Any:
    """Raises ValueError; OptionError for an object that has a name twice: only one of the two values would count."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        chosen = dict(pairs)
        if len(chosen) < len(pairs):
            names = [name for name, _ in pairs]
            twice = next(name for name in names if names.count(name) > 1)
            raise OptionError(f"{twice!r} is there twice in {text!r}\nhint: leave one out")
        return chosen

    return json.loads(text, object_pairs_hook=once)


_SPECIAL: Final = {
    EARLIEST: "\nhint: -2 stands for earliest, -1 for latest",
    LATEST: "\nhint: -1 stands for latest; a range does not end at earliest",
    0: "",
}


def _whole(value: object) -> int:
    """A whole number of JSON, as which keys are text. Raises ValueError."""
    if type(value) is int:
        return value
    if isinstance(value, str) and re.fullmatch(r"-?\d{1,19}", value, re.ASCII):
        return int(value)
    raise ValueError(f"{value!r} is no whole number")


_DEFAULT_ISOLATION: Final = {"einmal": "read_committed", "kafka": "read_uncommitted"}
"""By the format of a source. Spark's own reads what Java's client reads by default."""


def isolation_of(kind: str, client: Mapping[str, str]) -> str | None:
    """Return the isolation level of a source of this format with these settings; None: it is none of Kafka's topics."""
    default = _DEFAULT_ISOLATION.get(kind)
    return None if default is None else client.get("isolation.level", default).strip().lower()


def fails_on_data_loss(options: Mapping[str, str]) -> bool:
    """Whether a source with these options, in lower case, stops where records are gone."""
    return options.get("failondataloss", "true").strip().lower() != "false"


def topics_of(options: Mapping[str, str]) -> list[str]:
    """The topics that a source's options name, in lower case; none where it has a pattern, or JSON that is none."""
    if options.get("assign", "").strip():
        with contextlib.suppress(OptionError):
            return sorted({partition.topic for partition in _assigned(options["assign"])})
    return [name.strip() for name in options.get("subscribe", "").split(",") if name.strip()]


def pattern_of(options: Mapping[str, str]) -> str | None:
    """The pattern of topics that a source has among its options, in lower case, if any."""
    pattern = options.get("subscribepattern", "")
    return pattern if pattern.strip() else None


def reads_topic(options: Mapping[str, str], topic: str, servers: str) -> bool:
    """Whether a source with these options, in lower case, reads this topic of the cluster at ``servers``: by its name
    or by a pattern. Two addresses are taken to be two clusters."""
    own = {address.strip() for address in options.get("kafka.bootstrap.servers", "").split(",")}
    if own.isdisjoint(address.strip() for address in servers.split(",")):
        return False
    pattern = pattern_of(options)
    if pattern is None:
        return topic in topics_of(options)
    # Spark's own source takes patterns of Java's, which may be none of Python's.
    with contextlib.suppress(re.error):
        return re.fullmatch(pattern, topic) is not None
    return False


def _pattern(text: str | None) -> str | None:
    if text is None or not text.strip():
        return None
    try:
        re.compile(text)
    except re.error as error:
        raise OptionError(f'option "subscribePattern" is not a regular expression: {error}') from error
    return text


def _assigned(text: str | None) -> tuple[TopicPartition, ...]:
    if text is None or not text.strip():
        return ()
    try:
        chosen = _json(text)
        if not all(isinstance(indexes, list) for indexes in chosen.values()):
            raise ValueError(text)
        return tuple(sorted(TopicPartition(topic, _whole(index)) for topic in chosen for index in chosen[topic]))
    except OptionError:
        raise
    except (ValueError, TypeError, AttributeError) as error:
        raise OptionError(f'option "assign" is JSON such as {{"topic":[0,1]}}, not {text!r}') from error
