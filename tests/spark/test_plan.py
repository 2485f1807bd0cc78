"""Claims about what Spark's plan shows of a query that is not started."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from einmal.spark.api.shared_view import needed_behind, shared_view
from einmal.spark.declare.plan import plan_facts

pytestmark = pytest.mark.spark


@pytest.fixture
def stream(spark: SparkSession) -> DataFrame:
    return spark.readStream.format("rate").load()


def test_a_selection_keeps_no_state_and_is_deterministic(stream: DataFrame) -> None:
    facts = plan_facts(stream.where("value % 2 = 0").selectExpr("value", "current_timestamp() AS now"))
    assert (facts.stateful, facts.non_deterministic, facts.python) == ((), (), ())


def test_chance_is_named_by_its_function(stream: DataFrame) -> None:
    facts = plan_facts(stream.select((F.rand() + 1).alias("r"), F.expr("uuid()").alias("u")))
    assert set(facts.non_deterministic) == {"rand", "uuid"}


def test_python_functions_are_deterministic_unless_declared_otherwise(stream: DataFrame) -> None:
    @F.udf("long")
    def plain(value):  # type: ignore[no-untyped-def]  # Spark takes hints for a choice of its own.
        return value

    @F.udf("long")
    def random(value):  # type: ignore[no-untyped-def]  # As above.
        return value

    facts = plan_facts(stream.select(plain("value"), random.asNondeterministic()("value")))
    assert (facts.python, facts.non_deterministic) == (("plain",), ("random",))


def test_every_operator_with_state_is_named(stream: DataFrame, spark: SparkSession) -> None:
    counted = stream.withWatermark("timestamp", "1 minute").groupBy(F.window("timestamp", "10 seconds")).count()
    assert plan_facts(counted).stateful == ("aggregate",)
    other = spark.readStream.format("rate").load().withColumnRenamed("timestamp", "other")
    assert plan_facts(stream.join(other, "value")).stateful == ("join",)
    static = spark.range(3).withColumnRenamed("id", "value")
    assert plan_facts(stream.join(static, "value")).stateful == ()
    assert plan_facts(stream.dropDuplicates(["value"])).stateful == ("deduplicate",)
    assert plan_facts(counted).state_format == 2


def test_relations_that_do_not_stream_are_named_wherever_they_are(
    stream: DataFrame, spark: SparkSession, tmp_path: Path
) -> None:
    spark.range(3).withColumnRenamed("id", "value").write.parquet(str(tmp_path / "table"))
    table = spark.read.parquet(str(tmp_path / "table"))
    assert plan_facts(stream).static == ()
    assert plan_facts(stream.join(table, "value")).static == ("parquet",)
    assert plan_facts(stream.join(spark.range(3).withColumnRenamed("id", "value"), "value")).static == ()
    stream.createOrReplaceTempView("numbers")
    table.createOrReplaceTempView("known")
    for query in (
        "SELECT * FROM numbers WHERE value IN (SELECT value FROM known)",
        "SELECT value, (SELECT max(value) FROM known) AS most FROM numbers",
        "WITH known_too AS (SELECT * FROM known) SELECT n.value FROM numbers n JOIN known_too USING (value)",
    ):
        assert plan_facts(spark.sql(query)).static == ("parquet",), query


@pytest.mark.parametrize(
    ("sql", "shared"),
    [
        ("SELECT value + 1 AS value FROM kept WHERE value > 1", "kept"),
        ("WITH numbers AS (SELECT value FROM kept) SELECT * FROM numbers UNION ALL SELECT * FROM numbers", "kept"),
        ("SELECT value FROM (SELECT value, count(*) FROM kept GROUP BY value) AS kept", None),
        ("WITH kept AS (SELECT max(value) AS value FROM numbers) SELECT * FROM kept", None),
        ("SELECT kept.value FROM numbers AS kept", "numbers"),
        ("SELECT row_number() OVER (PARTITION BY value ORDER BY timestamp) AS value FROM kept", None),
        ("SELECT value FROM kept INTERSECT SELECT 1", None),
        ("SELECT value FROM kept EXCEPT SELECT 1", None),
        ("SELECT value FROM kept EXCEPT ALL SELECT 1", None),
        ("SELECT value FROM kept ORDER BY value", "kept"),
    ],
)
def test_sinks_share_the_last_view_behind_which_each_batch_has_all_its_rows(
    stream: DataFrame, spark: SparkSession, sql: str, shared: str | None
) -> None:
    """Whatever words the queries use for aliases."""
    frames = {"numbers": stream}
    for name, query in {"kept": "SELECT * FROM numbers WHERE value > 0", "made": sql}.items():
        frames[list(frames)[-1]].createOrReplaceTempView(list(frames)[-1])
        frames[name] = spark.sql(query)
    assert shared_view(frames, ["kept", "made"]) == shared
    if shared is not None:
        assert needed_behind(shared, frames, ["made"]) - {shared} == {"made"}


@pytest.mark.parametrize("of_all", ["", " ALL"])
def test_the_rows_that_another_relation_lacks_keep_state(stream: DataFrame, spark: SparkSession, of_all: str) -> None:
    stream.createOrReplaceTempView("numbers")
    assert plan_facts(spark.sql(f"SELECT value FROM numbers EXCEPT{of_all} SELECT 1")).stateful == ("except",)
