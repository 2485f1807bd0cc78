"""A pipeline as it is declared: sources, SQL views and sinks in a TOML file, or a decorator's arguments. Pure.

The keys are the option names of Spark's and Kafka's own: a table is nothing but a dotted name, ``[trigger]`` with
``availableNow`` is ``trigger.availableNow``. An unknown key is an error that suggests the nearest known key, and
all errors of a file are reported at once. Knows neither Spark nor a cluster: the preflight checks whether topics exist.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from datetime import date
from pathlib import PurePath
from typing import Any, Final

from einmal.declare.document import (
    DeclarationError,
    Variables,
    as_text,
    flattened,
    nearest,
    reads_nothing,
    referenced,
    refuse_same,
    refuse_unknown,
    same_names,
    substituted,
    toml_tables,
)
from einmal.declare.lineage import circles, sources_of
from einmal.options.intervals import trigger_interval_us
from einmal.options.sink import ADOPT, QueryOptions, SinkOptions, query_options, sink_options
from einmal.options.source import reads_topic, source_options
from einmal.options.values import OptionError, Options, dotted
from einmal.schemas import settings as decoding_settings
from einmal.security.redaction import RedactedDict
from einmal.sinks.kinds import KAFKA, new_sink, sink_class

OUTPUT_MODES: Final = ("append", "update", "complete")
OWN_FORMAT: Final = "einmal"
SPARK_FORMAT: Final = "kafka"
"""Spark's own Kafka source: its jar is the user's to bring."""

_TOP: Final = (
    "transactional.id",
    "processing.guarantee",
    "checkpointLocation",
    "outputMode",
    "trigger.processingTime",
    "trigger.availableNow",
)
_TABLES: Final = ("sources", "views", "sinks")
_INGESTERS: Final = "ingest"
"""Declared in the same file, and run by a command of their own."""
_MIRROR: Final = "clusters"
"""Only the declaration of a mirror has it."""
_FREE: Final = ("kafka.", "spark.")
"""Names that are passed on unchanged: to the client, which checks them, and to the Spark session."""
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True, slots=True)
class Watermark:
    """How late a row may be: ``column`` is a timestamp, ``delay`` an interval of Spark's."""

    column: str
    delay: str


@dataclass(frozen=True, slots=True)
class Source:
    """A stream by name. ``options``: those of its format, the client's settings as ``kafka.*`` among them."""

    name: str
    format: str
    options: Mapping[str, str]
    watermark: Watermark | None = None
    decoding: Mapping[str, str] = field(default_factory=dict)
    """The format, its schema, and what happens to bad rows: see ``einmal.schemas.settings``."""

    @property
    def dead_letter_topic(self) -> str | None:
        """Topic of its bad rows; None where such a row stops the pipeline."""
        settings = decoding_settings.decode_settings(self.decoding) if self.decoding else None
        return settings.topic if settings is not None and settings.tolerates else None


@dataclass(frozen=True, slots=True)
class View:
    """A query over the sources and the views before it."""

    name: str
    sql: str
    watermark: Watermark | None = None


@dataclass(frozen=True, slots=True)
class DeclaredSink:
    """Rows of ``origin`` to ``topic``; None: each row names its own. ``origin`` is None where code makes the rows.

    ``kind``: the type of the sink; of other sinks than topics ``options`` are their own."""

    name: str
    origin: str | None
    topic: str | None
    kind: str = KAFKA[0]
    options: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_topic(self) -> bool:
        return self.kind in KAFKA

    @property
    def dead_letter_topic(self) -> str | None:
        """Topic of the rows that it rejects; None where such a row stops the pipeline. Raises OptionError."""
        if self.is_topic:
            return None
        with closing(new_sink(self.kind, self.options)) as row_sink:
            return row_sink.errors.topic if row_sink.errors.tolerates else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Declaration:
    """``writer``: the options of ``write_stream``, without the topic. ``spark``: settings of the session."""

    sources: tuple[Source, ...]
    views: tuple[View, ...]
    sinks: tuple[DeclaredSink, ...]
    writer: Mapping[str, str]
    output_mode: str | None = None
    trigger: Mapping[str, Any] = field(default_factory=dict)
    spark: Mapping[str, str] = field(default_factory=dict)

    @property
    def topic(self) -> str | None:
        """The one topic of every row, if there is just one sink."""
        return self.sinks[0].topic if len(self.sinks) == 1 else None

    @property
    def options(self) -> QueryOptions:
        return _options(self.sinks, self.writer)

    @property
    def name(self) -> str:
        """Name of the pipeline: its transactional.id, which names it without transactions, too, if it has one."""
        return self.options.transactional_id or self.writer.get("transactional.id") or self.sinks[0].name


def declares_pipeline(document: Mapping[str, Any]) -> bool:
    """Whether a file declares a pipeline, and not a mirror or ingesters alone."""
    if _MIRROR in document:
        return False
    ingesters = document.get(_INGESTERS)
    return "sources" in document or "sinks" in document or not (isinstance(ingesters, Mapping) and ingesters)


def parse(
    text: str,
    environment: Mapping[str, str],
    overrides: Mapping[str, str],
    read: Callable[[str], str] | None = None,
) -> Declaration:
    """A ``pipeline.toml``. ``${NAME}`` and ``${NAME:-default}`` in a value are the environment's, ``$$`` is a dollar.

    So is ``${env:NAME}``; ``${file:PATH:KEY}`` is a key of a properties file, which ``read`` reads (OSError). In
    ``overrides``, settings of the top level that win, only these two are replaced. Raises DeclarationError.
    """
    variables = Variables(environment, read or reads_nothing)
    problems: list[str] = []
    tables = toml_tables(text)
    if not declares_pipeline(tables):
        declared, command = ("a mirror", "einmal mirror") if _MIRROR in tables else ("ingesters", "einmal ingest")
        raise DeclarationError([f"it declares {declared}, and no pipeline\nhint: {command} runs what it declares"])
    tables.pop(_INGESTERS, None)
    tables = substituted(tables, variables, problems, "")
    overrides = {name: referenced(name, value, variables, problems) for name, value in overrides.items()}
    return _declare(tables, overrides, problems, needs_origin=True)


def declare(tables: Mapping[str, Any], overrides: Mapping[str, str]) -> Declaration:
    """The same from Python values: code makes the rows, so there are no views. Raises DeclarationError."""
    return _declare(tables, overrides, [], needs_origin=False)


def _declare(
    document: Mapping[str, Any], overrides: Mapping[str, str], problems: list[str], *, needs_origin: bool
) -> Declaration:
    tables = {name: document.get(name, {}) for name in _TABLES}
    for name, table in tables.items():
        if not isinstance(table, Mapping):
            raise DeclarationError([f"{name} is a table of named tables\nhint: [{name}.orders]"])
    others = {name: value for name, value in document.items() if name not in (*_TABLES, _INGESTERS)}
    top = _overridden(_top(others, problems), dotted(overrides, prefixed=True))
    refuse_unknown("", top, (*_TOP, *_TABLES, *({ADOPT} & {*overrides})), problems, free=_FREE)
    common = {name: as_text(value) for name, value in top.items() if name.startswith("kafka.")}
    sources = [_source(name, table, common, problems) for name, table in tables["sources"].items()]
    if not sources:
        problems.append('there is no source\nhint: [sources.orders] with subscribe = "orders"')
    if tables["views"] and not needs_origin:
        problems.append("views are a declaration's in TOML: here the function makes the rows")
    views = [_view(name, value, problems) for name, value in tables["views"].items()]
    known = [*(source.name for source in sources), *(view.name for view in views)]
    _refuse_same_in_sql(known, "sources or views", problems)
    sinks = [_sink(name, table, known if needs_origin else None, problems) for name, table in tables["sinks"].items()]
    _refuse_same_in_sql([sink.name for sink in sinks if not sink.is_topic], "sinks", problems)
    if not sinks:
        problems.append('there is no sink\nhint: [sinks.counts] with from = "a_view" and topic = "counts"')
    declaration = Declaration(
        sources=tuple(sources),
        views=tuple(views),
        sinks=tuple(sinks),
        writer=_writer(top, common, sinks, problems),
        output_mode=_output_mode(top, problems),
        trigger=_trigger(top, problems),
        spark={name: as_text(value) for name, value in top.items() if name.startswith("spark.")},
    )
    problems += [] if problems else _circles(declaration)
    if problems:
        raise DeclarationError(problems)
    return declaration


def _circles(declaration: Declaration) -> list[str]:
    """Sources whose rows come back to them: every batch would add records to their topics, for the next one."""
    written: dict[tuple[str, str], tuple[str, str]] = {}
    for origins, topic, servers, words, setting in _written(declaration):
        for source in declaration.sources:
            own = {name.lower(): value for name, value in source.options.items()}
            if source.format in (OWN_FORMAT, SPARK_FORMAT) and reads_topic(own, topic, servers):
                sentence = f"sources.{source.name} reads topic {topic!r}, {words}"
                for origin in origins:
                    written.setdefault((origin, source.name), (sentence, setting))
    return [
        f"{', and '.join(dict.fromkeys(written[edge][0] for edge in circle))}: every batch would add records to "
        f"{'it' if len(circle) == 1 else 'them'}, for the next one\n"
        f"hint: select topics without it, or choose another {written[circle[0]][1]}"
        for circle in circles(written)
    ]


def _written(declaration: Declaration) -> Iterator[tuple[Iterable[str], str, str, str, str]]:
    """Yield sources with a topic to which their rows or bad rows go, its cluster, words for it and its setting."""
    options = declaration.options
    home = options.client["bootstrap.servers"] if isinstance(options, SinkOptions) else None
    every = [source.name for source in declaration.sources]
    origins = sources_of(every, [(view.name, view.sql) for view in declaration.views])
    servers = {
        source.name: next(value for name, value in source.options.items() if name.lower() == "kafka.bootstrap.servers")
        for source in declaration.sources
        if source.format == OWN_FORMAT
    }
    for sink in declaration.sinks:
        # A function makes its rows of every source.
        own = every if sink.origin is None else origins[sink.origin]
        if sink.topic is not None and home is not None:
            setting = "topic: records that are to return name it in a column topic"
            yield own, sink.topic, home, f"which is that of sinks.{sink.name}", setting
        letters = sink.dead_letter_topic
        if letters is not None and servers:
            words = f"which gets the dead letters of sinks.{sink.name}"
            yield own, letters, next(iter(servers.values())), words, decoding_settings.TOPIC
    for source in declaration.sources:
        letters = source.dead_letter_topic
        if letters is not None:
            words = f"which gets the dead letters of sources.{source.name}"
            yield [source.name], letters, home or servers[source.name], words, decoding_settings.TOPIC


def _top(others: Mapping[str, Any], problems: list[str]) -> dict[str, Any]:
    refuse_same("", others, problems)
    # A program may compute it, and have none.
    top = {name: value for name, value in flattened(others).items() if name != "outputMode" or value is not None}
    _refuse_odd("", top, problems)
    if top.pop(ADOPT, None) is not None:
        problems.append(
            f"{ADOPT} is of one start, and no key of a declaration: it would adopt at every start\n"
            f"hint: einmal run FILE -X {ADOPT}=true"
        )
    try:
        return dotted(top, prefixed=True)
    except OptionError as error:
        problems.append(str(error))
        return {}


def _overridden(top: dict[str, Any], overrides: Mapping[str, str]) -> dict[str, Any]:
    """A trigger in the overrides replaces another kind of trigger."""
    if any(name.startswith("trigger.") for name in overrides):
        top = {name: value for name, value in top.items() if not name.startswith("trigger.")}
    return top | dict(overrides)


# --- parts ------------------------------------------------------------------------------------------------------


def _source(name: str, table: Any, common: Mapping[str, str], problems: list[str]) -> Source:
    where = f"sources.{name}"
    _check_name(where, name, problems)
    # Options of other sources may be dates.
    others = isinstance(table, Mapping) and table.get("format", OWN_FORMAT) not in (OWN_FORMAT, SPARK_FORMAT)
    options = {key: as_text(value) for key, value in _table(where, table, problems, dates=others).items()}
    kind = options.pop("format", OWN_FORMAT)
    watermark = _watermark(where, options, problems)
    decoding = _decoding(where, kind, options, problems)
    if kind in (OWN_FORMAT, SPARK_FORMAT):
        options = RedactedDict(common) | options
        with_options = {key: value for key, value in options.items() if kind == OWN_FORMAT or key in _CHECKED}
        _note(where, problems, lambda: source_options(with_options, streaming=True))
    return Source(name, kind, options, watermark, decoding)


def _decoding(where: str, kind: str, options: dict[str, str], problems: list[str]) -> dict[str, str]:
    """Those that are not the source's own, which it removes from ``options``."""
    decoding = RedactedDict({name: options.pop(name) for name in decoding_settings.NAMES if name in options})
    if decoding and kind != OWN_FORMAT:
        problems.append(f"{where}: {next(iter(decoding))} is an option of einmal's source, not of format {kind!r}")
    elif decoding:
        try:
            decoding_settings.decode_settings(decoding)
        except decoding_settings.SettingError as error:
            problems.append(f"{where}: {error}")
    return decoding


_CHECKED: Final = ("kafka.bootstrap.servers", "subscribe", "subscribePattern", "assign", "startingOffsets")
"""Options that both Kafka sources know; Spark's own has more, and checks them itself."""


def _view(name: str, value: Any, problems: list[str]) -> View:
    where = f"views.{name}"
    _check_name(where, name, problems)
    if isinstance(value, str):
        return View(name, value)
    options = {key: as_text(leaf) for key, leaf in _table(where, value, problems).items()}
    watermark = _watermark(where, options, problems)
    sql = options.pop("sql", None)
    if sql is None:
        problems.append(f'{where}: sql is missing\nhint: {name} = "SELECT ..."')
    refuse_unknown(where, options, ("sql", "watermark.column", "watermark.delay"), problems)
    return View(name, sql or "", watermark)


def _sink(name: str, table: Any, known: Collection[str] | None, problems: list[str]) -> DeclaredSink:
    where = f"sinks.{name}"
    options = {key: as_text(value) for key, value in _table(where, table, problems).items()}
    if any(option.startswith("kafka.") for option in options):
        problems.append(
            f"{where}: kafka.* belongs to the whole pipeline: all its output is one transaction in one cluster\n"
            "hint: set it at the top; a source that reads elsewhere has kafka.* of its own"
        )
        options = {key: value for key, value in options.items() if not key.startswith("kafka.")}
    kind = options.pop("type", KAFKA[0])
    origin = options.pop("from", None) if known is not None else None
    if known is not None and origin is None:
        problems.append(f'{where}: from is missing\nhint: from = "..." names one of: {", ".join(known)}')
    elif known is not None and origin not in known:
        problems.append(f"{where}: from = {origin!r} is no source or view{nearest(str(origin), known)}")
    names = () if known is None else ("from",)
    if kind in KAFKA:
        refuse_unknown(where, options, ("type", *names, "topic"), problems)
        _note(where, problems, lambda: Options(options).refuse_empty(("topic",)))
        return DeclaredSink(name, origin, options.get("topic"))
    return _checked(where, DeclaredSink(name, origin, None, kind, RedactedDict(options)), ("type", *names), problems)


def _checked(where: str, sink: DeclaredSink, common: tuple[str, ...], problems: list[str]) -> DeclaredSink:
    """A sink that is no topic, checked as far as its options alone can be."""
    try:
        own = sink_class(sink.kind)
    except OptionError as error:
        problems.append(f"{where}: {error}")
        return sink
    _check_name(where, sink.name, problems)
    before = len(problems)
    refuse_unknown(where, sink.options, (*common, *own.OPTIONS), problems)
    if len(problems) == before:
        _note(where, problems, lambda: own(Options(sink.options)).close())
    return sink


def _watermark(where: str, options: dict[str, str], problems: list[str]) -> Watermark | None:
    column, delay = options.pop("watermark.column", None), options.pop("watermark.delay", None)
    if column is None and delay is None:
        return None
    if not column or not delay:
        problems.append(f'{where}: a watermark has both: {{ column = "timestamp", delay = "10 seconds" }}')
    return Watermark(column or "", delay or "")


def _writer(
    top: Mapping[str, Any], common: Mapping[str, str], sinks: Sequence[DeclaredSink], problems: list[str]
) -> dict[str, str]:
    names = ("transactional.id", "processing.guarantee", "checkpointLocation", ADOPT)
    writer = {name: as_text(top[name]) for name in names if name in top}
    if any(sink.is_topic for sink in sinks) or not sinks:
        # The source's cluster may be another one; where it is not, one line at the top serves both.
        writer = RedactedDict(common) | writer
    _note("", problems, lambda: _options(sinks, writer))
    return writer


def _options(sinks: Sequence[DeclaredSink], writer: Mapping[str, str]) -> QueryOptions:
    if any(sink.is_topic for sink in sinks) or not sinks:
        return sink_options(writer, others=sum(not sink.is_topic for sink in sinks))
    return query_options(writer, ())


def _output_mode(top: Mapping[str, Any], problems: list[str]) -> str | None:
    mode = top.get("outputMode")
    if mode is not None and mode not in OUTPUT_MODES:
        problems.append(
            f"outputMode is one of {', '.join(OUTPUT_MODES)}, not {mode!r}{nearest(str(mode), OUTPUT_MODES)}"
        )
    return mode


def _trigger(top: Mapping[str, Any], problems: list[str]) -> dict[str, Any]:
    given = {name.removeprefix("trigger."): value for name, value in top.items() if name.startswith("trigger.")}
    available = str(given.pop("availableNow", False)).lower()
    if available not in ("true", "false"):
        problems.append(f"trigger.availableNow is true or false, not {available!r}")
    if available == "true" and "processingTime" in given:
        problems.append("trigger.processingTime and trigger.availableNow exclude each other")
    if "processingTime" in given:
        _note("", problems, lambda: trigger_interval_us("trigger.processingTime", as_text(given["processingTime"])))
    return {"availableNow": True} if available == "true" else {name: str(value) for name, value in given.items()}


# --- words ------------------------------------------------------------------------------------------------------


def _table(where: str, value: Any, problems: list[str], *, dates: bool = False) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        problems.append(f"{where} is a table, not {value!r}")
        return {}
    flat = flattened(value)
    refuse_same(where, value, problems)
    _refuse_odd(where, flat, problems, dates=dates)
    return flat


def _refuse_odd(where: str, flat: Mapping[str, Any], problems: list[str], *, dates: bool = False) -> None:
    """Note values whose text would be none of an option's: a list, None, and where there are no ``dates``, a date."""
    for name, leaf in flat.items():
        at = f"{where}: {name}" if where else name
        if isinstance(leaf, list | tuple):
            problems.append(f'{at} is one value, not a list\nhint: names are joined, as in "a,b"')
        elif not isinstance(leaf, str | int | float | PurePath | Mapping) and not (dates and isinstance(leaf, date)):
            problems.append(
                f"{at} is text, a number, true or false, not a {type(leaf).__name__}\nhint: text has quotes"
            )


def _refuse_same_in_sql(names: Sequence[str], what: str, problems: list[str]) -> None:
    """Note names that are one name in SQL, whose second would replace the first."""
    for same in same_names(names):
        if len(set(same)) == 1:
            problems.append(f"{same[0]!r} is the name of two {what}")
        else:
            problems.append(f"{' and '.join(map(repr, same))} differ only in case: SQL takes the {what} for one")


def _check_name(where: str, name: str, problems: list[str]) -> None:
    if not _NAME.fullmatch(name):
        problems.append(f"{where}: a name in SQL has letters, digits and underscores, and begins with no digit")


def _note(where: str, problems: list[str], check: Any) -> None:
    try:
        check()
    except OptionError as error:
        problems.append(f"{where}: {error}" if where else str(error))
