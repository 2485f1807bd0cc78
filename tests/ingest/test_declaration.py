from __future__ import annotations

import pytest

from einmal.declare.document import DeclarationError
from einmal.declare.pipeline import parse as parse_pipeline
from einmal.ingest import Deduplicate
from einmal.ingest.declaration import IngestDeclaration, declared
from einmal.ingest.files import FilesSource
from einmal.ingest.postgresql.source import PostgresSource

CLUSTER = 'kafka.bootstrap.servers = "a:9092"\n'
FILES = '[ingest.logs]\ntype = "files"\npath = "/var/log/*.log"\ntopic = "logs"\n'


def parsed(text: str, **environment: str) -> dict[str, IngestDeclaration]:
    return declared(text, environment, lambda path: "")


def problems(text: str) -> str:
    with pytest.raises(DeclarationError) as found:
        parsed(text)
    return "\n".join(found.value.problems)


def test_settings_of_the_producer_are_those_of_the_file_and_of_the_ingester() -> None:
    (found,) = parsed(CLUSTER + FILES + 'kafka.compression.type = "zstd"\n').values()
    assert (found.name, found.kind) == ("logs", "files")
    assert found.client == {"bootstrap.servers": "a:9092", "compression.type": "zstd"}
    assert isinstance(found.source(), FilesSource)


def test_secrets_are_read_from_the_environment_and_not_printed() -> None:
    text = CLUSTER + FILES + 'kafka.sasl.password = "${env:PASSWORD}"\nkafka.sasl.username = "u"\n'
    text += 'kafka.security.protocol = "SASL_PLAINTEXT"\nkafka.sasl.mechanism = "PLAIN"\n'
    (found,) = parsed(text, PASSWORD="s3cret").values()
    assert found.client["sasl.password"] == "s3cret"
    assert "s3cret" not in repr(found)


def test_a_database_is_declared_with_the_options_of_change_data_capture() -> None:
    text = CLUSTER + (
        '[ingest.shop]\ntype = "postgresql"\nurl = "postgresql://db/shop"\nslot.name = "shop"\n'
        'publication.name = "einmal"\ntopic.prefix = "shop"\n'
    )
    assert isinstance(parsed(text)["shop"].source(), PostgresSource)


def test_deduplication_is_declared_beside_the_source() -> None:
    (found,) = parsed(CLUSTER + FILES + '[ingest.logs.deduplicate]\nkey = "value.id"\nwindow = "15m"\n').values()
    assert found.deduplicate == Deduplicate("value.id", window_ms=900_000)
    assert isinstance(found.source(), FilesSource)


OUTBOX = (
    '[ingest.shop]\ntype = "postgresql"\nurl = "postgresql://db/shop"\nslot.name = "shop"\n'
    'publication.name = "einmal"\ntopic.prefix = "shop"\n'
)


def test_the_events_of_an_outbox_are_deduplicated_by_their_header() -> None:
    text = CLUSTER + OUTBOX + 'outbox.tables = "public.outbox"\ndeduplicate = { key = "header:id", window = "1d" }\n'
    assert parsed(text)["shop"].deduplicate == Deduplicate("header:id", window_ms=86_400_000)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (FILES + 'deduplicate = { key = "key", window = "1h" }', "which all records of a file share"),
        (FILES + 'deduplicate = { key = "id", window = "1h" }', "the business key 'id' is not known"),
        (FILES + 'deduplicate = { key = "value.id" }', 'option "window" is missing'),
        (FILES + 'deduplicate = { key = "value.id", window = "0s" }', "the window of a deduplication is 0"),
        (FILES + 'deduplicate = { key = "value.id", window = "soon" }', 'option "window" is a time such as'),
        (FILES + 'deduplicate = { key = "value.id", window = "1h", keys = 1 }', 'unknown option "keys"'),
        (FILES + "deduplicate = {}", "deduplicate is a table"),
        (FILES + "deduplicate = true", "deduplicate is a table"),
        (OUTBOX + 'deduplicate = { key = "header:id", window = "1h" }', "a database's log has each change once"),
    ],
)
def test_a_deduplication_that_cannot_be_meant_is_refused(text: str, reason: str) -> None:
    assert reason in problems(CLUSTER + text)


def test_all_problems_are_reported_at_once_with_hints() -> None:
    text = CLUSTER + (
        '[ingest.a]\ntype = "file"\n[ingest.b]\ntype = "files"\npath = "x"\ntopic = "t"\nkeys = "file"\n'
        '[ingest.c]\ntype = "files"\ntopic = "t"\n[ingest.d]\ntype = "table"\nurl = "jdbc:postgresql:x"\n'
        '[ingest.e]\ntype = "files"\npath = "x"\ntopic = "t"\nkafka.compression.typ = "zstd"\n'
    )
    found = problems(text)
    for expected in (
        "ingest.a: type = 'file' is no kind of source\nhint: did you mean 'files'?",
        'ingest.b: unknown option "keys"\nhint: did you mean "key"?',
        'ingest.c: option "path" is missing',
        "ingest.d: ",
        "ingest.e: ",
    ):
        assert expected in found


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "no ingester is declared"),
        ("ingest = 1", "no ingester is declared"),
        ("[ingest]\nlogs = 1", "ingest.logs is a table, not 1"),
        ("[ingest", "not TOML"),
        (FILES, "bootstrap.servers is missing"),
        (CLUSTER + FILES.replace('topic = "logs"', 'topic = "bad name!"'), "is no name of a topic: 'bad name!'"),
        (CLUSTER + FILES.replace('topic = "logs"', 'topic = "__consumer_offsets"'), "is an internal topic"),
        (CLUSTER + OUTBOX + "max.batch.size = 9999999999\n", "is at most 2,147,483,647, not 9999999999"),
        (CLUSTER + FILES + 'key = "line"\n', 'option "key" is one of none, file'),
        (CLUSTER + FILES + "max.line.bytes = 0\n", "a whole number of at least 1"),
        (
            CLUSTER + '[ingest.a]\ntype = "files"\npath = ["/a.log", "/b.log"]\ntopic = "t"\n',
            'ingest.a: option "path" is text, not an array\nhint: path = "..."',
        ),
        (CLUSTER + FILES.replace('"logs"', "2026-11-30"), 'option "topic" is text, not a date'),
        (CLUSTER + FILES.replace('"logs"', "{}"), 'option "topic" is text, not a table'),
        (CLUSTER + FILES + "kafka.ssl.enabled.protocols = []\n", 'option "kafka.ssl.enabled.protocols" is text'),
        ('kafka.bootstrap.servers = ["a:9092"]\n' + FILES, 'option "kafka.bootstrap.servers" is text, not an array'),
        (CLUSTER + '[ingest.a]\ntype = "table"\ntable = ["a", "b"]\n', 'option "table" is text, not an array'),
        (CLUSTER + OUTBOX + 'outbox.tables = ["a", "b"]\n', 'option "outbox.tables" is text, not an array'),
        (CLUSTER + FILES + 'deduplicate = { key = ["a"], window = "1h" }', 'option "deduplicate.key" is text'),
    ],
)
def test_what_is_no_declaration_is_refused(text: str, reason: str) -> None:
    assert reason in problems(text)


def test_a_pipeline_in_the_same_file_is_not_disturbed() -> None:
    text = (
        'transactional.id = "p"\ncheckpointLocation = "/tmp/p"\n'
        + CLUSTER
        + FILES
        + 'password = "${env:ONLY_OF_THE_INGESTER}"\n'
        '[sources.logs]\nsubscribe = "logs"\n[sinks.out]\nfrom = "logs"\ntopic = "out"\n'
    )
    assert parse_pipeline(text, {}, {}).topic == "out"


def test_what_is_wrong_with_another_ingester_does_not_keep_one_from_running() -> None:
    others = (
        '[ingest.shop]\ntype = "postgresql"\npassword = "${env:NO_SUCH_PASSWORD}"\n',
        '[ingest.odd]\ntype = "no such type"\n',
        "ingest.broken = 1\n",
        "[sources.words]\nsubscribe = 1\n",
    )
    for other in others:
        text = (other + CLUSTER + FILES) if other.startswith("ingest.") else CLUSTER + FILES + other
        (found,) = declared(text, {}, lambda path: "", only="logs").values()
        assert found.name == "logs"
    with pytest.raises(DeclarationError, match="NO_SUCH_PASSWORD"):
        declared(CLUSTER + FILES + others[0], {}, lambda path: "", only="shop")
    with pytest.raises(DeclarationError, match="no ingester 'log' is declared, only logs"):
        declared(CLUSTER + FILES, {}, lambda path: "", only="log")
