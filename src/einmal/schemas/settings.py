"""The options of a source that declare its format, its schema, and what happens to bad rows; the last also of a sink.
Pure.

``errors.*`` are Kafka Connect's properties, ``key.format``, ``value.format`` and ``debezium-json`` Flink's, those of
the registry Confluent's, and the values of ``schema.contract`` dlt's.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlsplit

from einmal.misspelt import nearest_name
from einmal.schemas import registry
from einmal.schemas.ddl import parsed_columns
from einmal.schemas.errors import SchemaError
from einmal.security.redaction import RedactedDict

DEBEZIUM: Final = "debezium-json"
FORMATS: Final = ("json", "avro", "protobuf", DEBEZIUM)
EVOLVE: Final = "evolve"
FREEZE: Final = "freeze"
DISCARD_ROW: Final = "discard_row"
DISCARD_VALUE: Final = "discard_value"
CONTRACTS: Final = (EVOLVE, FREEZE, DISCARD_ROW, DISCARD_VALUE)
CONTRACT: Final = "schema.contract"
TOLERANCE: Final = "errors.tolerance"
LIMIT: Final = "errors.deadletterqueue.limit"
TOPIC: Final = "errors.deadletterqueue.topic.name"
CONTEXT: Final = "errors.deadletterqueue.context.headers.enable"
_FIELDS: Final = tuple(
    f"{field_name}.{name}" for field_name in ("key", "value") for name in ("format", "schema", "message")
)
ERRORS: Final = (TOLERANCE, LIMIT, TOPIC, CONTEXT)
NAMES: Final = (*_FIELDS, *registry.SETTINGS, CONTRACT, *ERRORS)
_RECORDS_MIN: Final = 100
_LIMIT: Final = re.compile(r"(\d{1,12})|(\d{1,3}(?:\.\d{1,6})?)\s*%")


class SettingError(ValueError):
    """A setting is missing, unknown, or has a value that it cannot have."""


@dataclass(frozen=True, slots=True)
class FieldSettings:
    """``schema``: a file, the text itself, or None: the registry's latest version. ``message``: Protobuf's."""

    format: str
    schema: str | None
    message: str | None


@dataclass(frozen=True, slots=True)
class Limit:
    """How many dead letters a batch may have: ``count``, or ``share`` of the source's records, as of 100 at least: one
    bad row is a large share of a small batch."""

    count: int | None = None
    share: float | None = None

    def is_exceeded(self, bad: int, records: int) -> bool:
        if self.count is not None:
            return bad > self.count
        return self.share is not None and bad > self.share * max(records, _RECORDS_MIN)


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorSettings:
    """Treatment of bad rows: those of a source, or those that a sink's target rejects."""

    tolerates: bool = False
    """``errors.tolerance=all``: a bad row becomes a dead letter. Otherwise it stops the pipeline."""
    topic: str | None = None
    context_headers: bool = True
    limit: Limit = Limit()


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeSettings(ErrorSettings):
    key: FieldSettings | None
    value: FieldSettings | None
    registry: Mapping[str, str] = field(default_factory=dict)
    contract: str = EVOLVE


def decode_settings(given: Mapping[str, str]) -> DecodeSettings:
    """Raises SettingError."""
    for name in given:
        if name not in NAMES:
            near = nearest_name(name, NAMES)
            raise SettingError(f"unknown option {name!r}\nhint: " + (f"did you mean {near!r}?" if near else "see docs"))
    errors = error_settings(given)
    settings = DecodeSettings(
        key=_field("key", given),
        value=_field("value", given),
        registry=_registry(given),
        contract=_one_of(given, CONTRACT, CONTRACTS),
        tolerates=errors.tolerates,
        topic=errors.topic,
        context_headers=errors.context_headers,
        limit=errors.limit,
    )
    _check(settings)
    return settings


def error_settings(given: Mapping[str, str]) -> ErrorSettings:
    """From the options of ``ERRORS``. Raises SettingError."""
    settings = ErrorSettings(
        tolerates=_one_of(given, TOLERANCE, ("none", "all")) == "all",
        topic=given.get(TOPIC),
        context_headers=_one_of(given, CONTEXT, ("true", "false")) == "true",
        limit=_limit(given.get(LIMIT)),
    )
    if settings.tolerates and not settings.topic:
        raise SettingError(f"{TOLERANCE}=all drops no row: it needs a dead-letter topic\nhint: set {TOPIC}")
    return settings


def _check(settings: DecodeSettings) -> None:
    if settings.key is None and settings.value is None:
        raise SettingError('no format is declared\nhint: value.format = "json" with value.schema = "FILE"')
    _check_changes(settings)
    for field_settings in (settings.key, settings.value):
        if (
            field_settings is not None
            and field_settings.schema is None
            and (field_settings.format == "protobuf" or not settings.registry)
        ):
            hint = "a JSON Schema, an .avsc file, descriptors of Protobuf, or columns in Spark's DDL for debezium-json"
            raise SettingError(f"format {field_settings.format} has no schema\nhint: value.schema names {hint}")
    if settings.contract == DISCARD_ROW and not settings.tolerates:
        raise SettingError(
            f"{CONTRACT}={DISCARD_ROW} makes dead letters of rows\nhint: set {TOLERANCE}=all and {TOPIC}, or "
            f"{CONTRACT}={FREEZE} to stop at such a row"
        )


def _check_changes(settings: DecodeSettings) -> None:
    """The format of changed rows, if it is declared."""
    if settings.key is not None and settings.key.format == DEBEZIUM:
        raise SettingError(f"{DEBEZIUM} is a format of values, which have the key's columns, too")
    if settings.value is None or settings.value.format != DEBEZIUM:
        return
    if settings.registry:
        raise SettingError(f"{DEBEZIUM} has no schema registry\nhint: value.schema has the row's columns")
    if settings.value.schema is not None:
        try:
            parsed_columns(settings.value.schema)
        except SchemaError as error:
            raise SettingError(f"value.schema: {error}") from error


def _field(field_name: str, given: Mapping[str, str]) -> FieldSettings | None:
    kind = given.get(f"{field_name}.format")
    if kind is None:
        lost = [name for name in given if name.startswith(f"{field_name}.")]
        if lost:
            raise SettingError(
                f"{lost[0]} is set without {field_name}.format\nhint: {field_name}.format: {', '.join(FORMATS)}"
            )
        return None
    if kind not in FORMATS:
        raise SettingError(f"{field_name}.format is {', '.join(FORMATS)}, not {kind!r}")
    return FieldSettings(kind, given.get(f"{field_name}.schema"), given.get(f"{field_name}.message"))


def _registry(given: Mapping[str, str]) -> Mapping[str, str]:
    settings = {name: given[name] for name in registry.SETTINGS if given.get(name)}
    if settings and registry.URL not in settings:
        raise SettingError(f"{next(iter(settings))} is set without {registry.URL}")
    for url in settings.get(registry.URL, "").split(",") if settings else ():
        if not _is_url(url.strip()):
            raise SettingError(f"{registry.URL} is an http or https URL, or several with commas between them")
    return RedactedDict(settings)


def _is_url(text: str) -> bool:
    try:
        parts = urlsplit(text)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def _one_of(given: Mapping[str, str], name: str, values: tuple[str, ...]) -> str:
    """The first value is the default."""
    value = given.get(name, values[0]).strip().lower()
    if value not in values:
        raise SettingError(f"{name} is {', '.join(values)}, not {value!r}")
    return value


def _limit(text: str | None) -> Limit:
    if text is None:
        return Limit()
    match = _LIMIT.fullmatch(text.strip())
    if match is None or (match[2] is not None and float(match[2]) > 100):
        raise SettingError(f"{LIMIT} is a number of rows per batch, or a share of them such as 1%, not {text!r}")
    return Limit(count=int(match[1])) if match[1] is not None else Limit(share=float(match[2]) / 100)


@dataclass(frozen=True, slots=True)
class LoadedField:
    """A field with the text of its schema, as tasks get it; descriptors of Protobuf are in base 64. ``references``: the
    texts of the Avro schemas that it refers to, in order."""

    format: str
    schema: str
    message: str | None = None
    references: tuple[str, ...] = ()


def load_field(
    settings: FieldSettings, read: Callable[[str], bytes], latest: Callable[[], registry.RegisteredSchema] | None
) -> LoadedField:
    """``read`` reads a file; ``latest`` asks the registry. Raises SettingError, and what both raise."""
    if settings.schema is None:
        assert latest is not None
        registered = latest()
        if registered.kind != registry.KINDS[settings.format]:
            raise SettingError(
                f"the registry's latest schema is {registered.kind}, and format {settings.format} is declared"
            )
        return LoadedField(settings.format, registered.text, settings.message, tuple(registered.references.values()))
    if settings.format == DEBEZIUM:
        # A list of columns is short, and has no file.
        return LoadedField(settings.format, settings.schema)
    if settings.format != "protobuf" and settings.schema.lstrip().startswith(("{", "[", '"')):
        return LoadedField(settings.format, settings.schema, settings.message)
    try:
        content = read(settings.schema)
    except OSError as error:
        raise SettingError(f"the schema {settings.schema} cannot be read: {error.strerror}") from error
    if settings.format == "protobuf":
        return LoadedField(settings.format, base64.b64encode(content).decode(), settings.message)
    try:
        return LoadedField(settings.format, content.decode("utf-8"), settings.message)
    except UnicodeDecodeError as error:
        raise SettingError(f"the schema {settings.schema} is not UTF-8") from error
