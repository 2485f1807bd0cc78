"""The options of queries and batch writes: guarantee, names of transactions, topics."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from uuid import uuid4

from einmal.client.config import ProducerSettings
from einmal.commit_protocol.commit_record import RESERVED_TOPICS
from einmal.options.client import PRODUCER_NAMES
from einmal.options.source import SourceOptions
from einmal.options.values import OptionError, Options, reserved
from einmal.schemas import settings as decoding_settings

EXACTLY_ONCE: Final = "exactly_once_v2"
AT_LEAST_ONCE: Final = "at_least_once"
AT_MOST_ONCE: Final = "at_most_once"
_GUARANTEES: Final = (EXACTLY_ONCE, AT_LEAST_ONCE, AT_MOST_ONCE)

TRANSACTION_TIMEOUT_MS: Final = 900_000
"""Kafka's default for ``transaction.max.timeout.ms``: a batch may take as long as the broker allows."""


TWO_PHASE_COMMIT: Final = "transaction.two.phase.commit.enable"
"""The producer's setting of a query whose topics and database are one commit (KIP-939)."""

CLAIMS_PORT: Final = "spark.einmal.claims.port"
"""The first port for claim services of this application, by default any that is free: a setting of Spark, and an option
of Spark's own writers, which cannot see the settings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryOptions:
    """Options of every stream, wherever its rows go. ``transactional_id``: None without transactions."""

    guarantee: str
    transactional_id: str | None
    checkpoint: str
    adopt: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions(QueryOptions):
    """Options of a stream to topics."""

    client: Mapping[str, str]
    topic: str | None = None
    group_id: str | None = None
    without_effect: tuple[str, ...] = ()
    """Accepted options without effect here."""


_SINK_WITHOUT_EFFECT: Final = ("includeHeaders",)
"""The column ``headers`` is always written where there is one."""

ADOPT: Final = "einmal.adopt"
"""Start once with a checkpoint that the commit record does not know, or is not of."""

QUERY_OPTIONS: Final = ("transactional.id", "processing.guarantee", "checkpointLocation", ADOPT)


def query_options(given: Mapping[str, Any], own: Collection[str]) -> QueryOptions:
    """Return the options of a stream to a sink other than topics. ``own``: names of the sink's options. Raises
    OptionError."""
    options = Options(given)
    options.refuse_unknown((*QUERY_OPTIONS, *own), kafka=False)
    options.refuse_empty((ADOPT,))
    checkpoint = options.required("checkpointLocation", _CHECKPOINT)
    guarantee = _guarantee(options.text("processing.guarantee", EXACTLY_ONCE))
    _need_transactions(guarantee)
    return QueryOptions(
        guarantee=guarantee,
        transactional_id=_stable_name(options.text("transactional.id")),
        checkpoint=checkpoint,
        adopt=options.flag(ADOPT, False),
    )


def error_options(options: Options) -> decoding_settings.ErrorSettings:
    """Return what happens to rows that a sink rejects: the options ``errors.*`` of a source. Raises
    OptionError."""
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
            f'option "processing.guarantee" is {EXACTLY_ONCE} for sinks other than topics, not {guarantee}: they '
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
    """Return the options of a stream to topics, and to so many databases. Raises OptionError."""
    options = Options(given)
    options.refuse_unknown(("topic", *QUERY_OPTIONS, *_SINK_WITHOUT_EFFECT))
    options.refuse_empty(("topic", ADOPT))
    options.required("kafka.bootstrap.servers", "127.0.0.1:9092")
    checkpoint = options.required("checkpointLocation", _CHECKPOINT)
    guarantee = _guarantee(options.text("processing.guarantee", EXACTLY_ONCE))
    if others:
        _need_transactions(guarantee)
    settings = options.client(ProducerSettings)
    client = settings.settings
    _check_two_phase(client, others)
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
        adopt=options.flag(ADOPT, False),
        without_effect=settings.without_effect + options.without_effect(_SINK_WITHOUT_EFFECT),
    )


def _check_two_phase(client: Mapping[str, str], databases: int) -> None:
    """Raises OptionError where what writes to topics in a two-phase commit has not one database beside them."""
    if databases != 1 and client.get(TWO_PHASE_COMMIT) == "true":
        raise OptionError(
            f'option "kafka.{TWO_PHASE_COMMIT}" is for a query that writes to topics and to one database, in one '
            f"commit; here are {databases} databases\nhint: leave it out, or add a sink of another type"
        )


def without_claims_port(given: Mapping[str, str]) -> tuple[dict[str, str], int]:
    """Return the options of Spark's own writer without ``CLAIMS_PORT``, and the port, 0 for any. Raises OptionError."""
    port = Options(given).number(CLAIMS_PORT, minimum=0) or 0
    return {name: value for name, value in given.items() if name.lower() != CLAIMS_PORT}, port


def query_without_effect(
    options: QueryOptions, sources: Sequence[SourceOptions], *, has_letters: bool
) -> tuple[str, ...]:
    """Accepted options that neither the sink nor a source of a query uses. ``has_letters``: dead letters are written,
    with the producer's settings among those of the sources."""
    sink = options if isinstance(options, SinkOptions) else None
    used = {name for source in sources for name in source.set_for_client} | (
        set() if sink is None else set(sink.client)
    )
    if has_letters:
        used |= PRODUCER_NAMES
    names = [
        *(() if sink is None else sink.without_effect),
        *(name for source in sources for name in source.without_effect),
    ]
    return tuple(dict.fromkeys(name for name in names if name.removeprefix("kafka.") not in used))


def _output_topic(options: Options) -> str | None:
    topic = options.text("topic")
    if topic in RESERVED_TOPICS:
        raise OptionError(f'option "topic": {reserved(topic)}')
    return topic


def _guarantee(value: str | None) -> str:
    if value in _GUARANTEES:
        return value
    retired = value in ("exactly_once", "exactly_once_beta")
    hint = f"\nhint: {value} has been retired, as in Kafka Streams 4: use {EXACTLY_ONCE}" if retired else ""
    raise OptionError(f'option "processing.guarantee" is one of {", ".join(_GUARANTEES)}, not {value!r}{hint}')


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionOptions:
    """Options of every batch write. ``version`` None: nobody will ask for this write again, and its name is only for
    itself."""

    transactional_id: str
    version: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions(VersionOptions):
    """Options of a batch write to topics."""

    client: Mapping[str, str]
    topic: str | None = None
    without_effect: tuple[str, ...] = ()
    """Accepted options without effect here."""


def new_write_name() -> str:
    """A name for a batch write that has none."""
    return f"einmal-write-{uuid4()}"


VERSION_OPTIONS: Final = ("transactional.id", "txnVersion")


def version_options(given: Mapping[str, Any], own: Collection[str], new_name: Callable[[], str]) -> VersionOptions:
    """Return the options of a batch write to a sink other than topics. ``own``: names of the sink's options;
    ``new_name`` makes a name for a write that has none. Raises OptionError."""
    options = Options(given)
    _refuse_checkpoint(options)
    options.refuse_unknown((*VERSION_OPTIONS, *own), kafka=False)
    options.refuse_empty(VERSION_OPTIONS)
    name, version = _version(options, options.text("transactional.id"))
    return VersionOptions(transactional_id=name or new_name(), version=version)


def write_options(given: Mapping[str, Any], new_name: Callable[[], str]) -> WriteOptions:
    """Return the options of a batch write to topics, as for ``version_options``. Raises OptionError."""
    options = Options(given)
    _refuse_checkpoint(options)
    options.refuse_unknown(("topic", *VERSION_OPTIONS, *_SINK_WITHOUT_EFFECT))
    options.refuse_empty(("topic", *VERSION_OPTIONS))
    options.required("kafka.bootstrap.servers", "127.0.0.1:9092")
    settings = options.client(ProducerSettings)
    client = settings.settings
    _check_two_phase(client, 0)
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
