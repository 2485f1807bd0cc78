"""Claims about files that declare a pipeline: which kind a file is, and that what it declares is what is written."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from einmal.client import Producer
from einmal.declare.document import DeclarationError
from einmal.pipeline.errors import PipelineRefused
from einmal.spark.api.program import ProgramKind, kind_of, load, rows, run_whole, session_settings, writer
from tests.interop.einmal_broker import EinmalBroker
from tests.spark.topics import create, fill, records, values
from tests.suite.shared import unique

FUNCTION = """
from einmal.spark import pipeline

@pipeline(
    transactional_id={name!r},
    checkpointLocation={checkpoint!r},
    kafka={{"bootstrap.servers": {bootstrap!r}}},
    sources={{"numbers": {{"subscribe": {source!r}, "startingOffsets": "earliest"}}}},
    sinks={{"even": {{"topic": {name!r}}}}},
    trigger={{"availableNow": True}},
)
def even(numbers):
    return numbers.filter("cast(cast(value as string) as int) % 2 = 0").select("key", "value")
"""
TWO_SINKS = """
transactional.id = "{name}"
checkpointLocation = "{checkpoint}"
kafka.bootstrap.servers = "{bootstrap}"
trigger.availableNow = true

[sources.numbers]
subscribe = "{source}"
startingOffsets = "earliest"

[views]
parsed = "SELECT key, CAST(CAST(value AS STRING) AS INT) AS number FROM numbers"
even = "SELECT key, CAST(number AS STRING) AS value FROM parsed WHERE number % 2 = 0"
odd = "SELECT CAST(number AS STRING) AS value, '{name}-odd' AS topic FROM parsed WHERE number % 2 = 1"

[sinks.even]
from = "even"
topic = "{name}"

[sinks.odd]
from = "odd"
"""


def written(tmp_path: Path, suffix: str, text: str, **fields: str) -> Path:
    path = tmp_path / f"declared{suffix}"
    path.write_text(text.format(**fields))
    return path


def fields_of(tmp_path: Path, bootstrap: str) -> dict[str, str]:
    name = unique("declared")
    return {
        "name": name,
        "checkpoint": str(tmp_path / "checkpoint"),
        "bootstrap": bootstrap,
        "source": f"{name}-in",
    }


def test_a_declared_function_is_one_and_stays_a_function(tmp_path: Path) -> None:
    path = written(tmp_path, ".py", FUNCTION, **fields_of(tmp_path, "h:1"))
    program = load(path, {"processing.guarantee": "at_least_once"})
    assert program.function is not None
    assert program.declaration.options.guarantee == "at_least_once"

    class Frame:
        def filter(self, _: str) -> Frame:
            return self

        def select(self, *columns: str) -> tuple[str, ...]:
            return columns

    assert program.function(Frame()) == ("key", "value")


def test_a_file_that_declares_nothing_is_a_whole_program_and_is_not_run_to_find_out(tmp_path: Path) -> None:
    assert kind_of(written(tmp_path, ".py", "raise SystemExit('it was run')\n")) is ProgramKind.WHOLE


def test_a_project_of_declarative_pipelines_is_left_to_sparks_command(tmp_path: Path) -> None:
    with pytest.raises(
        DeclarationError, match=r"run by Spark\nhint: spark-pipelines run --spec .*exactly_once_v2, .*state"
    ):
        kind_of(written(tmp_path, ".yml", "name: orders\n"))


@pytest.mark.parametrize(
    ("line", "decorator"),
    [
        ("from einmal.spark import pipeline as exactly", "@exactly("),
        ("import einmal.spark as es", "@es.pipeline("),
        ("import einmal.spark", "@einmal.spark.pipeline("),
        ("from einmal.spark import *", "@pipeline("),
        ("if True:\n    from einmal.spark import pipeline as exactly", "@exactly("),
    ],
)
def test_a_declared_function_is_one_under_whichever_name_its_decorator_has(
    tmp_path: Path, line: str, decorator: str
) -> None:
    text = FUNCTION.replace("from einmal.spark import pipeline", line).replace("@pipeline(", decorator)
    text = text.replace("    trigger=", "    spark={{'sql.x': 3}},\n    trigger=")
    path = written(tmp_path, ".py", text, **fields_of(tmp_path, "h:1"))
    assert kind_of(path) is ProgramKind.FUNCTION
    assert session_settings(path) == {"spark.sql.x": "3"}


@pytest.mark.parametrize("head", ["if True:", "try:", "for _ in 'a':", "with open(__file__):", "if False: pass\nelse:"])
def test_a_declared_function_may_be_behind_a_condition(tmp_path: Path, head: str) -> None:
    body = textwrap.indent(FUNCTION, "    ") + ("\nfinally: pass\n" if head == "try:" else "")
    path = written(tmp_path, ".py", f"{head}\n{body}", **fields_of(tmp_path, "h:1"))
    assert kind_of(path) is ProgramKind.FUNCTION
    assert load(path, {}).declaration.topic


def test_a_declared_function_with_a_second_name_is_one(tmp_path: Path) -> None:
    assert load(written(tmp_path, ".py", FUNCTION + "\nsame = even\n", **fields_of(tmp_path, "h:1")), {}).function


def test_a_declared_function_that_no_import_defines_is_refused_with_the_reason(tmp_path: Path) -> None:
    text = "if __name__ == '__main__':\n" + textwrap.indent(FUNCTION, "    ")
    path = written(tmp_path, ".py", text, **fields_of(tmp_path, "h:1"))
    with pytest.raises(DeclarationError, match="declares no pipeline when it is imported"):
        load(path, {})


def test_a_program_that_only_leaves_a_declared_function_has_not_run_it(tmp_path: Path) -> None:
    text = FUNCTION.replace("@pipeline(", "exactly = pipeline(").replace("def even", "@exactly\ndef even")
    path = written(tmp_path, ".py", text, **fields_of(tmp_path, "h:1"))
    assert kind_of(path) is ProgramKind.WHOLE
    assert run_whole(path) == ["even"]
    importing = path.with_name("importing.py")
    importing.write_text("from declared import even\n")
    assert run_whole(importing) == []


def test_a_functions_session_settings_are_known_before_its_file_runs(tmp_path: Path) -> None:
    fields = fields_of(tmp_path, "h:1")
    declared = FUNCTION.replace("    trigger=", '    spark={{"sql": {{"shuffle.partitions": 3}}}},\n    trigger=')
    path = written(tmp_path, ".py", "raise SystemExit('it was run')\n" + declared, **fields)
    assert kind_of(path) is ProgramKind.FUNCTION
    assert session_settings(path) == {"spark.sql.shuffle.partitions": "3"}
    with pytest.raises(DeclarationError, match="plain values"):
        session_settings(written(tmp_path, ".py", declared.replace("3", "len(x)"), **fields))


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (FUNCTION.replace("even(numbers)", "even(orders)"), "takes orders, but the declared sources are numbers"),
        (FUNCTION + FUNCTION.replace("def even", "def other"), "declares 2 pipelines"),
        (FUNCTION.replace("sinks=", "sink="), "did you mean 'sinks'"),
        ("def broken(:", "line 1"),
    ],
)
def test_a_function_that_cannot_be_meant_is_refused(tmp_path: Path, text: str, complaint: str) -> None:
    with pytest.raises(DeclarationError, match=complaint):
        load(written(tmp_path, ".py", text, **fields_of(tmp_path, "h:1")), {})


@pytest.mark.long
@pytest.mark.spark
def test_a_declared_function_writes_what_it_returns(spark: SparkSession, bootstrap: str, tmp_path: Path) -> None:
    fields = fields_of(tmp_path, bootstrap)
    create(bootstrap, fields["source"], fields["name"])
    fill(bootstrap, fields["source"], range(10))
    program = load(written(tmp_path, ".py", FUNCTION, **fields), {})
    writer(program, spark).start().awaitTermination()
    assert sorted(values(bootstrap, fields["name"])) == ["0", "2", "4", "6", "8"]


@pytest.mark.spark
def test_views_are_written_to_several_topics_in_one_transaction(
    spark: SparkSession, bootstrap: str, tmp_path: Path
) -> None:
    fields = fields_of(tmp_path, bootstrap)
    create(bootstrap, fields["source"], fields["name"], f"{fields['name']}-odd")
    fill(bootstrap, fields["source"], range(10))
    program = load(written(tmp_path, ".toml", TWO_SINKS, **fields), {})
    writer(program, spark).start().awaitTermination()
    even, odd = records(bootstrap, fields["name"]), records(bootstrap, f"{fields['name']}-odd")
    assert {(record.key, record.value) for _, record in even} == {
        (f"k{number % 5}".encode(), str(number).encode()) for number in range(0, 10, 2)
    }
    assert sorted((record.value or b"").decode() for _, record in odd) == ["1", "3", "5", "7", "9"]
    assert {record.key for _, record in odd} == {None}


@pytest.mark.spark
@pytest.mark.parametrize("suffix", [".toml", ".py"])
@pytest.mark.representatives(1)
def test_a_moved_checkpoint_is_adopted_by_one_start_with_the_option_of_the_command_line(
    spark: SparkSession, bootstrap: str, tmp_path: Path, suffix: str
) -> None:
    fields = fields_of(tmp_path, bootstrap)
    create(bootstrap, fields["source"], fields["name"], f"{fields['name']}-odd")
    fill(bootstrap, fields["source"], range(10))
    path = written(tmp_path, suffix, TWO_SINKS if suffix == ".toml" else FUNCTION, **fields)
    writer(load(path, {}), spark).start().awaitTermination()
    moved = Path(fields["checkpoint"]).rename(tmp_path / "moved")
    fill(bootstrap, fields["source"], range(10, 20))
    overrides = {"checkpointLocation": str(moved)}
    with pytest.raises(PipelineRefused, match="belongs to the query with checkpoint") as refused:
        writer(load(path, overrides), spark).start()
    assert "einmal run -X" in refused.value.hint
    writer(load(path, overrides | {"einmal.adopt": "true"}), spark).start().awaitTermination()
    assert sorted(values(bootstrap, fields["name"]), key=int) == [str(number) for number in range(0, 20, 2)]
    # The record is of the new location now.
    writer(load(path, overrides), spark).start().awaitTermination()


@pytest.mark.spark
def test_a_view_that_is_no_sql_is_named(spark: SparkSession, tmp_path: Path) -> None:
    text = TWO_SINKS.replace("FROM numbers", "FROM letters")
    program = load(written(tmp_path, ".toml", text, **fields_of(tmp_path, "127.0.0.1:1")), {})
    with pytest.raises(PipelineRefused, match="views.parsed: .*letters"):
        writer(program, spark)


_EVEN = "SELECT key, CAST(number AS STRING) AS value FROM parsed WHERE number % 2 = 0"


@pytest.mark.spark
@pytest.mark.parametrize(
    ("view", "complaint"),
    [
        ("SELECT key, CAST(number AS STRING) AS valeu FROM parsed", 'sinks.even: column "value" is missing'),
        ("SELECT CAST(number AS STRING) AS value, key AS kye FROM parsed", "sinks.even: column 'kye' is not written"),
        ("SELECT CAST(number AS STRING) AS value, 1 AS partiton FROM parsed", "did you mean 'partition'"),
        ("SELECT CAST(number AS STRING) AS value, key AS keys FROM parsed", "did you mean 'key'"),
        ("SELECT CAST(number AS STRING) AS value, key AS Header FROM parsed", "did you mean 'headers'"),
        ("SELECT key, number AS value FROM parsed", 'sinks.even: column "value" is string or binary, not int'),
        ("SELECT key, '1' AS value, 'x' AS `VALUE` FROM parsed", 'sinks.even: column "VALUE" is not written'),
    ],
)
@pytest.mark.parametrize("beside", ["", "\n[sinks.table]\nfrom = 'odd'\ntype = 'sqlite'\npath = 'x'\ntable = 'x'\n"])
def test_a_column_that_another_sink_has_is_not_filled_with_nulls(
    spark: SparkSession, tmp_path: Path, view: str, complaint: str, beside: str
) -> None:
    text = TWO_SINKS.replace(_EVEN, view) + beside
    program = load(written(tmp_path, ".toml", text, **fields_of(tmp_path, "127.0.0.1:1")), {})
    with pytest.raises(PipelineRefused, match=re.escape(complaint)):
        writer(program, spark)


@pytest.mark.spark
@pytest.mark.parametrize("view", ["SELECT key AS Key, {} AS VALUE FROM parsed", "SELECT key, {} AS value FROM parsed"])
@pytest.mark.representatives(1)
def test_columns_are_written_whatever_their_case_and_bytes_beside_text(
    spark: SparkSession, bootstrap: str, tmp_path: Path, view: str
) -> None:
    fields = fields_of(tmp_path, bootstrap)
    create(bootstrap, fields["source"], fields["name"], f"{fields['name']}-odd")
    fill(bootstrap, fields["source"], range(4))
    as_bytes = view.format("CAST(CAST(number AS STRING) AS BINARY)") + " WHERE number % 2 = 0"
    program = load(written(tmp_path, ".toml", TWO_SINKS.replace(_EVEN, as_bytes), **fields), {})
    writer(program, spark).start().awaitTermination()
    even = {(record.key, record.value) for _, record in records(bootstrap, fields["name"])}
    assert even == {(b"k0", b"0"), (b"k2", b"2")}
    assert sorted(values(bootstrap, f"{fields['name']}-odd")) == ["1", "3"]


@pytest.mark.spark
def test_columns_with_other_names_are_left_out_and_nulls_have_the_type_of_their_column(
    spark: SparkSession, bootstrap: str, tmp_path: Path
) -> None:
    fields = fields_of(tmp_path, bootstrap)
    create(bootstrap, fields["source"], fields["name"], f"{fields['name']}-odd")
    fill(bootstrap, fields["source"], range(4))
    names = ("position", "portion", "readers", "leaders", "pkey", "keyed", "partitioned", "they")
    others = f"SELECT CAST(number AS STRING) AS value, {', '.join(f'1 AS {name}' for name in names)} FROM parsed"
    nulls = "SELECT NULL AS KEY, NULL AS value, NULL AS partition, NULL AS timestamp, NULL AS headers FROM parsed"
    for number, (view, even) in enumerate({others: {b"0", b"2"}, nulls: {None}}.items()):
        text = TWO_SINKS.replace(_EVEN, f"{view} WHERE number % 2 = 0")
        name = f"{fields['name']}-{number}"
        create(bootstrap, name, f"{name}-odd")
        own = fields | {"name": name, "checkpoint": str(tmp_path / name)}
        writer(load(written(tmp_path, ".toml", text, **own), {}), spark).start().awaitTermination()
        assert {record.value for _, record in records(bootstrap, name)} == even
        assert sorted(values(bootstrap, f"{name}-odd")) == ["1", "3"]


@pytest.mark.spark
def test_the_column_of_a_single_sink_may_have_any_case(spark: SparkSession, tmp_path: Path) -> None:
    text = TWO_SINKS.replace(_EVEN, "SELECT key AS KEY, '1' AS Value FROM numbers").partition("\n[sinks.odd]")[0]
    program = load(written(tmp_path, ".toml", text, **fields_of(tmp_path, "127.0.0.1:1")), {})
    assert rows(program, spark).columns == ["key", "value"]


@pytest.mark.spark
@pytest.mark.parametrize(
    ("before", "after", "complaint"),
    [
        ('Offsets = "earliest"\n', 'Offsets = "earliest"\nwatermark = {c}', "sources.numbers: watermark: "),
        (f'even = "{_EVEN}"', f'even = {{sql = "{_EVEN}", watermark = {{c}}}}', "views.even: watermark: "),
    ],
)
@pytest.mark.parametrize(
    "watermark", ['{column = "timestmp", delay = "1 minute"}', '{column = "value", delay = "1 parsec"}']
)
def test_a_watermark_that_spark_refuses_is_a_refusal(
    spark: SparkSession, tmp_path: Path, before: str, after: str, complaint: str, watermark: str
) -> None:
    fields = fields_of(tmp_path, "127.0.0.1:1")
    path = tmp_path / "declared.toml"
    path.write_text(TWO_SINKS.format(**fields).replace(before, after.replace("{c}", watermark)))
    with pytest.raises(PipelineRefused, match=complaint):
        rows(load(path, {}), spark)


@pytest.mark.spark
def test_sinks_whose_columns_have_no_common_type_are_a_refusal(spark: SparkSession, tmp_path: Path) -> None:
    views = TWO_SINKS.replace(_EVEN, "SELECT key, '1' AS value, map('a', 1) AS offset FROM numbers")
    views = views.replace("AS topic FROM parsed", "AS topic, 7 AS offset FROM parsed")
    program = load(written(tmp_path, ".toml", views, **fields_of(tmp_path, "127.0.0.1:1")), {})
    with pytest.raises(PipelineRefused, match="not of one kind"):
        rows(program, spark)


@pytest.fixture
def own_broker(tmp_path: Path) -> Iterator[EinmalBroker]:
    """The page's topics have its names."""
    broker = EinmalBroker(tmp_path / "broker")
    broker.start()
    yield broker
    broker.stop()


@pytest.mark.spark
def test_the_page_on_pipelines_shows_what_works(spark: SparkSession, own_broker: EinmalBroker, tmp_path: Path) -> None:
    bootstrap = own_broker.bootstrap
    page = (Path(__file__).parents[2] / "docs" / "pipelines.md").read_text()
    create(bootstrap, "orders", "paid-orders", "large-orders", "order-counts")
    with Producer({"bootstrap.servers": bootstrap}) as producer:
        for order in ('{"id":"a","state":"paid","amount":1200}', '{"id":"b","state":"open","amount":3}'):
            producer.send("orders", order, "k")
    overrides = {"kafka.bootstrap.servers": bootstrap, "trigger.availableNow": "true"}
    for language, suffix in (("toml", ".toml"), ("python", ".py")):
        overrides["checkpointLocation"] = str(tmp_path / language)
        path = tmp_path / f"pipeline{suffix}"
        path.write_text(page.split(f"```{language}\n")[1].split("```")[0])
        writer(load(path, overrides), spark).start().awaitTermination()
    assert [json.loads(value)["id"] for value in values(bootstrap, "paid-orders")] == ["a"]
    assert [json.loads(value)["id"] for value in values(bootstrap, "large-orders")] == ["a"]
    assert values(bootstrap, "order-counts")[-1] == "2"
