"""Options of a PostgreSQL sink, and the names that follow from them."""

from __future__ import annotations

import subprocess
import sys

import pytest

from einmal.declare.document import DeclarationError
from einmal.declare.pipeline import parse
from einmal.options.values import OptionError, Options
from einmal.postgresql.names import NAME_BYTES_MAX
from einmal.sinks.kinds import sink_class
from einmal.sinks.postgres.names import application_name, epoch_of_application, epoch_of_staging, staging_name
from einmal.sinks.postgres.options import Mode, PostgresOptions, postgres_options

URL = "postgresql://loader@db.example.com:5432/shop"


def options(**given: str) -> PostgresOptions:
    return postgres_options(Options({"url": URL, "table": "orders", **given}))


def test_names_of_staging_tables_fit_and_carry_the_epoch() -> None:
    name = staging_name("p" * 500, 2**31, 10**6, 10**9)
    assert len(name) <= NAME_BYTES_MAX
    assert epoch_of_staging(name) == 2**31
    assert epoch_of_staging(name + "x") is None


def test_a_session_is_recognised_by_pipeline_and_epoch() -> None:
    name = application_name("s", "p", 7)
    assert len(name) <= NAME_BYTES_MAX
    assert epoch_of_application("s", "p", name) == 7
    assert epoch_of_application("s", "q", name) is None
    assert epoch_of_application("t", "p", name) is None
    assert epoch_of_application("s", "p", application_name("s", "p", None)) is None


def test_defaults_are_an_append_into_a_table_that_is_created() -> None:
    made = options()
    assert (made.mode, made.create_table, made.schema) == (Mode.APPEND, True, "public")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"mode": "replace"}, "append, upsert, scd2"),
        ({"mode": "upsert"}, 'option "key" is missing'),
        ({"key": "id"}, 'option "key" has no effect'),
        ({"mode": "upsert", "key": "id,id"}, "names a column twice"),
    ],
)
def test_options_that_cannot_be_are_refused(given: dict[str, str], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        options(**given)


def test_no_text_of_the_options_has_the_password() -> None:
    made = options(password="hunter2", user="loader")
    assert "hunter2" not in f"{made} {made!r} {made.connecting}"


def test_records_are_managed_without_spark() -> None:
    program = "import sys, einmal.sinks.postgres.sink; sys.exit('pyspark' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=300)


@pytest.mark.parametrize("kind", ["postgres", "sqlite", "duckdb", "iceberg"])
def test_the_name_of_a_table_in_sparks_jdbc_source_is_refused_with_ours(kind: str) -> None:
    with pytest.raises(OptionError, match='unknown option "dbtable"\nhint: did you mean "table"'):
        Options({"dbtable": "orders"}).refuse_unknown(sink_class(kind).OPTIONS)
    text = f'[sources.a]\nsubscribe = "a"\n[sinks.b]\nfrom = "a"\ntype = "{kind}"\ndbtable = "orders"'
    with pytest.raises(DeclarationError, match="unknown key 'dbtable'\nhint: did you mean 'table'"):
        parse(text, {}, {})
