"""The options of sources and sinks: the names of Spark's ``format("kafka")``, and ours for transactions.

Names are matched without regard to case, as Spark does (a Python source gets them in lower case). An unknown name is
an error that suggests the nearest known name: a misspelt ``startingOffsets`` must not read a topic from its end.
Options ``kafka.*`` are the client's settings under Kafka's names, checked by the client.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from einmal.client.config import ConsumerSettings, ProducerSettings
from einmal.misspelt import nearest_name
from einmal.pipeline.commit_record import COMMIT_TOPIC, RESERVED_TOPICS
from einmal.schemas import settings as decoding_settings
from einmal.spark.client_options import PRODUCER_NAMES, ClientOptionError, ClientOptions, Kind, client_options
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

EXACTLY_ONCE: Final = "exactly_once_v2"
AT_LEAST_ONCE: Final = "at_least_once"
AT_MOST_ONCE: Final = "at_most_once"
_GUARANTEES: Final = (EXACTLY_ONCE, AT_LEAST_ONCE, AT_MOST_ONCE)

MAX_OFFSETS_PER_TRIGGER: Final = 1_000_000
"""A first backfill must not become one batch that outlives its transaction: so there is a limit by default."""

_UNITS_MS: Final = {"": 1, "ms": 1, "s": 1_000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}

MAX_TRIGGER_DELAY_MS: Final = 900_000
"""Spark's default: a batch of fewer than ``minOffsetsPerTrigger`` offsets waits no longer."""

TRANSACTION_TIMEOUT_MS: Final = 900_000
"""Kafka's default for ``transaction.max.timeout.ms``: a batch may take as long as the broker allows."""


class OptionError(ValueError):
    """An option is missing, unknown, or has a value that it cannot have. Raised before anything is sent."""


def client_settings(options: Mapping[str, str]) -> dict[str, str]:
    """The ``kafka.*`` options, without the prefix."""
    return {name.removeprefix("kafka."): value for name, value in options.items() if name.startswith("kafka.")}


class Options:
    """Options by name, whatever their case."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        self._given = {name.lower(): (name, value) for name, value in given.items()}

    def text(self, name: str, default: str | None = None) -> str | None:
        found = self._given.get(name.lower())
        return default if found is None or found[1] is None else str(found[1])

    def required(self, name: str, example: str) -> str:
        value = self.text(name)
        if not value:
            raise OptionError(f'option "{name}" is missing\nhint: .option("{name}", "{example}")')
        return value

    def number(self, name: str, default: int | None = None, *, minimum: int = 1) -> int | None:
        value = self.text(name)
        if value is None:
            return default
        if not re.fullmatch(r"-?\d+", value) or int(value) < minimum:
            raise OptionError(f'option "{name}" is a whole number of at least {minimum}, not {value!r}')
        return int(value)

    def flag(self, name: str, default: bool) -> bool:
        value = (self.text(name) or str(default)).lower()
        if value not in ("true", "false"):
            raise OptionError(f'option "{name}" is true or false, not {value!r}')
        return value == "true"

    def client(self, kind: Kind) -> ClientOptions:
        """The ``kafka.*`` options, and the transactional.id if it is set. Raises OptionError."""
        settings = client_settings({name: str(value) for name, (_, value) in self._given.items()})
        if kind is ProducerSettings and (transactional_id := self.text("transactional.id")):
            settings["transactional.id"] = transactional_id
        try:
            return client_options(kind, settings)
        except ClientOptionError as error:
            raise OptionError(f"{error}\nhint: {error.hint}") from error

    def without_effect(self, names: Collection[str]) -> tuple[str, ...]:
        """Those of these options that are set."""
        return tuple(name for name in names if name.lower() in self._given)

    def duration_ms(self, name: str, default: int) -> int:
        """As Spark reads one: "15m", "30s", or a number of ms. Raises OptionError."""
        value = self.text(name)
        if value is None:
            return default
        match = re.fullmatch(r"\s*(\d+)\s*([a-z]*)\s*", value.lower())
        if match is None or match[2] not in _UNITS_MS:
            raise OptionError(f'option "{name}" is a time such as 500ms, 30s, 15m, 2h or 1d, not {value!r}')
        return int(match[1]) * _UNITS_MS[match[2]]

    def refuse_unknown(self, known: Collection[str], *, kafka: bool = True) -> None:
        """``kafka``: whether the client's settings are known, which it checks itself."""
        names = {name.lower() for name in known}
        for lower, (given, _) in self._given.items():
            if lower in names or (kafka and lower.startswith("kafka.")):
                continue
            near = nearest_name(given, known)
            every = [*sorted(known), *(["kafka.*"] if kafka else [])]
            hint = f'did you mean "{near}"?' if near else f"known are: {', '.join(every)}"
            raise OptionError(f'unknown option "{given}"\nhint: {hint}')


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
    fail_on_data_loss: bool = True
    include_headers: bool = False
    undated: bool = False
    """A record whose timestamp is none of Spark's has no timestamp, instead of an error."""
    set_for_client: frozenset[str] = frozenset()
    """Those of the client's settings that are not defaults of the source."""
    without_effect: tuple[str, ...] = ()
    """Accepted options without effect here."""

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


def source_options(given: Mapping[str, Any], *, streaming: bool) -> SourceOptions:
    """Raises OptionError. By default a stream begins at "latest", a batch query at "earliest"."""
    options = Options(given)
    options.refuse_unknown((*_SOURCE, *_SOURCE_WITHOUT_EFFECT))
    options.required("kafka.bootstrap.servers", "127.0.0.1:9092")
    chosen = [name for name in ("subscribe", "subscribePattern", "assign") if options.text(name)]
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
    if COMMIT_TOPIC in topics or any(each.topic == COMMIT_TOPIC for each in assigned):
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
        return Times(_by_partition(text, f'option "{times}" is JSON of times in ms'))
    name = f"{side}Offsets"
    text = options.text(name) or default
    if text.strip().lower() in words:
        return text.strip().lower()
    return _by_partition(text, f'option "{name}" is {" or ".join(words)}, or JSON')


def _by_partition(text: str, what: str) -> Offsets:
    try:
        return {
            topic: {int(partition): int(number) for partition, number in partitions.items()}
            for topic, partitions in json.loads(text).items()
        }
    except (ValueError, AttributeError, TypeError) as error:
        raise OptionError(f'{what} such as {{"topic":{{"0":23,"1":-2}}}}, not {text!r}') from error


def topics_of(options: Mapping[str, str]) -> list[str]:
    """The topics that a source's options name, in lower case; none where it has a pattern, or JSON that is none."""
    if "assign" in options:
        with contextlib.suppress(OptionError):
            return sorted({each.topic for each in _assigned(options["assign"])})
    return [name.strip() for name in options.get("subscribe", "").split(",") if name.strip()]


def _pattern(text: str | None) -> str | None:
    if text is None:
        return None
    try:
        re.compile(text)
    except re.error as error:
        raise OptionError(f'option "subscribePattern" is not a regular expression: {error}') from error
    return text


def _assigned(text: str | None) -> tuple[TopicPartition, ...]:
    if text is None:
        return ()
    try:
        chosen = json.loads(text)
        return tuple(sorted(TopicPartition(topic, int(each)) for topic in chosen for each in chosen[topic]))
    except (ValueError, TypeError, LookupError) as error:
        raise OptionError(f'option "assign" is JSON such as {{"topic":[0,1]}}, not {text!r}') from error


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryOptions:
    """What every stream has, wherever its rows go. ``transactional_id``: None without transactions."""

    guarantee: str
    transactional_id: str | None
    checkpoint: str
    adopt: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions(QueryOptions):
    """Of a stream to topics."""

    client: Mapping[str, str]
    topic: str | None = None
    group_id: str | None = None
    without_effect: tuple[str, ...] = ()
    """Accepted options without effect here."""


_SINK_WITHOUT_EFFECT: Final = ("includeHeaders",)
"""The column ``headers`` is always written where there is one."""
QUERY_OPTIONS: Final = ("transactional.id", "processing.guarantee", "checkpointLocation", "einmal.adopt")


def query_options(given: Mapping[str, Any], own: Collection[str]) -> QueryOptions:
    """Of a stream to a target other than topics. ``own``: names of the target's options. Raises OptionError."""
    options = Options(given)
    options.refuse_unknown((*QUERY_OPTIONS, *own), kafka=False)
    checkpoint = options.required("checkpointLocation", _CHECKPOINT)
    guarantee = _guarantee(options.text("processing.guarantee", EXACTLY_ONCE))
    _need_transactions(guarantee)
    return QueryOptions(
        guarantee=guarantee,
        transactional_id=_stable_name(options.text("transactional.id")),
        checkpoint=checkpoint,
        adopt=options.flag("einmal.adopt", False),
    )


def error_options(options: Options) -> decoding_settings.ErrorSettings:
    """What happens to rows that a sink's target rejects: the options ``errors.*`` of a source. Raises OptionError."""
    given = {name: text for name in decoding_settings.ERRORS if (text := options.text(name)) is not None}
    try:
        settings = decoding_settings.error_settings(given)
    except decoding_settings.SettingError as error:
        raise OptionError(str(error)) from error
    if settings.topic in RESERVED_TOPICS:
        raise OptionError(f'option "{decoding_settings.TOPIC}": {reserved(str(settings.topic))}')
    return settings


def _need_transactions(guarantee: str) -> None:
    if guarantee != EXACTLY_ONCE:
        raise OptionError(
            f'option "processing.guarantee" is {EXACTLY_ONCE} for targets other than topics, not {guarantee}: they '
            "commit rows and record together"
        )


def _stable_name(name: str | None) -> str:
    if not name:
        raise OptionError(
            'option "transactional.id" is missing: a stable name of this pipeline, under which its output is committed '
            'and a second copy of it is fenced\nhint: .option("transactional.id", "wordcount")'
        )
    return name


_CHECKPOINT: Final = "/data/checkpoints/wordcount"


def sink_options(given: Mapping[str, Any], *, others: int = 0) -> SinkOptions:
    """Of a stream to topics, and to so many other targets. Raises OptionError."""
    options = Options(given)
    options.refuse_unknown(("topic", *QUERY_OPTIONS, *_SINK_WITHOUT_EFFECT))
    options.required("kafka.bootstrap.servers", "127.0.0.1:9092")
    checkpoint = options.required("checkpointLocation", _CHECKPOINT)
    guarantee = _guarantee(options.text("processing.guarantee", EXACTLY_ONCE))
    if others:
        _need_transactions(guarantee)
    settings = options.client(ProducerSettings)
    client = settings.settings
    transactional_id = client.pop("transactional.id", None)
    if guarantee == EXACTLY_ONCE:
        _stable_name(transactional_id)
    client.setdefault("client.id", transactional_id or "einmal-spark-sink")
    return SinkOptions(
        client=client,
        guarantee=guarantee,
        transactional_id=transactional_id if guarantee == EXACTLY_ONCE else None,
        checkpoint=checkpoint,
        topic=_output_topic(options),
        group_id=options.text("kafka.group.id") or transactional_id,
        adopt=options.flag("einmal.adopt", False),
        without_effect=settings.without_effect + options.without_effect(_SINK_WITHOUT_EFFECT),
    )


def query_without_effect(
    options: QueryOptions, sources: Sequence[SourceOptions], *, has_letters: bool
) -> tuple[str, ...]:
    """Accepted options that neither the sink nor a source of a query uses. ``has_letters``: dead letters are written,
    with the producer's settings among those of the sources."""
    sink = options if isinstance(options, SinkOptions) else None
    used = {name for each in sources for name in each.set_for_client} | (set() if sink is None else set(sink.client))
    if has_letters:
        used |= PRODUCER_NAMES
    names = [
        *(() if sink is None else sink.without_effect),
        *(name for each in sources for name in each.without_effect),
    ]
    return tuple(dict.fromkeys(name for name in names if name.removeprefix("kafka.") not in used))


def _output_topic(options: Options) -> str | None:
    topic = options.text("topic")
    if topic in RESERVED_TOPICS:
        raise OptionError(f'option "topic": {reserved(topic)}')
    return topic


def reserved(topic: str) -> str:
    """Why a topic of ``RESERVED_TOPICS`` is no output, and what to do."""
    return (
        f"{topic} is an internal topic of brokers or pipelines: output there would corrupt what they keep in it\n"
        "hint: write to a topic of your own"
    )


def _guarantee(value: str | None) -> str:
    if value in _GUARANTEES:
        return value
    retired = value in ("exactly_once", "exactly_once_beta")
    hint = f"\nhint: {value} has been retired, as in Kafka Streams 4: use {EXACTLY_ONCE}" if retired else ""
    raise OptionError(f'option "processing.guarantee" is one of {", ".join(_GUARANTEES)}, not {value!r}{hint}')


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionOptions:
    """What every batch write has. ``version`` None: nobody will ask for this write again, and its name is only for
    itself."""

    transactional_id: str
    version: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions(VersionOptions):
    """Of a batch write to topics."""

    client: Mapping[str, str]
    topic: str | None = None
    without_effect: tuple[str, ...] = ()
    """Accepted options without effect here."""


VERSION_OPTIONS: Final = ("transactional.id", "txnVersion")


def version_options(given: Mapping[str, Any], own: Collection[str], new_name: Callable[[], str]) -> VersionOptions:
    """Of a batch write to a target other than topics. ``own``: names of the target's options; ``new_name`` makes a name
    for a write that has none. Raises OptionError."""
    options = Options(given)
    _refuse_checkpoint(options)
    options.refuse_unknown((*VERSION_OPTIONS, *own), kafka=False)
    name, version = _version(options, options.text("transactional.id"))
    return VersionOptions(transactional_id=name or new_name(), version=version)


def write_options(given: Mapping[str, Any], new_name: Callable[[], str]) -> WriteOptions:
    """Of a batch write to topics, as for ``version_options``. Raises OptionError."""
    options = Options(given)
    _refuse_checkpoint(options)
    options.refuse_unknown(("topic", *VERSION_OPTIONS, *_SINK_WITHOUT_EFFECT))
    options.required("kafka.bootstrap.servers", "127.0.0.1:9092")
    settings = options.client(ProducerSettings)
    client = settings.settings
    name, version = _version(options, client.pop("transactional.id", None))
    transactional_id = name or new_name()
    client.setdefault("client.id", transactional_id)
    return WriteOptions(
        client=client,
        transactional_id=transactional_id,
        version=version,
        topic=_output_topic(options),
        without_effect=settings.without_effect + options.without_effect(_SINK_WITHOUT_EFFECT),
    )


def _refuse_checkpoint(options: Options) -> None:
    if options.text("checkpointLocation"):
        raise OptionError(
            'option "checkpointLocation" is of a stream; a batch that may be run again is known by '
            '"transactional.id" and "txnVersion"'
        )


def _version(options: Options, transactional_id: str | None) -> tuple[str | None, int | None]:
    version = options.number("txnVersion", minimum=0)
    if (transactional_id is None) != (version is None):
        missing, what = (
            ("txnVersion", "the number of this batch, which only grows: a day such as 20260101, or a run's number")
            if version is None
            else ("transactional.id", "the name of the series that the batch belongs to")
        )
        raise OptionError(
            f'option "{missing}" is missing: {what}. With both, a batch that is run again is written once; '
            "with neither, it is written each time"
        )
    return transactional_id, version
