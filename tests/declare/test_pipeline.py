"""Claims about declarations: the declared pipeline runs, all problems of a file are reported at once with hints."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from einmal.declare.document import DeclarationError, Variables, flattened, reads_nothing, substituted
from einmal.declare.pipeline import (
    Declaration,
    DeclaredSink,
    View,
    Watermark,
    declare,
    parse,
)
from einmal.options.sink import AT_LEAST_ONCE, AT_MOST_ONCE, EXACTLY_ONCE, TWO_PHASE_COMMIT, SinkOptions
from einmal.options.source import source_options
from einmal.schemas.settings import NAMES

HEAD = """
transactional.id = "paid"
checkpointLocation = "/c"
kafka.bootstrap.servers = "127.0.0.1:9092"
"""
SOURCE = """
[sources.orders]
subscribe = "orders"
"""
SINK = """
[sinks.paid]
from = "orders"
topic = "paid"
"""


def source(topic: str) -> str:
    return f'[sources.{topic}]\nsubscribe = "{topic}"\n'


def sink(origin: str, topic: str) -> str:
    return f'[sinks.{origin}_out]\nfrom = "{origin}"\ntopic = "{topic}"\n'


def declared(text: str, environment: dict[str, str] | None = None, /, **overrides: str) -> Declaration:
    return parse(text, environment or {}, overrides)


def problems(text: str, environment: dict[str, str] | None = None) -> tuple[str, ...]:
    with pytest.raises(DeclarationError) as caught:
        declared(text, environment)
    return caught.value.problems


def test_a_declaration_is_exactly_once_and_named_by_its_transactional_id() -> None:
    declaration = declared(HEAD + SOURCE + SINK)
    assert declaration.options.guarantee == EXACTLY_ONCE
    assert (declaration.name, declaration.topic) == ("paid", "paid")
    assert declaration.writer == {
        "kafka.bootstrap.servers": "127.0.0.1:9092",
        "transactional.id": "paid",
        "checkpointLocation": "/c",
    }


def test_a_table_is_a_dotted_name() -> None:
    by_tables = '[trigger]\nprocessingTime = "1 second"\n[spark.sql]\nshuffle.partitions = 4\n'
    declaration = declared(HEAD + by_tables + SOURCE + SINK)
    assert declaration.trigger == {"processingTime": "1 second"}
    assert declaration.spark == {"spark.sql.shuffle.partitions": "4"}
    assert flattened({"a": {"b": 1, "c": {"d": 2}}, "a.e": 3}) == {"a.b": 1, "a.c.d": 2, "a.e": 3}


def test_a_source_reads_from_the_pipelines_cluster_unless_it_names_another() -> None:
    text = HEAD + SOURCE + '[sources.prices]\nsubscribe = "p"\nkafka.bootstrap.servers = "elsewhere:1"\n' + SINK
    orders, prices = declared(text).sources
    assert orders.options == {"subscribe": "orders", "kafka.bootstrap.servers": "127.0.0.1:9092"}
    assert prices.options["kafka.bootstrap.servers"] == "elsewhere:1"


def test_views_keep_their_order_and_may_have_a_watermark() -> None:
    views = """
    [views]
    first = "SELECT * FROM orders"
    [views.second]
    sql = "SELECT * FROM first"
    watermark = { column = "timestamp", delay = "10 seconds" }
    """
    assert declared(HEAD + SOURCE + views + SINK).views == (
        View("first", "SELECT * FROM orders"),
        View("second", "SELECT * FROM first", Watermark("timestamp", "10 seconds")),
    )


def test_with_several_sinks_each_row_has_its_topic() -> None:
    declaration = declared(HEAD + SOURCE + SINK + '[sinks.all]\nfrom = "orders"\n')
    assert declaration.sinks == (DeclaredSink("paid", "orders", "paid"), DeclaredSink("all", "orders", None))
    assert declaration.topic is None


@pytest.mark.parametrize("guarantee", [EXACTLY_ONCE, AT_LEAST_ONCE, AT_MOST_ONCE])
def test_the_guarantee_has_the_words_of_kafka_streams(guarantee: str) -> None:
    declaration = declared(HEAD + f'processing.guarantee = "{guarantee}"\n' + SOURCE + SINK)
    assert declaration.options.guarantee == guarantee


def test_the_guarantee_may_have_an_underscore() -> None:
    declaration = declared(HEAD + 'processing_guarantee = "at_least_once"\n' + SOURCE + SINK)
    assert declaration.options.guarantee == AT_LEAST_ONCE
    twice = 'processing_guarantee = "at_least_once"\nprocessing.guarantee = "at_most_once"\n'
    with pytest.raises(DeclarationError, match='"processing.guarantee" is set twice'):
        declared(HEAD + twice + SOURCE + SINK)


def test_the_command_line_takes_precedence() -> None:
    overrides = {"trigger.availableNow": "true", "kafka.bootstrap.servers": "other:1", "outputMode": "update"}
    declaration = declared(HEAD + SOURCE + SINK, **overrides)
    assert declaration.trigger == {"availableNow": True}
    assert declaration.writer["kafka.bootstrap.servers"] == "other:1"
    assert declaration.sources[0].options["kafka.bootstrap.servers"] == "other:1"
    assert declaration.output_mode == "update"


def test_a_trigger_of_the_command_line_replaces_another_kind() -> None:
    text = HEAD + 'trigger.processingTime = "1 second"\n' + SOURCE + SINK
    assert declared(text, **{"trigger.availableNow": "true"}).trigger == {"availableNow": True}
    text = HEAD + "trigger.availableNow = true\n" + SOURCE + SINK
    assert declared(text, **{"trigger.processingTime": "1 second"}).trigger == {"processingTime": "1 second"}


def test_variables_come_from_the_environment_or_have_a_default() -> None:
    text = HEAD.replace("127.0.0.1:9092", "${BROKERS}").replace("/c", "${STATE:-/tmp}/$${x}") + SOURCE + SINK
    declaration = declared(text, {"BROKERS": "b:1"})
    assert declaration.writer["kafka.bootstrap.servers"] == "b:1"
    assert declaration.writer["checkpointLocation"] == "/tmp/${x}"


def test_secrets_come_from_files_and_the_environment() -> None:
    secured = (
        'kafka.security.protocol = "SASL_SSL"\nkafka.sasl.mechanism = "PLAIN"\nkafka.sasl.username = "${env:WHO}"\n'
        'kafka.sasl.password = "${file:/run/secret:password}"\n'
    )
    files = {"/run/secret": "password=canary-6\n"}
    read = files.__getitem__
    declaration = parse(HEAD + secured + SOURCE + SINK, {"WHO": "alice"}, {}, read)
    assert declaration.writer["kafka.sasl.username"] == "alice"
    assert declaration.sources[0].options["kafka.sasl.password"] == "canary-6"
    assert "canary-6" not in repr(declaration)
    overridden = {"kafka.sasl.password": "${env:OTHER}"}
    declaration = parse(HEAD + secured + SOURCE + SINK, {"WHO": "alice", "OTHER": "canary-7"}, overridden, read)
    assert declaration.writer["kafka.sasl.password"] == "canary-7"
    with pytest.raises(DeclarationError, match="the environment has no WHO") as caught:
        parse(HEAD + secured + SOURCE + SINK, {}, {}, read)
    assert "canary" not in str(caught.value)


def test_a_value_of_the_environment_cannot_change_the_structure() -> None:
    text = HEAD.replace('"paid"', '"${NAME}"') + SOURCE + SINK
    assert declared(text, {"NAME": 'x"\n[sinks.evil]\n'}).name == 'x"\n[sinks.evil]\n'


@pytest.mark.parametrize("environment", [{}, {"START": ""}], ids=["not set", "empty"])
def test_a_default_replaces_a_variable_that_is_not_set_or_empty(environment: dict[str, str]) -> None:
    text = HEAD + SOURCE + 'startingOffsets = "${START:-earliest}"\n' + SINK
    (source,) = declared(text, environment).sources
    assert source_options(source.options, streaming=True).starting == "earliest"


@pytest.mark.parametrize(
    ("value", "environment"),
    [
        ("${A:-${B}}", {"A": "", "B": "x"}),
        ("${A-B}", {}),
        ("${A:=B}", {}),
        ("${1}", {}),
        ("${vault:/secret:key}", {}),
        ("a${", {}),
    ],
)
def test_what_begins_as_a_reference_and_is_none_is_a_problem(value: str, environment: dict[str, str]) -> None:
    (problem,) = problems(HEAD + SOURCE + SINK.replace('"paid"', f'"{value}"'), environment)
    assert problem.startswith("sinks.paid.topic: no reference follows ${\nhint: references are")


def test_the_strings_of_a_list_have_references_too() -> None:
    problems: list[str] = []
    variables = Variables({"A": "a"}, reads_nothing)
    assert substituted({"names": ["${A}", ["${B:-b}"], 1]}, variables, problems, "") == {"names": ["a", ["b"], 1]}
    assert substituted(["${B}"], variables, problems, "names") == ["${B}"]
    assert problems[0].startswith("names: the environment has no B")


@pytest.mark.parametrize(
    ("text", "option"),
    [
        (HEAD + SOURCE + 'startingOffsets = "${START}"\n' + SINK, "startingOffsets"),
        (HEAD + SOURCE + 'failOnDataLoss = " "\n' + SINK, "failOnDataLoss"),
        (HEAD + SOURCE + SINK.replace('"paid"', '""'), "topic"),
        (HEAD + SOURCE + SINK + '[sinks.all]\nfrom = "orders"\ntopic = ""\n', "topic"),
    ],
)
def test_an_empty_value_is_no_default(text: str, option: str) -> None:
    (problem,) = problems(text, {"START": ""})
    assert f'option "{option}" is empty' in problem


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (HEAD + SOURCE + '[views]\nOrders = "SELECT 1"\n' + SINK, "'orders' and 'Orders' differ only in case"),
        (HEAD + SOURCE + '[views]\na = "SELECT 1"\nA = "SELECT 2"\n' + SINK, "'a' and 'A' differ only in case"),
        (HEAD + SOURCE + '[sources.ORDERS]\nsubscribe = "b"\n' + SINK, "'orders' and 'ORDERS' differ only in case"),
        (HEAD + SOURCE + 'startingOffsets = "earliest"\nStartingOffsets = "latest"\n' + SINK, "set one option twice"),
        (HEAD + 'kafka.client.id = "a"\nkafka.Client.Id = "b"\n' + SOURCE + SINK, "set one option twice"),
        (HEAD + 'kafka.client.id = "a"\n"kafka.client.id" = "b"\n' + SOURCE + SINK, "set one option twice"),
        (HEAD + 'spark.a = "a"\n"spark.a" = "b"\n' + SOURCE + SINK, "'spark.a' set one option twice"),
    ],
)
def test_names_that_spark_takes_for_one_are_refused(text: str, complaint: str) -> None:
    (problem,) = problems(text)
    assert complaint in problem


def test_settings_of_the_session_may_differ_only_in_case() -> None:
    settings = {"spark.executorEnv.http_proxy": "a", "spark.executorEnv.HTTP_PROXY": "b"}
    lines = "".join(f'{name} = "{value}"\n' for name, value in settings.items())
    assert declared(HEAD + lines + SOURCE + SINK).spark == settings


def test_sinks_that_are_columns_of_a_query_differ_in_more_than_case() -> None:
    other = ROWS.replace("sinks.rows", "sinks.Rows")
    assert any("'rows' and 'Rows' differ only in case" in problem for problem in problems(HEAD + SOURCE + ROWS + other))


def test_adopt_is_of_one_start_and_no_key_of_a_declaration() -> None:
    declaration = declared(HEAD + SOURCE + SINK, **{"einmal.adopt": "true"})
    assert declaration.options.adopt
    assert declaration.writer["einmal.adopt"] == "true"
    assert not declared(HEAD + SOURCE + SINK).options.adopt
    for text in ("einmal.adopt = true\n", "[einmal]\nadopt = false\n"):
        (problem,) = problems(HEAD + text + SOURCE + SINK)
        assert "einmal run FILE -X einmal.adopt=true" in problem
    tables = tomllib.loads(HEAD + SOURCE + '[sinks.paid]\ntopic = "paid"\n')
    assert declare(tables, {"einmal.adopt": "true"}).options.adopt
    with pytest.raises(DeclarationError, match="at every start"):
        declare(tables | {"einmal": {"adopt": True}}, {})
    with pytest.raises(DeclarationError, match="true or false"):
        declared(HEAD + SOURCE + SINK, **{"einmal.adopt": "maybe"})


@pytest.mark.parametrize(
    "interval", [f'"{"1" * 5000} seconds"', '"10"', "10", "true", '""', '"10s"', '"1 month"', '"-1 second"', '"soon"']
)
def test_an_interval_that_spark_would_refuse_is_a_problem_of_the_file(interval: str) -> None:
    (problem,) = problems(HEAD + f"trigger.processingTime = {interval}\n" + SOURCE + SINK)
    assert "trigger.processingTime is an interval" in problem and '"10 seconds"' in problem


@pytest.mark.parametrize("guarantee", [EXACTLY_ONCE, AT_LEAST_ONCE, AT_MOST_ONCE])
def test_a_pipeline_with_a_transactional_id_has_that_name(guarantee: str) -> None:
    head = HEAD.replace('"paid"', '"orders-by-day"') + f'processing.guarantee = "{guarantee}"\n'
    assert declared(head + SOURCE + SINK).name == "orders-by-day"


def test_the_transactional_id_may_have_the_prefix_of_the_clients_settings() -> None:
    """The records of several databases are named by it."""
    prefixed = HEAD.replace("transactional.id", "kafka.transactional.id")
    assert declared(prefixed + SOURCE + SINK) == declared(HEAD + SOURCE + SINK)
    twice = HEAD + 'kafka.transactional.id = "paid"\n' + SOURCE + SINK
    assert any('"transactional.id" is set twice' in problem for problem in problems(twice))


@pytest.mark.parametrize("value", ['["a", "b"]', "2026-01-01", "12:00:00", "2026-01-01T00:00:00Z"])
@pytest.mark.parametrize("where", ["top", "source"])
def test_a_value_that_is_no_text_of_an_option_is_refused(value: str, where: str) -> None:
    line = f"kafka.client.id = {value}\n"
    text = HEAD + line + SOURCE + SINK if where == "top" else HEAD + SOURCE + line + SINK
    assert any("kafka.client.id is " in problem for problem in problems(text))


@pytest.mark.parametrize(
    ("value", "text"),
    [("2026-01-01", "2026-01-01"), ("2026-01-01 10:00:00", "2026-01-01T10:00:00")],
)
def test_an_option_of_another_source_may_be_a_date_of_toml(value: str, text: str) -> None:
    tables = f'[sources.orders]\nformat = "delta"\nstartingTimestamp = {value}\n'
    assert declared(HEAD + tables + SINK).sources[0].options == {"startingTimestamp": text}


def test_an_output_mode_of_python_may_be_none() -> None:
    tables = tomllib.loads(HEAD + SOURCE + '[sinks.paid]\ntopic = "paid"\n')
    assert declare(tables | {"outputMode": None}, {}).output_mode is None


def test_an_option_of_python_may_be_a_path_and_is_not_none() -> None:
    tables = tomllib.loads(HEAD + SOURCE + '[sinks.paid]\ntopic = "paid"\n')
    assert declare(tables | {"checkpointLocation": Path("/c")}, {}).options.checkpoint == "/c"
    with pytest.raises(DeclarationError, match="subscribe is text"):
        declare(tables | {"sources": {"orders": {"subscribe": None}}}, {})


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("x = ", "not TOML"),
        (HEAD + SOURCE + SINK + "[sink.x]\n", "did you mean 'sinks'"),
        (HEAD.replace("transactional.id", "transactional.ids") + SOURCE + SINK, "did you mean 'transactional.id'"),
        (HEAD + SOURCE.replace("subscribe", "subscribed") + SINK, 'did you mean "subscribe"'),
        (HEAD + SOURCE + SINK.replace("topic", "topics"), "did you mean 'topic'"),
        (HEAD + SOURCE + SINK.replace('from = "orders"', 'from = "order"'), "did you mean 'orders'"),
        (HEAD + SOURCE + SINK.replace('from = "orders"', ""), "from is missing"),
        (HEAD + SINK, "there is no source"),
        (HEAD + SOURCE, "there is no sink"),
        (HEAD + SOURCE + SINK + 'kafka.acks = "all"\n', "belongs to the whole pipeline"),
        (HEAD + 'processing.guarantee = "exactly_once"\n' + SOURCE + SINK, "has been retired"),
        (HEAD + 'processing.guarantee = "exactly_once_beta"\n' + SOURCE + SINK, "has been retired"),
        (HEAD + 'outputMode = "updates"\n' + SOURCE + SINK, "did you mean 'update'"),
        (HEAD + 'trigger.once = "true"\n' + SOURCE + SINK, "unknown key 'trigger.once'"),
        (HEAD + 'trigger = {availableNow = true, processingTime = "1 s"}\n' + SOURCE + SINK, "exclude each other"),
        (HEAD + SOURCE.replace("orders]", '"or ders"]') + SINK, "letters, digits and underscores"),
        (HEAD + SOURCE + '[views]\norders = "SELECT 1"\n' + SINK, "the name of two"),
        (HEAD + SOURCE + "[views.v]\n" + SINK, "sql is missing"),
        (HEAD + SOURCE + 'watermark.column = "t"\n' + SINK, "a watermark has both"),
        (HEAD + SOURCE + 'startingOffsets = ["earliest"]\n' + SINK, "one value, not a list"),
        (HEAD.replace('transactional.id = "paid"', "") + SOURCE + SINK, '"transactional.id" is missing'),
        ("sources = 3\n" + HEAD, "table of named tables"),
    ],
)
def test_an_invalid_declaration_is_an_error_with_a_hint(text: str, complaint: str) -> None:
    assert complaint in "\n".join(problems(text))


DECODED = 'value.format = "json"\nvalue.schema = \'{"type": "object"}\'\nerrors.tolerance = "all"\n'
LETTERS = 'errors.deadletterqueue.topic.name = "bad"\n'
ROWS = '[sinks.rows]\nfrom = "orders"\ntype = "sqlite"\npath = "x"\ntable = "x"\n'


@pytest.mark.parametrize(
    ("text", "where"),
    [
        (HEAD + SOURCE + SINK.replace('topic = "paid"', 'topic = "orders"'), "which is that of sinks.paid"),
        (HEAD + SOURCE.replace('"orders"', '"a, orders"') + SINK.replace('"paid"', '"a"'), "which is that of"),
        (HEAD + SOURCE.replace("subscribe", "subscribePattern").replace('"orders"', "'p.*'") + SINK, "'paid', which"),
        (HEAD + SOURCE.replace('subscribe = "orders"', "assign = '{\"paid\": [0]}'") + SINK, "which is that of"),
        (HEAD + SOURCE + 'format = "kafka"\n' + SINK.replace('topic = "paid"', 'topic = "orders"'), "which is that of"),
        (HEAD + SOURCE + DECODED + LETTERS.replace("bad", "orders") + SINK, "the dead letters of sources.orders"),
        (
            HEAD
            + SOURCE.replace("subscribe", "subscribePattern").replace('"orders"', "'orders.*'")
            + DECODED
            + LETTERS.replace("bad", "orders-dlq")
            + SINK,
            "reads topic 'orders-dlq', which gets the dead letters of sources.orders",
        ),
        (HEAD + SOURCE + DECODED + LETTERS.replace("bad", "orders") + ROWS, "the dead letters of sources.orders"),
        (
            HEAD + SOURCE + ROWS + 'errors.tolerance = "all"\n' + LETTERS.replace("bad", "orders"),
            "the dead letters of sinks.rows",
        ),
        (
            HEAD + SOURCE + '[views]\na = "SELECT * FROM Orders"\nb = "SELECT * FROM `a`"\n' + sink("b", "orders"),
            "reads topic 'orders', which is that of sinks.b_out",
        ),
    ],
)
def test_a_topic_whose_rows_come_back_to_it_is_refused(text: str, where: str) -> None:
    found = "\n".join(problems(text))
    assert where in found and "every batch would add records to it" in found


def test_a_circle_of_several_topics_is_refused_with_all_of_them() -> None:
    (found,) = problems(HEAD + SOURCE + source("mid") + sink("orders", "mid") + sink("mid", "orders"))
    assert "sources.mid reads topic 'mid', which is that of sinks.orders_out" in found
    assert "sources.orders reads topic 'orders', which is that of sinks.mid_out" in found
    assert len(problems(HEAD + source("a") + source("b") + sink("a", "a") + sink("b", "b"))) == 2


def test_rows_that_a_function_makes_depend_on_every_source() -> None:
    client = {"bootstrap.servers": "b:1"}
    sources = {"a": {"subscribe": "a"}, "b": {"subscribe": "b"}}
    top = {"transactional.id": "x", "checkpointLocation": "/c", "kafka": client, "sources": sources}
    with pytest.raises(DeclarationError, match="sources.b reads topic 'b', which is that of sinks.out"):
        declare(top | {"sinks": {"out": {"topic": "b"}}}, {})


@pytest.mark.parametrize(
    "text",
    [
        HEAD + SOURCE + DECODED + LETTERS + SINK,
        HEAD + SOURCE + DECODED + LETTERS + ROWS + 'errors.tolerance = "all"\n' + LETTERS,
        # Where a bad row stops the pipeline there are no dead letters.
        HEAD + SOURCE + DECODED.replace('"all"', '"none"') + LETTERS.replace("bad", "orders") + SINK,
        # The topic of this name in another cluster.
        HEAD + SOURCE + 'kafka.bootstrap.servers = "elsewhere:1"\n' + SINK.replace('"paid"', '"orders"'),
        # Two steps.
        HEAD + SOURCE + source("mid") + sink("orders", "mid") + sink("mid", "out"),
        HEAD
        + SOURCE
        + source("mid")
        + "[views]\nfirst = \"SELECT 'mid' AS mid, value.mid FROM orders -- and mid\"\nsecond = 'SELECT * FROM mid'\n"
        + sink("first", "mid")
        + sink("second", "out"),
        # A report on dead letters.
        HEAD + SOURCE + DECODED + LETTERS + source("bad") + sink("orders", "out") + sink("bad", "report"),
        HEAD + SOURCE + ROWS + 'errors.tolerance = "all"\n' + LETTERS + source("bad") + sink("bad", "report"),
    ],
)
def test_other_topics_than_those_that_rows_come_from_may_be_written(text: str) -> None:
    assert parse(text, {}, {}).sinks


def test_every_problem_of_a_file_is_reported_at_once() -> None:
    text = (
        HEAD.replace("/c", "${NOWHERE}") + SOURCE.replace("subscribe", "subscribed") + SINK.replace("topic", "topics")
    )
    told = problems(text)
    assert [each.split(":")[0] for each in told] == ["checkpointLocation", "sources.orders", "sinks.paid"]


def test_a_function_is_declared_with_the_same_keys() -> None:
    document: dict[str, Any] = {
        "transactional.id": "paid",
        "checkpointLocation": "/c",
        "kafka": {"bootstrap.servers": "127.0.0.1:9092"},
        "sources": {"orders": {"subscribe": "orders"}},
        "sinks": {"paid": {"topic": "paid"}},
    }
    declaration = declare(document, {})
    assert declaration.sinks == (DeclaredSink("paid", None, "paid"),)
    assert declaration.writer == declared(HEAD + SOURCE + SINK).writer
    with pytest.raises(DeclarationError, match="views are a declaration's in TOML"):
        declare(document | {"views": {"v": "SELECT 1"}}, {})


def test_other_formats_have_options_of_their_own() -> None:
    text = HEAD + '[sources.ticks]\nformat = "rate"\nrowsPerSecond = 5\n' + SINK.replace("orders", "ticks")
    (source,) = declared(text).sources
    assert (source.format, source.options) == ("rate", {"rowsPerSecond": "5"})


# --- declared formats -----------------------------------------------------------------------------------------------


FORMAT = 'value.format = "json"\nvalue.schema = "orders.schema.json"\n'


def test_a_declared_format_is_no_option_of_the_source() -> None:
    (source,) = declared(HEAD + SOURCE + FORMAT + SINK).sources
    assert dict(source.decoding) == {"value.format": "json", "value.schema": "orders.schema.json"}
    assert not any(name.startswith("value.") for name in source.options)


def test_a_format_without_what_it_needs_is_a_problem_of_the_file() -> None:
    (problem,) = problems(HEAD + SOURCE + FORMAT + 'errors.tolerance = "all"\n' + SINK)
    assert "sources.orders" in problem and "errors.deadletterqueue.topic.name" in problem


def test_only_einmals_source_has_a_declared_format() -> None:
    (problem,) = problems(HEAD + SOURCE + 'format = "kafka"\n' + FORMAT + SINK)
    assert "is an option of einmal's source" in problem


def test_every_option_of_a_format_can_be_written_in_one_table_of_toml() -> None:
    text = "\n".join(f'{name} = "x"' for name in NAMES)
    assert set(flattened(tomllib.loads(text))) == set(NAMES)


ROWS = """
[sinks.rows]
type = "sqlite"
from = "orders"
path = "/d/rows.sqlite"
table = "rows"
"""


def test_a_sink_of_another_type_has_options_of_its_own() -> None:
    declaration = declared(HEAD + SOURCE + ROWS)
    (sink,) = declaration.sinks
    assert (sink.kind, sink.options) == ("sqlite", {"path": "/d/rows.sqlite", "table": "rows"})
    assert declaration.writer == {"transactional.id": "paid", "checkpointLocation": "/c"}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (HEAD + SOURCE + ROWS.replace("sqlite", "sqllite", 1), "there is no sink type 'sqllite'"),
        (HEAD + SOURCE + ROWS.replace("sqlite", "orc", 1), 'df.writeStream.format("orc"), has its limits'),
        (HEAD + SOURCE + ROWS.replace("path", "pth"), "sinks.rows: unknown key 'pth'"),
        (HEAD + SOURCE + ROWS.replace("sinks.rows", 'sinks."my rows"'), "a name in SQL"),
        ('processing.guarantee = "at_least_once"' + HEAD + SOURCE + ROWS, "commit rows and record together"),
        ('processing.guarantee = "at_least_once"' + HEAD + SOURCE + SINK + ROWS, "commit rows and record together"),
    ],
)
def test_what_is_wrong_with_a_sink_of_another_type_is_reported(text: str, problem: str) -> None:
    assert any(problem in each for each in problems(text))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('clusters = ["A", "B"]\n["A->B"]\ntopics = "a"', "it declares a mirror, and no pipeline\nhint: einmal mirror"),
        ('[ingest.a]\ntype = "files"', "it declares ingesters, and no pipeline\nhint: einmal ingest"),
    ],
)
def test_the_declaration_of_something_else_is_one_error_with_its_command(text: str, message: str) -> None:
    with pytest.raises(DeclarationError) as caught:
        declared(text)
    assert len(caught.value.problems) == 1
    assert message in caught.value.problems[0]


def test_a_file_without_tables_of_ingesters_is_read_as_a_pipeline() -> None:
    with pytest.raises(DeclarationError) as caught:
        declared(f"ingest = 5\n{HEAD}")
    assert [problem.partition("\n")[0] for problem in caught.value.problems] == [
        "there is no source",
        "there is no sink",
    ]


def test_a_two_phase_commit_may_be_a_boolean_of_toml() -> None:
    two_phase = f"kafka.{TWO_PHASE_COMMIT} = true\n"
    database = '[sinks.rows]\nfrom = "orders"\ntype = "sqlite"\npath = "/d"\ntable = "t"\n'
    options = declared(HEAD + two_phase + SOURCE + SINK + database).options
    assert isinstance(options, SinkOptions)
    assert options.client[TWO_PHASE_COMMIT] == "true"
    assert any("0 databases" in problem for problem in problems(HEAD + two_phase + SOURCE + SINK))
