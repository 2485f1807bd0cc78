"""Claims about the explanation of a declarative pipeline: each flow, with its sources and its sink, without a run."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from einmal.cli.app import app
from einmal.declare.document import DeclarationError
from einmal.options.guarantees import NONE, UNKNOWN
from einmal.options.sink import AT_LEAST_ONCE, EXACTLY_ONCE
from einmal.pipeline.reasons import HopVerdict
from einmal.spark.declare.dataflow_graph import load, spec_of
from einmal.spark.declare.flow_guarantees import FlowGuarantee, flow_guarantees
from einmal.spark.environment.java import JavaMissing
from einmal.spark.errors import SparkUnsupported
from tests.spark.topics import create
from tests.suite.shared import unique

pytestmark = pytest.mark.spark

NOWHERE = {"kafka.bootstrap.servers": "127.0.0.1:1", "kafka.bootstrap.timeout.ms": "50"}
HEAD = f"""
from pyspark import pipelines as dp
from pyspark.sql import SparkSession, functions as f

CLUSTER = {NOWHERE!r}

def sink(name, format="einmal", **options):
    named = {{"topic": name, "transactional.id": name}} if format == "einmal" else {{}}
    dp.create_sink(name, format, CLUSTER | named | {{key.replace("_", "."): value for key, value in options.items()}})
    return name

def orders():
    return spark.readStream.format("einmal").options(**CLUSTER).option("subscribe", "orders").load()
"""


def project(folder: Path, definitions: str, spec: str = "", name: str = "flows.py") -> Path:
    """The spec of a project with this definition file."""
    (folder / "flows").mkdir(exist_ok=True)
    (folder / "flows" / name).write_text(HEAD + definitions if name.endswith(".py") else definitions)
    path = folder / "spark-pipeline.yml"
    storage = "" if "storage" in spec else f"storage: {(folder / 'storage').as_uri()}\n"
    path.write_text(f"name: orders\n{storage}libraries:\n  - glob:\n      include: flows/**\n{spec}")
    return path


def explained(spark: SparkSession | None, path: Path, problem: str = "") -> dict[str, FlowGuarantee]:
    made = load(path, spec_of(path), spark, problem)
    return {flow.flow: flow for flow in flow_guarantees(made)}


def reasons(flow: FlowGuarantee, kind: str, verdict: HopVerdict) -> str:
    found = [reason for hop in flow.hops if hop.kind == kind for reason in hop.reasons]
    return "\n".join(reason.text for reason in found if reason.verdict is verdict)


def test_each_flow_is_a_pipeline_with_sources_topic_and_transactional_id(spark: SparkSession, tmp_path: Path) -> None:
    definitions = """
@dp.append_flow(target=sink("copies"))
def copied():
    return spark.readStream.table("seen").select("key", "value")

@dp.temporary_view
def seen():
    return spark.readStream.table("all_orders").where("value is not null")

@dp.temporary_view
def all_orders():
    return orders().union(spark.readStream.format("einmal").options(**CLUSTER).option("subscribe", "returns").load())

@dp.append_flow(target=sink("weak", processing_guarantee="at_least_once"))
def weakly():
    return orders().select("value")
"""
    flows = explained(spark, project(tmp_path, definitions))
    copied = flows["copied"]
    assert (copied.target, copied.topic, copied.transactional_id) == ("sink copies", "copies", "copies")
    assert [(hop.kind, hop.name) for hop in copied.hops][:4] == [
        ("source", "orders"), ("source", "returns"), ("transformation", ""), ("sink", "copies"),
    ]  # fmt: skip
    assert (copied.asked, copied.holds) == (EXACTLY_ONCE, EXACTLY_ONCE)
    assert "no broker answers at 127.0.0.1:1" in reasons(copied, "sink", HopVerdict.UNKNOWN)
    assert "deterministic" in reasons(copied, "transformation", HopVerdict.HOLDS)
    assert (flows["weakly"].asked, flows["weakly"].holds) == (AT_LEAST_ONCE, AT_LEAST_ONCE)
    assert sorted(flows) == ["copied", "weakly"]


def test_the_topics_of_a_broker_that_answers_are_looked_at(spark: SparkSession, bootstrap: str, tmp_path: Path) -> None:
    topic = unique("flow")
    create(bootstrap, topic)
    definitions = f"""
CLUSTER = {{"kafka.bootstrap.servers": "{bootstrap}"}}

@dp.append_flow(target=sink("copies", topic="{topic}"))
def copied():
    return orders().select("value")
"""
    (flow,) = explained(spark, project(tmp_path, definitions)).values()
    assert "orders does not exist" in reasons(flow, "source", HopVerdict.NOT)
    assert f"{topic} has one replica" in reasons(flow, "sink", HopVerdict.IF)
    assert not reasons(flow, "sink", HopVerdict.UNKNOWN)


@pytest.mark.parametrize(
    ("query", "spec", "verdict", "words", "holds"),
    [
        ('groupBy("value").count()', "", HopVerdict.IF, "not in the transaction", EXACTLY_ONCE),
        ('groupBy("value").count()', "", HopVerdict.IF, "state format 1", EXACTLY_ONCE),
        ('groupBy(f.rand().alias("value")).count()', "", HopVerdict.NOT, "(aggregate), not deterministic (rand)", NONE),
        ('withColumn("key", f.rand().cast("string"))', "", HopVerdict.HOLDS, "not deterministic (rand)", EXACTLY_ONCE),
    ],
)
def test_state_is_no_part_of_the_transaction_of_sparks_writer(
    spark: SparkSession, tmp_path: Path, query: str, spec: str, verdict: HopVerdict, words: str, holds: str
) -> None:
    definitions = f"""
@dp.append_flow(target=sink("counts"))
def counted():
    return orders().{query}.selectExpr("cast(value as string) as value")
"""
    (flow,) = explained(spark, project(tmp_path, definitions, spec)).values()
    assert words in reasons(flow, "transformation", verdict)
    assert flow.holds == holds


def test_the_format_of_the_state_is_that_of_the_spec_and_not_of_this_session(
    spark: SparkSession, tmp_path: Path
) -> None:
    definitions = """
@dp.append_flow(target=sink("counts"))
def counted():
    return orders().groupBy("value").count().selectExpr("cast(value as string) as value")
"""
    spec = 'configuration:\n  spark.sql.streaming.stateStore.checkpointFormatVersion: "2"\n'
    (flow,) = explained(spark, project(tmp_path, definitions, spec)).values()
    assert "state format" not in reasons(flow, "transformation", HopVerdict.IF)


def refused(spark: SparkSession, folder: Path, definitions: str, spec: str = "") -> str:
    """The reasons for which the sink of every flow refuses it."""
    flows = explained(spark, project(folder, definitions, spec)).values()
    assert not [hop.name for flow in flows for hop in flow.hops if hop.name.startswith("sink ")]
    assert [flow.holds for flow in flows] == [NONE] * len(flows)
    return "\n".join(reasons(flow, "sink", HopVerdict.NOT) for flow in flows)


FLOW = """
@dp.append_flow(target={target})
def {name}():
    return orders(){query}
"""


def flow(name: str, target: str, query: str = '.select("value")') -> str:
    return FLOW.format(name=name, target=target, query=query)


def test_what_the_sink_refuses_is_reported_before_a_run(spark: SparkSession, tmp_path: Path) -> None:
    shared = "\nsink('both')\n" + flow("one", "'both'") + flow("two", "'both'")
    assert "2 flows write to it (one, two)" in refused(spark, tmp_path, shared)
    same = flow("one", "sink('a', transactional_id='x')") + flow("two", "sink('b', transactional_id='x')")
    assert "transactional.id 'x' is that of 2 sinks (a, b)" in refused(spark, tmp_path, same)
    single = flow("one", "sink('a')")
    assert "storage is s3a://b/x" in refused(spark, tmp_path, single, "storage: s3a://b/x\n")
    assert "absolute path with a scheme" in refused(spark, tmp_path, single, f"storage: {tmp_path}\n")
    nameless = flow("one", "sink('a', transactional_id='')")
    assert 'option "transactional.id" is missing' in refused(spark, tmp_path, nameless)
    assert "unknown option" in refused(spark, tmp_path, flow("one", "sink('a', topc='x')"))
    batch = flow("one", "sink('a')", "\n    return spark.range(3).selectExpr('cast(id as string) as value')").replace(
        "    return orders()\n", ""
    )
    assert "its query is a batch" in refused(spark, tmp_path, batch)
    assert 'column "value"' in refused(spark, tmp_path, flow("one", "sink('a')", '.select("key")'))


@pytest.mark.parametrize(
    ("returned", "problem"),
    [
        ("None", "one() returns no DataFrame: NoneType"),
        ("'a'", "one() returns no DataFrame: str"),
        ("exit('no')", "one() has failed: SystemExit: no"),
    ],
)
def test_a_flow_without_a_query_is_reported_with_the_reason(
    spark: SparkSession, tmp_path: Path, returned: str, problem: str
) -> None:
    definitions = f"\n@dp.append_flow(target=sink('a'))\ndef one():\n    return {returned}\n"
    (found,) = explained(spark, project(tmp_path, definitions)).values()
    assert found.holds == UNKNOWN
    assert problem in reasons(found, "sources", HopVerdict.UNKNOWN)


def test_a_view_that_spark_refuses_leaves_the_other_flows_explained(spark: SparkSession, tmp_path: Path) -> None:
    view = "\n@dp.temporary_view(name='a.b')\ndef seen():\n    return orders()\n"
    text = "\n@dp.temporary_view\ndef text():\n    return 'a'\n"
    (found,) = explained(spark, project(tmp_path, view + text + flow("one", "sink('a')"))).values()
    assert found.holds == EXACTLY_ONCE


@pytest.mark.parametrize("include", ["''", "/etc/passwd"])
def test_files_that_no_glob_can_name_are_refused(spark: SparkSession, tmp_path: Path, include: str) -> None:
    path = project(tmp_path, "")
    path.write_text(path.read_text().replace("flows/**", include))
    with pytest.raises(DeclarationError, match="names no files: .*\nhint: write it as"):
        explained(spark, path)


def test_a_format_of_the_state_that_is_no_number_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    spec = 'configuration:\n  spark.sql.streaming.stateStore.checkpointFormatVersion: "two"\n'
    with pytest.raises(DeclarationError, match="flow one: .*checkpointFormatVersion is a number, not 'two'"):
        explained(spark, project(tmp_path, flow("one", "sink('a')"), spec))


def test_targets_of_others_are_reported_with_their_sources(spark: SparkSession, tmp_path: Path) -> None:
    definitions = (
        "\ndp.create_streaming_table('kept')\n"
        + flow("to_table", "'kept'")
        + flow("to_kafka", "sink('k', 'kafka')")
        + flow("to_delta", "sink('d', 'delta')")
        + flow("to_nothing", "'missing'")
        + "\n@dp.append_flow(target=sink('later'))\ndef of_table():\n    return spark.readStream.table('kept')\n"
    )
    flows = explained(spark, project(tmp_path, definitions))
    assert {name: (each.target, each.holds) for name, each in flows.items()} == {
        "to_table": ("table kept", UNKNOWN),
        "to_kafka": ("sink k", AT_LEAST_ONCE),
        "to_delta": ("sink d", UNKNOWN),
        "to_nothing": ("nothing declared missing", NONE),
        "of_table": ("sink later", UNKNOWN),
    }
    assert all(flows[name].hops[0].name == "orders" for name in ("to_table", "to_kafka", "to_delta"))
    assert "The table or view `kept` cannot be found" in reasons(flows["of_table"], "sources", HopVerdict.UNKNOWN)


def test_what_only_sparks_command_can_read_is_named(spark: SparkSession, tmp_path: Path) -> None:
    path = project(tmp_path, "CREATE STREAMING TABLE t AS SELECT 1", name="flows.sql")
    made = load(path, spec_of(path), spark)
    assert made.graph.unread == ["flows/flows.sql: only Spark's command reads the flows of an SQL file"]
    assert not made.queries
    path.write_text(path.read_text().replace("flows/**", "none/**"))
    assert load(path, spec_of(path), spark).graph.unread == [f"libraries: there is no file none/**/* below {tmp_path}"]


@pytest.mark.parametrize(
    ("definitions", "complaint"),
    [
        ("\nraise RuntimeError('no')\n", r"flows.py, line \d+: RuntimeError: no"),
        ("\nexit('no')\n", r"flows.py, line \d+: SystemExit: no"),
        ("\ndef broken(:\n", r"flows.py, line \d+: SyntaxError"),
        ("\ndp.create_sink(3, 'einmal')\n", r"flows.py, line \d+: .*NOT_EXPECTED_TYPE"),
    ],
)
def test_a_definition_file_that_fails_is_named_with_its_line(
    spark: SparkSession, tmp_path: Path, definitions: str, complaint: str
) -> None:
    with pytest.raises(DeclarationError, match=complaint):
        explained(spark, project(tmp_path, definitions))


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("3\n", "not the spec of a pipeline"),
        ("a: [\n", "not the spec of a pipeline"),
        ("name: x\n", "storage"),
        ("name: x\nstorage: file:///x\nsecond: y\n", "second"),
        ("name: x\nstorage: file:///x\nlibraries:\n  - glob:\n      include: a/**/*.py\n", "glob"),
    ],
)
def test_a_spec_that_spark_refuses_is_refused(tmp_path: Path, text: str, complaint: str) -> None:
    path = tmp_path / "spark-pipeline.yml"
    path.write_text(text)
    with pytest.raises(DeclarationError, match=complaint):
        spec_of(path)


def test_packages_of_sparks_command_that_are_missing_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)
    monkeypatch.delitem(sys.modules, "pyspark.pipelines.cli", raising=False)
    with pytest.raises(SparkUnsupported, match=r"hint: pip install 'pyspark\[pipelines\]'"):
        spec_of(project(tmp_path, ""))


@pytest.fixture
def command(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[int, str]]:
    """``einmal explain`` in this process, with its session."""
    monkeypatch.setattr("einmal.cli.commands.explain.named_session", lambda *_: spark)

    def run(*words: str) -> tuple[int, str]:
        done = CliRunner().invoke(app, ["explain", *words])
        return done.exit_code, done.output

    return run


def test_the_command_prints_flows_and_what_only_a_run_shows(
    command: Callable[..., tuple[int, str]], tmp_path: Path
) -> None:
    path = str(project(tmp_path, flow("one", "sink('a')")))
    status, text = command(path)
    assert status == 0
    assert "flow one into sink a: asked for exactly_once_v2; from end to end exactly_once_v2" in text
    assert "topic a, transactional.id a" in text
    assert "not looked at: whether Spark accepts the project: spark-pipelines dry-run" in text
    status, text = command(path, "--format", "json")
    document = json.loads(text)
    assert (document["pipeline"], document["holds"], document["looked_at_all"]) == ("orders", EXACTLY_ONCE, False)
    assert document["flows"][0]["transactional_id"] == "a"
    for wrong in (("-X", "a=b"), ("pipeline.toml",), ("--graph", str(tmp_path / "chain.svg"))):
        assert command(path, *wrong)[0] == 2


def test_settings_that_spark_refuses_are_reported_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PYTHONPATH", "")
    path = project(tmp_path, "", 'configuration:\n  spark.remote: "sc://127.0.0.1:1"\n')
    done = CliRunner().invoke(app, ["explain", str(path)])
    assert done.exit_code == 2
    assert f"{path}: Spark does not start with these settings: " in done.output
    assert "CANNOT_CONFIGURE_SPARK_CONNECT_MASTER" in done.output


def test_without_java_the_sinks_are_explained_and_the_sources_are_unknown(
    command: Callable[..., tuple[int, str]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def missing(*_: object) -> SparkSession:
        raise JavaMissing("Java 17 or newer is needed; found: none")

    monkeypatch.setattr("einmal.cli.commands.explain.named_session", missing)
    status, text = command(str(project(tmp_path, flow("one", "sink('a')"))))
    assert status == 0
    assert "one: Java" not in text and "Java 17 or newer is needed" in text
    assert "topic a, transactional.id a" in text
    status, text = command(str(project(tmp_path, "\nspark.conf.get('x')\n")))
    assert status == 2
    assert "needs Java" in text
