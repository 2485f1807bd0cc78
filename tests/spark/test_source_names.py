"""Sources with names, and checkpoints in Spark 4.3's formats: what they hold is read, continued, or refused before
anything is acquired.

``.name()`` of a source, with source evolution, makes Spark write offset log version 2; a sink with a name makes it
write commit log version 3. Spark 4.3.0 ends a query with named sources whose checkpoint has version 1, after its start.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamReader

from einmal.pipeline import events
from einmal.spark import PipelineError, PipelineRefused
from einmal.spark.declare.preflight import SINK_NAMES_SETTING
from einmal.spark.decoding.decode import decode
from einmal.spark.environment.plans.source_nodes import SOURCE_NAMES_SETTING, source_names
from einmal.spark.protocol.checkpoint import CheckpointError, OffsetLogEntry, parse_offset_log
from einmal.spark.protocol.local_checkpoint import standing_of
from tests.spark.bad_rows import PAYMENT
from tests.spark.conftest import long
from tests.spark.pipelines import BATCH, Pipeline, breaks_in_state, counted, random_state
from tests.spark.topics import commit_record, create, fill, numbers, pairs
from tests.suite.shared import unique

pytestmark = [
    pytest.mark.spark,
    pytest.mark.skipif(not hasattr(DataStreamReader, "name"), reason="sources have names since Spark 4.3"),
]

OFFSETS_FORMAT_SETTING = "spark.sql.streaming.offsetLog.formatVersion"


@contextmanager
def settings(spark: SparkSession, **values: str) -> Iterator[None]:
    by_name = {SOURCE_NAMES_SETTING: values.get("names"), OFFSETS_FORMAT_SETTING: values.get("format")}
    for name, value in by_name.items():
        if value is not None:
            spark.conf.set(name, value)
    try:
        yield
    finally:
        for name in by_name:
            spark.conf.unset(name)


class Named:
    """A pipeline whose sources have names, one topic each: ``{name: topic}``, in the order of the plan."""

    def __init__(self, spark: SparkSession, pipeline: Pipeline) -> None:
        self.spark = spark
        self.pipeline = pipeline

    def frame(self, sources: dict[str, str]) -> DataFrame:
        """A name that begins with "-" is not passed to Spark."""
        frames = []
        for name, topic in sources.items():
            reader = self.spark.readStream.format("einmal").options(**self.pipeline.client_options)
            reader = reader.option("subscribe", topic).option("startingOffsets", "earliest")
            reader = reader.option("maxOffsetsPerTrigger", BATCH)
            frames.append((reader if name.startswith("-") else reader.name(name)).load().select("key", "value"))
        frame = frames[0]
        for other in frames[1:]:
            frame = frame.union(other)
        return frame

    def run(self, sources: dict[str, str]) -> list[events.Event]:
        heard: list[events.Event] = []
        self.pipeline.writer(self.spark, self.frame(sources)).listener(heard.append).start().awaitTermination()
        return heard


@pytest.fixture
def named(spark: SparkSession, bootstrap: str, tmp_path: Path) -> Named:
    pipeline = Pipeline(bootstrap, str(tmp_path), unique("named"))
    create(bootstrap, pipeline.source_topic, pipeline.topic, f"{pipeline.name}-more", partitions=1)
    fill(bootstrap, pipeline.source_topic, range(2 * BATCH))
    return Named(spark, pipeline)


def newest(pipeline: Pipeline, directory: str) -> Path:
    found = [each for each in (pipeline.checkpoint / directory).iterdir() if each.name.isdecimal()]
    return max(found, key=lambda path: int(path.name))


def rewrite(path: Path, text: str) -> None:
    path.write_text(text)
    path.with_name(f".{path.name}.crc").unlink(missing_ok=True)


# --- the text -------------------------------------------------------------------------------------------------------


def test_offsets_by_name_are_in_the_order_of_the_names_whatever_their_order_in_the_file() -> None:
    text = 'v2\n{"conf":{}}\ntwo:{"t":{"0":5}}\nten:-\none:{"u":{"0":7}}'
    assert parse_offset_log(text, "0") == OffsetLogEntry(
        ({"u": {"0": 7}}, None, {"t": {"0": 5}}), ("one", "ten", "two")
    )


def test_unnamed_sources_of_version_2_are_in_the_order_of_the_plan() -> None:
    lines = [f"{number}:{number * 10}" for number in (10, 2, 1, 0)]
    assert parse_offset_log("\n".join(["v2", "{}", *lines]), "0") == OffsetLogEntry((0, 10, 20, 100))


@pytest.mark.representatives(1)
@pytest.mark.parametrize("version", ["v0", "v3", "v12", "", "2"])
def test_another_version_of_the_offset_log_is_refused(version: str) -> None:
    with pytest.raises(CheckpointError, match="has format .*, known are v1 and v2\nhint: .*use a newer einmal"):
        parse_offset_log(f"{version}\n{{}}\n{{}}", "offsets/0")


# --- names ----------------------------------------------------------------------------------------------------------


def test_named_sources_keep_their_positions_in_another_order_of_the_plan_and_in_a_new_checkpoint(named: Named) -> None:
    pipeline = named.pipeline
    more = f"{pipeline.name}-more"
    fill(pipeline.bootstrap, more, range(100, 105))
    sources = {"zeta": pipeline.source_topic, "alpha": more}
    with settings(named.spark, names="true"):
        named.run(sources)
        assert newest(pipeline, "offsets").read_text().startswith("v2\n")
        record = commit_record(pipeline.bootstrap, pipeline.name)
        assert record is not None and [set(each) & {more, pipeline.source_topic} for each in record.end] == [
            {more},
            {pipeline.source_topic},
        ]
        fill(pipeline.bootstrap, pipeline.source_topic, range(2 * BATCH, 3 * BATCH))
        fill(pipeline.bootstrap, more, range(105, 110))
        named.run(dict(reversed(sources.items())))
        assert numbers(pipeline.bootstrap, pipeline.topic) == [*range(3 * BATCH), *range(100, 110)]
        # Without the checkpoint the commit record has the positions, in the order of the names.
        pipeline.checkpoint.rename(pipeline.checkpoint.with_name("lost"))
        fill(pipeline.bootstrap, more, range(110, 115))
        named.run(sources)
        assert numbers(pipeline.bootstrap, pipeline.topic) == [*range(3 * BATCH), *range(100, 115)]
        # Names that no longer fit the topics would give each source the position of the other.
        pipeline.checkpoint.rename(pipeline.checkpoint.with_name("lost too"))
        with pytest.raises(PipelineRefused, match="the order, or the names, of its sources have changed"):
            named.run({"alpha": pipeline.source_topic, "zeta": more})
    assert numbers(pipeline.bootstrap, pipeline.topic) == [*range(3 * BATCH), *range(100, 115)]


@pytest.mark.long
def test_a_query_of_version_1_continues_with_a_name_in_a_new_checkpoint_and_is_refused_in_its_own(
    named: Named,
) -> None:
    pipeline = named.pipeline
    named.run({"-": pipeline.source_topic})
    assert newest(pipeline, "offsets").read_text().startswith("v1\n")
    fill(pipeline.bootstrap, pipeline.source_topic, range(2 * BATCH, 3 * BATCH))
    with settings(named.spark, names="true"):
        heard: list[events.Event] = []
        writer = pipeline.writer(named.spark, named.frame({"orders": pipeline.source_topic})).listener(heard.append)
        with pytest.raises(PipelineError, match="has sources without names, the query has sources with the names ord"):
            writer.start()
        assert heard == []
        pipeline.checkpoint.rename(pipeline.checkpoint.with_name("version-1"))
        named.run({"orders": pipeline.source_topic})
        assert newest(pipeline, "offsets").read_text().startswith("v2\n")
        assert "\norders:" in newest(pipeline, "offsets").read_text()
        # From version 2 on, another restart.
        fill(pipeline.bootstrap, pipeline.source_topic, range(3 * BATCH, 4 * BATCH))
        named.run({"orders": pipeline.source_topic})
    assert numbers(pipeline.bootstrap, pipeline.topic) == list(range(4 * BATCH))
    with pytest.raises(PipelineError, match="has sources with the names orders, the query has sources without names"):
        named.run({"-": pipeline.source_topic})
    unnamed = named.frame({"-": pipeline.source_topic})
    with settings(named.spark, names="true"):
        with pytest.raises(PipelineError, match="has sources with the names orders, .* with the names payments"):
            named.run({"payments": pipeline.source_topic})
        # Spark refuses such a source when it is loaded; this one was loaded before.
        with pytest.raises(PipelineRefused, match=r"a source \(einmal\) has no name"):
            pipeline.writer(named.spark, unnamed).start()
    assert numbers(pipeline.bootstrap, pipeline.topic) == list(range(4 * BATCH))


@pytest.mark.long
def test_version_2_without_names_is_continued_and_version_1_stays_what_it_is(named: Named) -> None:
    pipeline = named.pipeline
    with settings(named.spark, format="2"):
        named.run({"-": pipeline.source_topic})
    assert newest(pipeline, "offsets").read_text().startswith("v2\n")
    fill(pipeline.bootstrap, pipeline.source_topic, range(2 * BATCH, 3 * BATCH))
    named.run({"-": pipeline.source_topic})
    assert newest(pipeline, "offsets").read_text().startswith("v2\n")
    assert numbers(pipeline.bootstrap, pipeline.topic) == list(range(3 * BATCH))
    standing = standing_of(str(pipeline.checkpoint))
    record = commit_record(pipeline.bootstrap, pipeline.name)
    assert record is not None and (standing.batch_id, standing.end) == (record.batch_id, record.end)
    # Begun with version 1, it remains there.
    pipeline.checkpoint.rename(pipeline.checkpoint.with_name("version-2"))
    named.run({"-": pipeline.source_topic})
    fill(pipeline.bootstrap, pipeline.source_topic, range(3 * BATCH, 4 * BATCH))
    with settings(named.spark, format="2"):
        named.run({"-": pipeline.source_topic})
    assert newest(pipeline, "offsets").read_text().startswith("v1\n")
    assert numbers(pipeline.bootstrap, pipeline.topic) == list(range(4 * BATCH))


@pytest.mark.long
def test_state_of_a_named_source_agrees_with_the_output_after_a_restart(
    spark: SparkSession, bootstrap: str, tmp_path: Path
) -> None:
    pipeline = Pipeline(bootstrap, str(tmp_path), unique("named"), kind="random state")
    create(bootstrap, pipeline.source_topic, pipeline.topic, partitions=1)
    with settings(spark, names="true"):
        for number in range(2):
            fill(bootstrap, pipeline.source_topic, range(number * BATCH, (number + 1) * BATCH))
            reader = spark.readStream.format("einmal").name("orders").options(**pipeline.client_options)
            source = reader.options(subscribe=pipeline.source_topic, startingOffsets="earliest").load()
            pipeline.writer(spark, random_state(source)).start().awaitTermination()
    outputs = pairs(bootstrap, pipeline.topic)
    assert breaks_in_state(outputs) == []
    assert counted(outputs) == 2 * BATCH


# --- sinks with names, and formats of the future ----------------------------------------------------------------------


@pytest.mark.parametrize("guarantee", ["exactly_once_v2", long("at_least_once")])
def test_a_checkpoint_whose_sink_has_a_name_is_refused_before_anything_is_acquired(
    spark: SparkSession, bootstrap: str, tmp_path: Path, guarantee: str
) -> None:
    pipeline = Pipeline(bootstrap, str(tmp_path), unique("named"), guarantee=guarantee)
    create(bootstrap, pipeline.source_topic, pipeline.topic, partitions=1)
    fill(bootstrap, pipeline.source_topic, range(BATCH))
    # As a program in Scala does it: PySpark's writer has no ``name``.
    spark.conf.set(SINK_NAMES_SETTING, "true")
    try:
        with pytest.raises(PipelineError, match=rf"{SINK_NAMES_SETTING} is true: .*\n +hint: set .*=false"):
            pipeline.writer(spark).start()
        theirs = pipeline.frame(spark).writeStream.format("noop").trigger(availableNow=True)
        theirs = theirs.option("checkpointLocation", str(pipeline.checkpoint))
        theirs._jwrite.name("theirs")
        theirs.start().awaitTermination()
    finally:
        spark.conf.unset(SINK_NAMES_SETTING)
    version, _, body = newest(pipeline, "commits").read_text().partition("\n")
    assert version == "v3" and list(json.loads(body)["sinkMetadataMap"]) == ["theirs"]
    heard: list[events.Event] = []
    with pytest.raises(PipelineError, match=r"commits/\d+ has format v3, of a query whose sink has a name"):
        pipeline.writer(spark).option("einmal.adopt", "true").listener(heard.append).start()
    assert heard == []
    with pytest.raises(CheckpointError, match="has format v3"):
        standing_of(str(pipeline.checkpoint))


@pytest.mark.representatives(1)
@pytest.mark.parametrize("guarantee", ["exactly_once_v2", long("at_most_once")])
@pytest.mark.parametrize("directory", ["offsets", "commits"])
def test_a_format_of_the_future_is_refused_before_anything_is_acquired(
    spark: SparkSession, bootstrap: str, tmp_path: Path, directory: str, guarantee: str
) -> None:
    pipeline = Pipeline(bootstrap, str(tmp_path), unique("named"), guarantee=guarantee)
    create(bootstrap, pipeline.source_topic, pipeline.topic, partitions=1)
    fill(bootstrap, pipeline.source_topic, range(BATCH))
    pipeline.writer(spark).start().awaitTermination()
    path = newest(pipeline, directory)
    rewrite(path, "v9\n" + path.read_text().partition("\n")[2])
    heard: list[events.Event] = []
    with pytest.raises(PipelineError, match=rf"{directory}/\d+ has format v9, known are v1 and v2"):
        pipeline.writer(spark).listener(heard.append).start()
    assert heard == []
    with pytest.raises(CheckpointError, match="has format v9"):
        standing_of(str(pipeline.checkpoint))


def test_a_source_whose_bad_rows_become_dead_letters_keeps_its_name(named: Named) -> None:
    """``decode`` loads the source anew, with one option more."""
    with settings(named.spark, names="true"):
        reader = named.spark.readStream.format("einmal").options(**named.pipeline.client_options)
        frame = reader.option("subscribe", named.pipeline.source_topic).name("orders").load()
        tolerant = {"errors.tolerance": "all", "errors.deadletterqueue.topic.name": f"{named.pipeline.name}-bad"}
        decoded = decode(frame, {"value.format": "json", "value.schema": PAYMENT, **tolerant})
        assert source_names(decoded) == source_names(frame) == ("orders",)
