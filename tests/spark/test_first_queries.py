"""The queries that a user tries first, in each output mode that Spark allows them: what they write, over a restart.

Before the restart Spark's commit file of the last batch is removed, as if the driver had died right after EndTxn: where
there is state, the next start must write the same file again from the commit record.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from einmal.spark import PipelineFailed, StreamWriter, write_stream
from tests.spark.topics import create, fill, records
from tests.suite.shared import unique

pytestmark = [pytest.mark.spark, pytest.mark.slow]


@dataclass(frozen=True)
class Query:
    """``first`` and ``second``: the values that each run writes. ``events`` has the columns key, n and time."""

    sql: str
    mode: str
    first: tuple[str, ...]
    second: tuple[str, ...]
    ordered: bool = False


def numbered(*numbers: int) -> tuple[str, ...]:
    return tuple(map(str, numbers))


def keyed(count: int) -> tuple[str, ...]:
    return tuple(f"k{each}:{count}" for each in range(5))


COUNTS = "SELECT concat(key, ':', count(*)) AS value FROM events GROUP BY key"
QUERIES = {
    "project": Query(
        "SELECT key, CAST(n AS STRING) AS value FROM events", "append", numbered(*range(10)), numbered(*range(10, 20))
    ),
    "where": Query(
        "SELECT CAST(n AS STRING) AS value FROM events WHERE n % 2 = 0",
        "append",
        numbered(0, 2, 4, 6, 8),
        numbered(10, 12, 14, 16, 18),
    ),
    # Over no rows a count is 0: Spark returns it in the first batch.
    "count, complete": Query("SELECT CAST(count(*) AS STRING) AS value FROM events", "complete", ("0", "10"), ("20",)),
    "count, update": Query("SELECT CAST(count(*) AS STRING) AS value FROM events", "update", ("0", "10"), ("20",)),
    "several aggregates": Query(
        "SELECT concat_ws(',', min(n), max(n), sum(n)) AS value FROM events", "complete", ("", "0,9,45"), ("0,19,190",)
    ),
    "limit": Query(
        "SELECT CAST(n AS STRING) AS value FROM events LIMIT 12", "append", numbered(*range(10)), ("*", "*")
    ),
    "group by, update": Query(COUNTS, "update", keyed(2), keyed(4)),
    "group by, complete": Query(COUNTS, "complete", keyed(2), keyed(4)),
    "having": Query(f"{COUNTS} HAVING count(*) > 2", "update", (), keyed(4)),
    "order by": Query(
        f"{COUNTS} ORDER BY count(*) DESC, key DESC",
        "complete",
        ("k4:2", "k3:2", "k2:2", "k1:2", "k0:2"),
        ("k4:4", "k3:4", "k2:4", "k1:4", "k0:4"),
        ordered=True,
    ),
    "order by in a subquery": Query(
        f"SELECT upper(value) AS value FROM (SELECT * FROM ({COUNTS}) ORDER BY value)",
        "complete",
        ("K0:2", "K1:2", "K2:2", "K3:2", "K4:2"),
        ("K0:4", "K1:4", "K2:4", "K3:4", "K4:4"),
        ordered=True,
    ),
    "top n": Query(
        f"{COUNTS} ORDER BY count(*), key LIMIT 2", "complete", ("k0:2", "k1:2"), ("k0:4", "k1:4"), ordered=True
    ),
    "distinct": Query(
        "SELECT DISTINCT key AS value FROM events",
        "update",
        ("k0", "k1", "k2", "k3", "k4"),
        ("k0", "k1", "k2", "k3", "k4"),
    ),
    "window": Query(
        "SELECT concat(date_format(window.start, 'ss'), ':', count(*)) AS value FROM late "
        "GROUP BY window(time, '5 seconds')",
        "append",
        ("00:5",),
        ("05:5", "10:5"),
    ),
    "join with a table": Query(
        "SELECT names.name AS value FROM events JOIN names USING (n)", "append", ("two",), ("twelve",)
    ),
    "join of streams": Query(
        "SELECT CAST(a.n AS STRING) AS value FROM events a JOIN events b ON a.n = b.n + 10",
        "append",
        (),
        numbered(*range(10, 20)),
    ),
    "union": Query(
        "SELECT CAST(n AS STRING) AS value FROM events WHERE n < 2 UNION ALL "
        "SELECT CAST(-n AS STRING) AS value FROM events WHERE n IN (3, 13)",
        "append",
        ("0", "1", "-3"),
        ("-13",),
    ),
}


@dataclass(frozen=True)
class Place:
    """Where a query of a test reads and writes."""

    bootstrap: str
    source: str
    sink: str
    checkpoint: Path

    def events(self, spark: SparkSession) -> DataFrame:
        source = (
            spark.readStream.format("einmal")
            .option("kafka.bootstrap.servers", self.bootstrap)
            .option("subscribe", self.source)
            .option("startingOffsets", "earliest")
            .load()
        )
        events = source.selectExpr("CAST(key AS STRING) AS key", "CAST(CAST(value AS STRING) AS INT) AS n")
        return events.withColumn("time", F.timestamp_seconds("n"))

    def writer(self, frame: DataFrame, mode: str) -> StreamWriter:
        return (
            write_stream(frame)
            .option("kafka.bootstrap.servers", self.bootstrap)
            .option("topic", self.sink)
            .option("transactional.id", self.sink)
            .option("checkpointLocation", str(self.checkpoint))
            .outputMode(mode)
            .trigger(availableNow=True)
        )

    def written(self) -> list[list[str]]:
        """The values of each partition, in order."""
        found: dict[int, list[str]] = {0: [], 1: []}
        for where, record in records(self.bootstrap, self.sink):
            found[where.partition].append((record.value or b"").decode())
        return list(found.values())


@pytest.fixture
def place(bootstrap: str, tmp_path: Path) -> Place:
    place = Place(bootstrap, unique("first-in"), unique("first-out"), tmp_path / "checkpoint")
    create(bootstrap, place.source, place.sink)
    return place


# Queries without state, and counts in mode update, are in most other tests.
@pytest.mark.long
@pytest.mark.parametrize("name", QUERIES)
def test_a_first_query_writes_its_result_once_over_a_restart(name: str, spark: SparkSession, place: Place) -> None:
    query = QUERIES[name]
    before: list[list[str]] = [[], []]
    commits: dict[str, str] = {}
    for numbers, expected in ((range(10), query.first), (range(10, 20), query.second)):
        fill(place.bootstrap, place.source, numbers)
        place.writer(frame(query.sql, spark, place), query.mode).start().awaitTermination()
        assert commits.items() <= commit_files(place).items()
        after = place.written()
        new = [values[len(earlier) :] for values, earlier in zip(after, before, strict=True)]
        assert_written(new, expected, ordered=query.ordered)
        before = after
        commits = commit_files(place)
        for name in ("{}", ".{}.crc"):
            (place.checkpoint / "commits" / name.format(max(commits, key=int))).unlink()


def frame(sql: str, spark: SparkSession, place: Place) -> DataFrame:
    events = place.events(spark)
    events.createOrReplaceTempView("events")
    events.withWatermark("time", "1 second").createOrReplaceTempView("late")
    spark.createDataFrame([(2, "two"), (12, "twelve")], "n int, name string").createOrReplaceTempView("names")
    return spark.sql(sql)


def commit_files(place: Place) -> dict[str, str]:
    """Spark's commit files by batch."""
    return {path.name: path.read_text() for path in (place.checkpoint / "commits").iterdir() if path.name.isdecimal()}


def assert_written(new: list[list[str]], expected: tuple[str, ...], *, ordered: bool) -> None:
    if ordered:
        # Rows without a key are all in one partition, in their order.
        assert [values for values in new if values] == [list(expected)]
    elif "*" in expected:
        assert sum(map(len, new)) == len(expected)
    else:
        assert sorted(value for values in new for value in values) == sorted(expected)


@pytest.mark.long
def test_a_sort_in_each_batch_keeps_state_and_output_together(spark: SparkSession, place: Place) -> None:
    fill(place.bootstrap, place.source, range(10))
    writer = place.writer(frame(COUNTS, spark, place), "update")
    writer.each_batch(lambda rows, _: rows.orderBy(F.desc("value"))).start().awaitTermination()
    assert_written(place.written(), ("k4:2", "k3:2", "k2:2", "k1:2", "k0:2"), ordered=True)


@pytest.mark.long
def test_a_job_of_its_own_in_each_batch_is_named_as_the_cause(spark: SparkSession, place: Place) -> None:
    fill(place.bootstrap, place.source, range(10))

    def count_first(rows: DataFrame, _batch_id: int) -> DataFrame:
        rows.count()
        return rows

    query = place.writer(frame(COUNTS, spark, place), "update").each_batch(count_first).start()
    with pytest.raises(PipelineFailed, match=r"count\(\) and show\(\) in each_batch"):
        query.awaitTermination()
    assert place.written() == [[], []]
