"""Ingesters as they are declared in ``pipeline.toml``: tables ``[ingest.NAME]``, beside the pipeline's own.

``kafka.*`` are the settings of the producer, at the top for all of them. Options are checked where they are declared,
without connecting to anything; all errors of a file are reported at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from einmal.client.config import ProducerSettings, parse
from einmal.client.errors import ConfigError
from einmal.declare.document import DeclarationError, Variables, as_text, flattened, substituted, toml_tables
from einmal.extras import install_command
from einmal.ingest.deduplication.business_key import KEYS_MAX, Deduplicate
from einmal.ingest.files import FilesSource
from einmal.ingest.source import RecordSource
from einmal.misspelt import nearest_name
from einmal.options.values import OptionError, Options, check_topic
from einmal.security.redaction import RedactedDict

_KAFKA: Final = "kafka."
FILES_OPTIONS: Final = ("path", "topic", "key", "content", "max.line.bytes", "skip.long.lines", "failOnDataLoss")
TABLE_OPTIONS: Final = (
    "url", "user", "password", "sslmode", "sslrootcert", "sslcert", "sslkey", "sslcrl", "table", "column", "topic",
    "max.batch.size", "statement_timeout", "lock_timeout",
)  # fmt: skip
DEDUPLICATE_OPTIONS: Final = ("key", "window", "max.keys")
_DEDUPLICATE: Final = "deduplicate"
_BATCH_MAX: Final = 2**31 - 1
_KEYS: Final = ("none", "file")
_CONTENTS: Final = ("recognised", "bytes")


@dataclass(frozen=True, slots=True)
class IngestDeclaration:
    """``client``: settings of the producer, under Kafka's names. ``options``: of the source, which ``source`` makes
    without opening anything. ``deduplicate``: None where the source's duplicates are written."""

    name: str
    kind: str
    client: Mapping[str, str]
    options: Mapping[str, str]
    source: Callable[[], RecordSource]
    deduplicate: Deduplicate | None = None


def declared(
    text: str, environment: Mapping[str, str], read: Callable[[str], str], only: str | None = None
) -> dict[str, IngestDeclaration]:
    """By name. ``read``: the text of a file that a value refers to (OSError). ``only``: the one that is to run; what is
    wrong with the others does not keep it from that. Raises DeclarationError."""
    document = toml_tables(text)
    problems: list[str] = []
    # Settings of the pipeline are checked, and replaced, when that runs.
    own = {name: value for name, value in document.items() if name in ("kafka", "ingest") or name.startswith(_KAFKA)}
    tables = own.get("ingest", {})
    if not isinstance(tables, Mapping) or not tables:
        raise DeclarationError(['no ingester is declared\nhint: [ingest.logs] with type = "files"'])
    if only is not None:
        if only not in tables:
            raise DeclarationError([f"no ingester {only!r} is declared, only {', '.join(tables)}"])
        own["ingest"] = {only: tables[only]}
    own = substituted(own, Variables(environment, read), problems, "")
    tables = own.pop("ingest")
    common = flattened(own)
    declarations = {name: _declared(name, table, common, problems) for name, table in tables.items()}
    if problems:
        raise DeclarationError(problems)
    return {name: declaration for name, declaration in declarations.items() if declaration is not None}


def _declared(name: str, table: Any, common: Mapping[str, Any], problems: list[str]) -> IngestDeclaration | None:
    where = f"ingest.{name}"
    if not isinstance(table, Mapping):
        problems.append(f"{where} is a table, not {table!r}")
        return None
    values = {**common, **flattened(table)}
    odd = {key: value for key, value in values.items() if not _is_option(key, value)}
    problems += [f"{where}: {_odd(key, value)}" for key, value in odd.items()]
    if odd:
        return None
    options = {key: as_text(value) for key, value in values.items()}
    client = RedactedDict({key.removeprefix(_KAFKA): options.pop(key) for key in [*options] if key.startswith(_KAFKA)})
    deduplicating = {
        key.removeprefix(f"{_DEDUPLICATE}."): options.pop(key)
        for key in [*options]
        if key.startswith(f"{_DEDUPLICATE}.")
    }
    kind = options.pop("type", "")
    if kind not in _KINDS:
        near = nearest_name(kind, _KINDS)
        hint = f"did you mean {near!r}?" if near else f"known are: {', '.join(_KINDS)}"
        problems.append(f"{where}: type = {kind!r} is no kind of source\nhint: {hint}")
        return None
    try:
        if options.pop(_DEDUPLICATE, None) is not None:
            raise OptionError(
                f'{_DEDUPLICATE} is a table\nhint: {_DEDUPLICATE} = {{ key = "value.id", window = "1h" }}'
            )
        source = _KINDS[kind].source(options)
        deduplicate = _deduplicate(kind, options, deduplicating) if _DEDUPLICATE in table else None
        parse(ProducerSettings, client, {})
    except (OptionError, ConfigError) as error:
        problems.append(f"{where}: {error}")
        return None
    return IngestDeclaration(name, kind, client, RedactedDict(options), source, deduplicate)


def _is_option(name: str, value: Any) -> bool:
    """Whether a value of the file can be the text of an option."""
    # An empty table of options of a deduplication is refused as such.
    return isinstance(value, str | bool | int | float) or (name == _DEDUPLICATE and isinstance(value, Mapping))


def _odd(name: str, value: Any) -> str:
    if isinstance(value, list):
        several = "; another pattern of files is another ingester" if name == "path" else ""
        return f'option "{name}" is text, not an array\nhint: {name} = "..."; several values are "a,b"{several}'
    kind = "a table" if isinstance(value, Mapping) else f"a {type(value).__name__}"
    return f'option "{name}" is text, not {kind}\nhint: write the value in quotation marks'


def _deduplicate(kind: str, source: Mapping[str, str], given: Mapping[str, str]) -> Deduplicate:
    options = Options(given)
    options.refuse_unknown(DEDUPLICATE_OPTIONS, kafka=False)
    key = options.required("key", "value.order_id")
    if key == "key":
        raise OptionError(
            f'option "{_DEDUPLICATE}.key" is "key", which all records of a {_KINDS[kind].has_one_key} share: '
            "they would count as duplicates of the first\n"
            'hint: "value.FIELD" or "header:NAME" of something that each event has of its own'
        )
    if kind == "postgresql" and not source.get("outbox.tables"):
        raise OptionError(
            "a database's log has each change once, so nothing is to be removed from it; what its writers repeat are "
            f"changes of their own\nhint: leave {_DEDUPLICATE} out, or declare outbox.tables, whose events have an id"
        )
    options.required("window", "1h")
    window_ms, keys_max = options.duration_ms("window", 0), options.number("max.keys", KEYS_MAX) or 0
    return Deduplicate(key, window_ms, keys_max)


def _files(given: Mapping[str, str]) -> Callable[[], RecordSource]:
    options = Options(given)
    options.refuse_unknown(FILES_OPTIONS, kafka=False)
    path, topic = options.required("path", "/var/log/app.log*"), options.required("topic", "logs")
    check_topic("topic", topic)
    key, content = _one_of(options, "key", _KEYS), _one_of(options, "content", _CONTENTS)
    line_bytes = options.number("max.line.bytes", 1_000_000) or 0
    skip_long_lines = options.flag("skip.long.lines", False)
    fail_on_data_loss = options.flag("failOnDataLoss", True)
    return lambda: FilesSource(
        path,
        topic,
        key_by_file=key == "file",
        line_bytes=line_bytes,
        skip_long_lines=skip_long_lines,
        fail_on_data_loss=fail_on_data_loss,
        is_as_stored=content == "bytes",
    )


def _one_of(options: Options, name: str, values: tuple[str, ...]) -> str:
    """The first of them by default."""
    value = (options.text(name) or values[0]).lower()
    if value not in values:
        raise OptionError(f'option "{name}" is one of {", ".join(values)}, not {value!r}')
    return value


def _table(given: Mapping[str, str]) -> Callable[[], RecordSource]:
    _require_psycopg()
    from einmal.ingest.tables import TableSource
    from einmal.postgresql.options import connecting

    options = Options(given)
    options.refuse_unknown(TABLE_OPTIONS, kafka=False)
    table, column = options.required("table", "public.orders"), options.required("column", "id")
    topic = options.required("topic", "orders")
    check_topic("topic", topic)
    rows = options.number("max.batch.size", 10_000, maximum=_BATCH_MAX) or 0
    server = connecting(options)
    return lambda: TableSource(
        server.conninfo,
        table,
        column,
        topic,
        batch_rows=rows,
        statement_timeout_ms=server.statement_timeout_ms,
        lock_timeout_ms=server.lock_timeout_ms,
    )


def _postgresql(given: Mapping[str, str]) -> Callable[[], RecordSource]:
    _require_psycopg()
    from einmal.ingest.postgresql.options import capture_options
    from einmal.ingest.postgresql.source import PostgresSource

    options = capture_options(given)
    return lambda: PostgresSource(options)


def _require_psycopg() -> None:
    try:
        import psycopg  # noqa: F401
    except ImportError as error:
        raise OptionError(f"psycopg is not installed\nhint: {install_command('postgres')}") from error


class _Kind(NamedTuple):
    source: Callable[[Mapping[str, str]], Callable[[], RecordSource]]
    """Makes a source of its options."""
    has_one_key: str
    """All records of one have the same key."""


_KINDS: Final[Mapping[str, _Kind]] = {
    "files": _Kind(_files, "file"),
    "table": _Kind(_table, "row"),
    "postgresql": _Kind(_postgresql, "row"),
}
