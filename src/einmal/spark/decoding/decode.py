"""``decode(frame, options)``: the records of a topic as typed columns, by a declared schema.

The decoded frame is an ordinary one: Spark's own columns, with ``value`` (and ``key``) typed. The pipeline finds the
decoded sources of a query in its plan, by the name of the function that decodes.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

from pyspark.accumulators import Accumulator
from pyspark.sql import DataFrame
from pyspark.sql.types import StructField, StructType, TimestampType

from einmal.extras import install_command
from einmal.options.source import UNDATED, topics_of
from einmal.options.values import OptionError
from einmal.pipeline.errors import PipelineRefused
from einmal.schemas.decoder import Limits
from einmal.schemas.errors import RegistryUnavailable, SchemaError, SchemaNotFound
from einmal.schemas.record_decoder import decoder_of
from einmal.schemas.registry import RegisteredSchema, SchemaRegistry
from einmal.schemas.settings import (
    EVOLVE,
    DecodeSettings,
    FieldSettings,
    LoadedField,
    SettingError,
    decode_settings,
    load_field,
)
from einmal.security.redaction import RedactedDict
from einmal.spark.decoding.reports import Reports
from einmal.spark.decoding.rows import RESCUED, Decoding, good_rows
from einmal.spark.environment.plans.plan_nodes import analyzed_plan, kind_of, plan_nodes
from einmal.spark.environment.plans.source_nodes import is_source, offset_numbers, source_names
from einmal.spark.environment.spark_session import require_classic_session

_MARK: Final = "einmal_decode_"
_RELATION: Final = "StreamingRelationV2"
_KEPT_MAX: Final = 1_000


@dataclass(frozen=True, slots=True)
class DecodedSource:
    """``options``: of its source, in lower case; None where it is none of ours, or a batch."""

    decoding: Decoding
    settings: DecodeSettings
    reports: Accumulator[Any]
    options: Mapping[str, str] | None


_sources: Final[dict[str, DecodedSource]] = {}
"""By the name of the function in the plan."""
_lock: Final = threading.Lock()


def decode(frame: DataFrame, options: Mapping[str, str], *, name: str | None = None) -> DataFrame:
    """The frame of a source with ``value``, ``key`` or both as typed columns. Without network, unless a registry has
    the schema.

    ``options``: those of a source in pipeline.toml (``value.format``, ``value.schema``, ``errors.tolerance`` ...).
    ``name``: of the source, for reports; by default its topics. Bad rows become dead letters where ``write_stream``
    writes the query. Raises OptionError, PipelineRefused.
    """
    try:
        settings = decode_settings({key: str(value) for key, value in options.items()})
    except SettingError as error:
        raise OptionError(str(error)) from error
    require_classic_session(frame, "decode looks into the query's plan, and counts bad rows, on the driver")
    source = _source_options(frame)
    if settings.tolerates and source is None:
        raise OptionError(
            "errors.tolerance=all reads the records of a dead letter a second time, from a stream of einmal's source\n"
            'hint: decode the frame that spark.readStream.format("einmal")...load() returns, before any other step'
        )
    topics = topics_of(source or {})
    registry = SchemaRegistry(settings.registry) if settings.registry else None
    fields = {
        field: _loaded(field, field_settings, registry, topics)
        for field, field_settings in (("key", settings.key), ("value", settings.value))
        if field_settings is not None
    }
    kinds = {field: _ddl(field, loaded) for field, loaded in fields.items()}
    rescues = settings.contract == EVOLVE
    decoding = Decoding(
        source=name or ",".join(topics) or "source",
        fields=fields,
        columns=_arrow(kinds),
        contract=settings.contract,
        registry=registry,
        rescues=rescues,
        tolerates=settings.tolerates,
        topic=settings.topic,
        context_headers=settings.context_headers,
    )
    if settings.tolerates and source is not None:
        # A timestamp that Spark does not have then makes a dead letter, too.
        reader = frame.sparkSession.readStream
        for source_name in source_names(frame):
            reader = reader.name(source_name)
        frame = reader.format("einmal").options(**source, **{UNDATED: "true"}).load()
    reports = frame.sparkSession.sparkContext.accumulator({}, Reports())
    function = good_rows(decoding, reports)
    function.__name__ = f"{_MARK}{uuid4().hex}"
    with _lock:
        if len(_sources) >= _KEPT_MAX:
            _sources.pop(next(iter(_sources)))
        _sources[function.__name__] = DecodedSource(decoding, settings, reports, source)
    return frame.mapInArrow(function, _schema(frame.schema, kinds, rescues=rescues))


def decoded_sources(frame: DataFrame) -> list[tuple[int, DecodedSource]]:
    """The decoded sources of a query, each with its number among the sources; of one that is read twice the first."""
    sources: dict[str, tuple[int, DecodedSource]] = {}
    number = 0
    pending: str | None = None
    for node in plan_nodes(frame):
        if kind_of(node) == "MapInArrow":
            function = str(node.functionExpr()).partition("(")[0]
            pending = function if function in _sources else pending
        elif is_source(node):
            if pending is not None:
                sources.setdefault(pending, (number, _sources[pending]))
            pending = None
            number += 1
    numbers = offset_numbers(frame, number)
    return [(numbers[at], source) for at, source in sources.values()]


def is_decoder(function: str) -> bool:
    """Whether a function in a plan decodes a source."""
    return function.startswith(_MARK)


# --- parts ------------------------------------------------------------------------------------------------------


def _source_options(frame: DataFrame) -> dict[str, str] | None:
    """The options of our source, if the frame is nothing but its stream."""
    plan = analyzed_plan(frame)
    if kind_of(plan) != _RELATION or str(plan.sourceName()) != "einmal":
        return None
    entries = plan.extraOptions().asCaseSensitiveMap()
    return RedactedDict({str(key).lower(): str(entries[key]) for key in entries})


def _loaded(field: str, settings: FieldSettings, registry: SchemaRegistry | None, topics: list[str]) -> LoadedField:
    """Raises OptionError, PipelineRefused."""

    def latest() -> RegisteredSchema:
        assert registry is not None
        if len(topics) != 1:
            raise SettingError(
                f"{field}.schema is missing, and the registry has a subject for each of {len(topics)} topics"
            )
        return registry.latest(f"{topics[0]}-{field}")

    try:
        return load_field(settings, lambda path: Path(path).read_bytes(), latest)
    except SettingError as error:
        raise OptionError(str(error)) from error
    except SchemaNotFound as error:
        raise PipelineRefused(
            f"the schema registry has no subject {topics[0]}-{field}", f"register the schema, or set {field}.schema"
        ) from error
    except RegistryUnavailable as error:
        raise PipelineRefused(str(error)) from error


def _ddl(field: str, loaded: LoadedField) -> str:
    try:
        return decoder_of(loaded, Limits()).ddl
    except SchemaError as error:
        raise OptionError(f"{field}.schema: {error}") from error
    except ModuleNotFoundError as error:
        raise OptionError(
            f"{field}.format={loaded.format} needs {error.name}\nhint: {install_command('schemas')}"
        ) from error


def _arrow(kinds: Mapping[str, str]) -> dict[str, Any]:
    from pyspark.sql.pandas.types import to_arrow_type
    from pyspark.sql.types import DataType

    return {field: to_arrow_type(DataType.fromDDL(ddl), timezone="UTC") for field, ddl in kinds.items()}


def _schema(before: StructType, kinds: Mapping[str, str], *, rescues: bool) -> str:
    names = {field.name for field in before.fields}
    missing = {"topic", "partition", "offset", *kinds} - names
    if missing:
        raise OptionError(
            f"the frame has no column {', '.join(sorted(missing))}: it is no source's\n"
            'hint: decode the frame of spark.readStream.format("einmal") before any other step'
        )
    columns = [f"`{field.name}` {kinds.get(field.name) or _kind(field)}" for field in before.fields]
    return ", ".join([*columns, f"`{RESCUED}` string"] if rescues else columns)


def _kind(field: StructField) -> str:
    # The short name is one without a zone under spark.sql.timestampType=TIMESTAMP_NTZ.
    return "timestamp_ltz" if isinstance(field.dataType, TimestampType) else field.dataType.simpleString()
