"""Sinks by the word of their type: ``type = "postgres"`` in a pipeline.toml, ``format("postgres")`` in a program.

A sink of a user's own is named by its import path, ``my_module:MySink``: there is nothing to register.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Final

from einmal.extras import install_command
from einmal.misspelt import nearest_name
from einmal.options.values import OptionError, Options
from einmal.sinks.sink import RowSink

KAFKA: Final = ("kafka", "einmal")
"""The words for topics, whose options are Spark's: see ``options.sink.sink_options``."""
KINDS: Final[Mapping[str, str]] = {
    "postgres": "einmal.sinks.postgres.sink:PostgresSink",
    "delta": "einmal.sinks.delta:DeltaSink",
    "duckdb": "einmal.sinks.duckdb:DuckDBSink",
    "iceberg": "einmal.sinks.iceberg:IcebergSink",
    "parquet": "einmal.sinks.parquet:ParquetSink",
    "sqlite": "einmal.sinks.sqlite:SQLiteSink",
}
"""Import paths, so that a type's packages are loaded only where it is used."""

_PACKAGES: Final[Mapping[str, str]] = {"delta": "deltalake", "duckdb": "duckdb", "iceberg": "pyiceberg"}
"""Package that a type needs and imports later."""
_SPARKS_FILES: Final = ("orc", "json", "csv", "text", "avro")


def sink_class(kind: str) -> type[RowSink]:
    """Raises OptionError for an unknown type, and where its packages are not installed."""
    module, _, name = KINDS.get(kind, kind).partition(":")
    if not name:
        if kind.lower() in _SPARKS_FILES:
            raise OptionError(
                f"there is no sink type {kind!r}: Spark's files have no transaction for rows and record\n"
                f'hint: Spark\'s own sink, df.writeStream.format("{kind.lower()}"), has its limits (docs/sinks.md, '
                "Spark's own files); or use parquet or delta"
            )
        near = nearest_name(kind, (*KINDS, *KAFKA))
        known = ", ".join(sorted((*KINDS, KAFKA[0])))
        raise OptionError(
            f"there is no sink type {kind!r}\n"
            f"hint: {f'did you mean {near!r}?' if near else f'there are {known}; or the import path of your own'}"
        )
    if kind in _PACKAGES and find_spec(_PACKAGES[kind]) is None:
        raise OptionError(f"sink type {kind!r} needs {_PACKAGES[kind]}\nhint: {install_command(kind)}")
    try:
        candidate = getattr(import_module(module), name)
    except ImportError as error:
        extra = install_command(kind) if kind in KINDS else f"{module} must be importable by the driver"
        raise OptionError(f"sink type {kind!r} cannot be loaded: {error}\nhint: {extra}") from error
    except AttributeError as error:
        raise OptionError(f"sink type {kind!r}: {module} has no {name}") from error
    if not (isinstance(candidate, type) and issubclass(candidate, RowSink)):
        raise OptionError(f"sink type {kind!r} is no einmal.sinks.sink.RowSink")
    return candidate


def new_sink(kind: str, given: Mapping[str, Any]) -> RowSink:
    """From the options of a query. Raises OptionError."""
    return sink_class(kind)(Options(given))
