"""Claims about ``einmal topic``."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from einmal.cli.commands.topic import _FOLLOW, _Range, _range_of
from einmal.client import Admin, Consumer, OffsetRange, Producer, RangeReader, TopicPartition
from einmal.wire.compression import Compression
from tests.cli.running import Cli, invoke
from tests.interop.topics import at_last
from tests.suite.patience import patient
from tests.suite.shared import shared, unique

pytestmark = pytest.mark.system


def test_topics_are_made_listed_described_and_deleted(cli: Cli) -> None:
    cli("topic", "create", "made", "-p", "3", "-c", "cleanup.policy=compact")
    (made,) = (each for each in cli("topic", "list", "--format", "json").document if each["name"] == "made")
    assert made == {"name": "made", "partitions": 3, "replicas": 1, "internal": False, "topic_id": made["topic_id"]}
    head, *rows = cli("topic", "list").lines
    assert head.split() == ["NAME", "PARTITIONS", "REPLICAS"]
    assert ["made", "3", "1"] in [row.split() for row in rows]
    described = cli("topic", "describe", "made", "--format", "json").document
    assert described["configs"] == [{"key": "cleanup.policy", "value": "compact"}]
    assert [each["partition"] for each in described["partitions"]] == [0, 1, 2]
    assert {each["high_watermark"] for each in described["partitions"]} == {0}
    cli("topic", "delete", "made", "--yes")
    assert "made" not in "\n".join(cli("topic", "list").lines)


def test_partitions_are_described_in_their_order_each_with_its_own_offsets(cli: Cli, cluster: str) -> None:
    # More than ten: 10 is neither before 2 nor beside it.
    counts = [(index * 5) % 12 for index in range(12)]
    cli("topic", "create", "in-order", "-p", str(len(counts)))
    with Producer(bootstrap_servers=cluster) as producer:
        for partition, count in enumerate(counts):
            for _ in range(count):
                producer.send("in-order", "record", partition=partition)
    described = cli("topic", "describe", "in-order", "--format", "json").document["partitions"]
    assert [(each["partition"], each["high_watermark"]) for each in described] == list(enumerate(counts))
    assert [each["last_stable_offset"] for each in described] == counts
    lines = [line.split() for line in cli("topic", "describe", "in-order").lines]
    (head,) = (number for number, line in enumerate(lines) if line[:1] == ["PARTITION"])
    assert [(int(row[0]), int(row[-1])) for row in lines[head + 1 :] if row] == list(enumerate(counts))


def test_a_failure_is_an_error_and_a_hint_without_a_traceback(cli: Cli) -> None:
    cli("topic", "create", "twice")
    failed = cli("topic", "create", "twice", status=1)
    assert failed.lines[1:] == ["twice  failed"]
    error, hint = failed.errors
    assert error.startswith("error: TOPIC_ALREADY_EXISTS (36): a topic of this name exists")
    assert hint == "hint: use it, or choose another name"
    cli("topic", "create", "twice", "--if-not-exists")


def test_lines_become_records_and_come_back(cli: Cli) -> None:
    cli("topic", "create", "lines")
    written = cli("topic", "produce", "lines", "-K", ":", "-H", "h=x", stdin="a:1\nb:2\nno delimiter\n")
    assert [line.split()[:4] for line in written.lines] == [
        ["partition", "0", "offset", str(offset)] for offset in range(3)
    ]
    assert cli("topic", "consume", "lines", "-o", "start:end").lines == ["1", "2", "no delimiter"]
    assert cli("topic", "consume", "lines", "-o", "1:2", "-f", r"%t %p %o %k=%v %h\n").lines == ["lines 0 1 b=2 h=x"]
    first = json.loads(cli("topic", "consume", "lines", "-n", "1", "--format", "json").lines[0])
    timestamp = first.pop("timestamp")
    assert first.pop("producer_id") >= 0
    assert first == {
        "topic": "lines",
        "partition": 0,
        "offset": 0,
        "key": "a",
        "value": "1",
        "headers": [{"key": "h", "value": "x"}],
        "timestamp_type": "CreateTime",
        "leader_epoch": 0,
        "producer_epoch": 0,
        "sequence": 0,
        "transactional": False,
        "control": None,
    }
    assert cli("topic", "consume", "lines", "-o", f"@{timestamp}:end").lines == ["1", "2", "no delimiter"]


def test_binary_records_are_shown_as_such(cli: Cli) -> None:
    cli("topic", "create", "binary")
    cli("topic", "produce", "binary", stdin=b"\xff\xfe\n")
    (record,) = map(json.loads, cli("topic", "consume", "binary", "-o", "start:end", "--format", "json").lines)
    assert record["value"] == {"hex": "fffe"}


def test_only_committed_records_are_shown_by_default(cli: Cli, cluster: str) -> None:
    cli("topic", "create", "open")
    cli("topic", "produce", "open", "--transactional-id", "one", stdin="committed\n")
    with Producer(bootstrap_servers=cluster, transactional_id="two") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("open", "open").result()
        assert cli("topic", "consume", "open", "-o", "start:end").lines == ["committed"]
        everything = cli("topic", "consume", "open", "-o", "start:end", "--read-uncommitted").lines
        assert everything == ["committed", "open"]
        producer.abort_transaction()


def test_a_group_s_position_is_behind_what_was_printed_and_no_further(cli: Cli) -> None:
    cli("topic", "create", "grouped")
    cli("topic", "produce", "grouped", stdin="0\n1\n2\n3\n")
    assert cli("topic", "consume", "grouped", "-g", "readers", "-n", "2").lines == ["0", "1"]
    assert cli("topic", "consume", "grouped", "-g", "readers", "-n", "2").lines == ["2", "3"]


def test_of_several_topics_each_is_reported_and_the_rest_is_done(cli: Cli) -> None:
    cli("topic", "create", "several-b")
    made = cli("topic", "create", "several-a", "several-b", "no good", "several-c", "--format", "json", status=1)
    assert made.document == [
        {"topic": "several-a", "status": "created", "error": None},
        {"topic": "several-b", "status": "failed", "error": "TOPIC_ALREADY_EXISTS"},
        {"topic": "no good", "status": "failed", "error": "INVALID_TOPIC_EXCEPTION"},
        {"topic": "several-c", "status": "created", "error": None},
    ]
    assert [line for line in made.errors if line.startswith("error:")] == [
        line for line in made.errors if "'several-b'" in line or "'no good'" in line
    ]
    gone = cli("topic", "delete", "several-a", "several-x", "several-c", "--yes", status=1)
    assert [line.split() for line in gone.lines[1:]] == [
        ["several-a", "deleted"],
        ["several-x", "failed"],
        ["several-c", "deleted"],
    ]
    assert "several-a" not in "\n".join(cli("topic", "list").lines)


def test_of_several_topics_those_after_a_lost_cluster_are_not_tried() -> None:
    tried = Cli("127.0.0.1:1")("topic", "create", "a", "b", "--format", "json", status=1)
    assert [(each["topic"], each["status"], each["error"]) for each in tried.document] == [
        ("a", "failed", "NoBrokerReachable"),
        ("b", "not tried", None),
    ]
    assert any("einmal start" in line for line in tried.errors)


@pytest.mark.parametrize("offset", ["soon", "--3", "1:2:3", "s@soon"])
def test_a_wrong_offset_is_wrong_usage(cli: Cli, offset: str) -> None:
    assert "is not start, end, an offset, -N or @ms" in " ".join(
        cli("topic", "consume", "t", f"--offset={offset}", status=2).errors
    )


def test_what_was_done_is_json_too(cli: Cli) -> None:
    assert cli("topic", "create", "told", "--format", "json").document == [
        {"topic": "told", "status": "created", "error": None}
    ]
    again = cli("topic", "create", "told", "told-too", "--if-not-exists", "--format", "json").document
    assert [each["status"] for each in again] == ["exists", "created"]
    deleted = cli("topic", "delete", "told", "told-too", "--yes", "--format", "json").document
    assert [each["status"] for each in deleted] == ["deleted", "deleted"]


def test_a_missing_partition_is_reported(cli: Cli) -> None:
    cli("topic", "create", "narrow", "-p", "2")
    failed = cli("topic", "consume", "narrow", "-p", "7", "-o", "start:end", status=1)
    assert "topic 'narrow' has 2 partition(s), counted from 0" in failed.errors[0]
    failed = cli("topic", "produce", "narrow", "-p", "7", "-X", "max.block.ms=2000", stdin="x\n", status=1)
    assert failed.errors[0].startswith("error: UNKNOWN_TOPIC_OR_PARTITION (3)")


@pytest.mark.parametrize("options", [("-o", "5"), ("-o", "start:end"), ("-p", "0")])
def test_a_group_takes_no_position_but_its_own(cli: Cli, options: tuple[str, str]) -> None:
    assert cli("topic", "consume", "any", "-g", "group", *options, status=2).lines == []


def test_what_should_be_key_and_value_is_wrong_usage_without_the_sign(cli: Cli) -> None:
    cli("topic", "create", "unsigned", "-c", "cleanup.policy", status=2)
    cli("topic", "produce", "unsigned", "-H", "header", stdin="x\n", status=2)


# --- bytes ---------------------------------------------------------------------------------------------------------

BYTES = (
    b"text",
    "\u00fc\u4e2d".encode(),
    b"H\xf0\x90\x80W\xff",
    b"\x00\x00",
    b"a\rb\r",
    b"\x1b[2J",
    b"\xed\xa0\x80",
    b"%v %% \\n",
)


@pytest.mark.parametrize(
    ("template", "expected"),
    [(None, b"%s\n"), ("%v", b"%s"), (r"%k|%v|%h\n", b"%s|%s|h=%s\n"), (r"\t%t %v%%\n", b"\tbytes-1 %s%%\n")],
)
def test_bytes_of_records_are_printed_as_they_are(cluster: str, template: str | None, expected: bytes) -> None:
    with Admin(bootstrap_servers=cluster) as admin, Producer(bootstrap_servers=cluster) as producer:
        if admin.create_topics(["bytes-1"], if_not_exists=True):
            for value in BYTES:
                producer.send("bytes-1", value, key=value, headers=[("h", value)])
    words = ["topic", "consume", "bytes-1", "-o", "start:end", *(["-f", template] if template else [])]
    done = invoke(words, env={"KAFKA_BROKERS": cluster})
    assert done.stdout_bytes == b"".join(expected.replace(b"%%", b"%").replace(b"%s", value) for value in BYTES)


def test_lines_that_were_consumed_are_produced_again_as_the_same_bytes(cluster: str) -> None:
    environment = {"KAFKA_BROKERS": cluster}
    lines = b"".join(value + b"\n" for value in BYTES)
    invoke(["topic", "create", "bytes-2"], env=environment)
    invoke(["topic", "produce", "bytes-2", "-K", "\udcff"], input=lines, env=environment)
    done = invoke(["topic", "consume", "bytes-2", "-o", "start:end", "-f", "%k\udcff%v\n"], env=environment)
    assert [line for line in done.stdout_bytes.split(b"\n") if b"W" in line] == [b"H\xf0\x90\x80W\xff"]


@pytest.mark.parametrize("options", [(), ("--transactional-id", "long-lines")])
def test_a_line_that_is_too_long_is_named_and_not_read_to_its_end(options: tuple[str, ...], cli: Cli) -> None:
    name = f"long-{len(options)}"
    fits = "k:" + "x" * 900
    settings = ("-K", ":", "-X", "max.request.size=1000")
    with subprocess.Popen(
        [sys.executable, "-m", "einmal", "topic", "produce", name, "-b", cli.bootstrap, *settings, *options],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None and process.stderr is not None
        # What is written fits in a pipe; the line has no end.
        process.stdin.write(f"{fits}\n{'y' * 20_000}")
        process.stdin.flush()
        errors = process.stderr.read()
        assert process.wait() == 1
    assert "MESSAGE_TOO_LARGE" in errors and "line 2; max.request.size is 1000" in errors
    written = cli("topic", "consume", name, "-o", "start:end", "-f", r"%k:%v\n").lines
    assert written == ([] if options else [fits])


def test_a_delimiter_has_the_escapes_of_a_template(cli: Cli) -> None:
    lines = "a\tb:\\t\nno tab\n"
    cli("topic", "produce", "tabs", "-K", r"\t", stdin=lines)
    assert cli("topic", "consume", "tabs", "-o", "start:end", "-f", r"%k\t%v\n").lines == ["a\tb:\\t", "\tno tab"]
    cli("topic", "produce", "tabs-2", "-K", r":\t", stdin="k\t:\tv\n")
    assert cli("topic", "consume", "tabs-2", "-o", "start:end", "-f", r"%k %v\n").lines == ["k\t v"]


def test_an_empty_value_can_be_written_as_null(cli: Cli) -> None:
    cli("topic", "create", "tombstones")
    cli("topic", "produce", "tombstones", "-K", ":", stdin="k:\nk:v\n")
    cli("topic", "produce", "tombstones", "-K", ":", "-Z", stdin="k:\nk:v\n\n")
    lines = cli("topic", "consume", "tombstones", "-o", "start:end", "--format", "json").lines
    records = [(each["key"], each["value"]) for each in map(json.loads, lines)]
    assert records == [("k", ""), ("k", "v"), ("k", None), ("k", "v"), (None, None)]


# --- where reading begins ------------------------------------------------------------------------------------------


@pytest.mark.representatives(6)
@pytest.mark.parametrize(
    ("at", "until", "since", "expected"),
    [
        ("start", None, None, _Range(10, 0, _FOLLOW)),
        ("start", "end", None, _Range(10, 0, 20)),
        ("end", None, None, _Range(20, 0, _FOLLOW)),
        ("15", None, None, _Range(15, 0, _FOLLOW)),
        ("15", "18", None, _Range(15, 0, 18)),
        ("15", "99", None, _Range(15, 0, 20)),
        ("20", None, None, _Range(20, 0, _FOLLOW)),
        ("0", None, None, _Range(10, 0, _FOLLOW)),
        ("21", None, None, _Range(20, 21, _FOLLOW)),
        ("100", "end", None, _Range(20, 100, 20)),
        ("-3", "end", None, _Range(17, 0, 20)),
        ("-30", None, None, _Range(10, 0, _FOLLOW)),
        ("@7", None, 12, _Range(12, 0, _FOLLOW)),
        ("@7", "end", -1, _Range(20, 0, 20)),
    ],
)
def test_reading_begins_where_it_should_in_a_log_of_offsets_10_to_20(
    at: str, until: str | None, since: int | None, expected: _Range
) -> None:
    assert _range_of(at, until, 10, 20, since) == expected


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_an_offset_beyond_the_end_is_waited_for(
    cli: Cli, cluster: str, unbuffered: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A warning comes first."""
    monkeypatch.setenv("PYTHONUNBUFFERED", unbuffered)
    topic = f"short{unbuffered}"
    cli("topic", "create", topic)
    cli("topic", "produce", topic, stdin="0\n1\n")
    with running(cluster, "consume", topic, "-o", "4", "-n", "1", "-f", r"%o %v\n") as process:
        assert process.stderr is not None
        assert process.stderr.readline().startswith(f"warning: {topic}-0 has offsets 0 to 2".encode())
        cli("topic", "produce", topic, stdin="2\n3\n4\n")
        assert read_lines(process, 1) == [b"4 4\n"]
        assert process.wait(patient(20)) == 0
    assert cli("topic", "consume", topic, "-o", "999999:end").lines == []


# --- what ends a command -------------------------------------------------------------------------------------------


@contextmanager
def running(cluster: str, *words: str) -> Iterator[subprocess.Popen[bytes]]:
    environment = {**os.environ, "KAFKA_BROKERS": cluster}
    command = [sys.executable, "-m", "einmal", "topic", *words]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, env=environment) as process:
        try:
            yield process
        finally:
            process.kill()


def write(process: subprocess.Popen[bytes], lines: bytes) -> None:
    assert process.stdin is not None
    process.stdin.write(lines)
    process.stdin.flush()


def read_lines(process: subprocess.Popen[bytes], count: int) -> list[bytes]:
    assert process.stdout is not None
    return [process.stdout.readline() for _ in range(count)]


@pytest.mark.representatives(2)
@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("ending", ["SIGTERM", "SIGINT", "closed pipe"])
def test_a_group_resumes_after_the_last_line_that_was_read_however_its_member_ended(
    cli: Cli, cluster: str, ending: str, unbuffered: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONUNBUFFERED", unbuffered)
    topic = f"ended-by-{ending.replace(' ', '-')}{unbuffered}"
    cli("topic", "create", topic)
    cli("topic", "produce", topic, stdin="0\n1\n2\n")
    with running(cluster, "consume", topic, "-g", topic) as process:
        assert read_lines(process, 3) == [b"0\n", b"1\n", b"2\n"]
        if ending == "closed pipe":
            assert process.stdout is not None
            process.stdout.close()
            cli("topic", "produce", topic, stdin="3\n")
        else:
            process.send_signal(getattr(signal, ending))
        status = process.wait(patient(20))
        assert process.stderr is not None
        assert status == {"SIGTERM": 143, "SIGINT": 130, "closed pipe": 0}[ending], process.stderr.read()
    with Admin(bootstrap_servers=cluster) as admin:
        assert admin.describe_groups([topic])[topic].members == ()
        assert admin.list_group_offsets(topic)[TopicPartition(topic, 0)].offset == 3


def wait_for_record(cluster: str, at: TopicPartition, offset: int) -> None:
    with Consumer(bootstrap_servers=cluster, isolation_level="read_uncommitted") as consumer:
        consumer.assign([at])
        consumer.seek(at, 0)
        while consumer.position(at) <= offset:
            consumer.poll(200)


def test_sigterm_aborts_a_transaction_and_reports_lines_that_are_written_without_one(cli: Cli, cluster: str) -> None:
    cli("topic", "create", "stopped")
    at = TopicPartition("stopped", 0)
    with running(cluster, "produce", "stopped") as process:
        write(process, b"0\n1\n")
        wait_for_record(cluster, at, 1)
        process.send_signal(signal.SIGTERM)
        assert process.wait(patient(20)) == 143
        assert process.stdout is not None
        assert process.stdout.read().count(b"partition 0 offset") == 2
    with running(cluster, "produce", "stopped", "--transactional-id", "stopped") as process:
        write(process, b"open\n" * 3)
        wait_for_record(cluster, at, 2)
        process.send_signal(signal.SIGTERM)
        assert process.wait(patient(20)) == 143
    with Admin(bootstrap_servers=cluster) as admin:
        assert admin.describe_transactions(["stopped"])["stopped"].state in ("PrepareAbort", "CompleteAbort")
    assert cli("topic", "consume", "stopped", "-o", "start:end").lines == ["0", "1"]


def test_lines_that_are_written_are_printed_although_a_later_one_is_refused(cli: Cli) -> None:
    cli("topic", "create", "partly", "-c", "max.message.bytes=1000")
    for large in ("x" * 5_000, "x" * 2_000_000):
        done = cli("topic", "produce", "partly", "-X", "batch.size=0", stdin=f"a\nb\n{large}\n", status=1)
        assert [line.split()[:3] for line in done.lines] == [["partition", "0", "offset"]] * 2
        assert [each for each in done.errors if each.startswith("error: ")]
    assert cli("topic", "consume", "partly", "-o", "start:end").lines == ["a", "b"] * 2


def test_letters_show_the_producer_the_epochs_and_the_ends_of_the_partition(cli: Cli, cluster: str) -> None:
    cli("topic", "create", "letters")
    cli("topic", "produce", "letters", "--transactional-id", "letters", "-k", "key", stdin="value\n")
    (described,) = cli("txn", "describe", "letters", "--format", "json").document
    (line,) = cli("topic", "consume", "letters", "-o", "start:end", "-f", r"%x %y %e %| %] %s %K %S %H %V\n").lines
    producer_id, producer_epoch, leader_epoch, *rest = line.split()
    assert (int(producer_id), int(leader_epoch)) == (described["producer_id"], 0)
    assert int(producer_epoch) >= 0
    assert rest == ["2", "2", "value", "3", "5", "0", "5"]


def test_braces_are_letters_and_modifiers_are_wrong_usage(cli: Cli) -> None:
    cli("topic", "create", "braces")
    cli("topic", "produce", "braces", stdin="value\n")
    words = ("topic", "consume", "braces", "-o", "start:end", "-f")
    assert cli(*words, r"{%{%v%}}\n").lines == ["{{value}}"]
    assert any("no modifiers" in line for line in cli(*words, "%v{hex}", status=2).errors)
    # A template that JSON would pass over.
    assert any("--format json" in line for line in cli(*words, "%v", "--format", "json", status=2).errors)


@pytest.mark.parametrize("template", ["%q", "%v %", "%N"])
def test_an_unknown_letter_is_wrong_usage(cli: Cli, template: str) -> None:
    failed = cli("topic", "consume", "letters", "-f", template, status=2)
    assert any("no letter of a template" in each for each in failed.errors)


def test_json_has_producer_epoch_and_sequence_and_on_request_the_log_as_it_is(cli: Cli, cluster: str) -> None:
    cli("topic", "create", "as-it-is")
    with Producer(bootstrap_servers=cluster, transactional_id="as-it-is") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("as-it-is", "aborted").result()
        producer.abort_transaction()
    cli("topic", "produce", "as-it-is", "--transactional-id", "as-it-is", stdin="a\nb\n")
    words = ("topic", "consume", "as-it-is", "-o", "start:end", "--format", "json")
    assert [json.loads(each)["sequence"] for each in cli(*words).lines] == [0, 1]
    found = [json.loads(each) for each in cli(*words, "--print-control-records").lines]
    assert [(each["value"], each["control"] and each["control"]["type"]) for each in found] == [
        ("aborted", None), (None, "ABORT"), ("a", None), ("b", None), (None, "COMMIT"),
    ]  # fmt: skip
    assert all(each["transactional"] and each["producer_id"] >= 0 for each in found)
    assert [each["sequence"] for each in found] == [0, None, 0, 1, None]
    cli("topic", "consume", "as-it-is", "--print-control-records", status=2)


@pytest.fixture(params=["einmal-commands", pytest.param("apache", marks=pytest.mark.interop)])
def both(request: pytest.FixtureRequest) -> Cli:
    return Cli(shared(request.param).bootstrap)


def test_settings_are_changed_and_taken_back_and_partitions_are_added(both: Cli) -> None:
    name = unique("altered")
    both("topic", "create", name, "-p", "1")
    words = ("topic", "alter", name)
    assert both(*words, "-c", "retention.ms=5000", "-p", "3", "--format", "json").document == [
        {"topic": name, "status": "altered", "error": None}
    ]
    described = at_last(
        lambda: both("topic", "describe", name, "--format", "json").document,
        lambda found: len(found["partitions"]) == 3 and found["configs"] != [],
    )
    assert {"key": "retention.ms", "value": "5000"} in described["configs"]
    both(*words, "-d", "retention.ms")
    at_last(
        lambda: both("topic", "describe", name, "--format", "json").document["configs"],
        lambda configs: "retention.ms" not in [each["key"] for each in configs],
    )
    assert "INVALID_PARTITIONS" in both(*words, "-p", "2", status=1).errors[0]


def test_an_alteration_that_is_refused_in_part_changes_nothing(both: Cli) -> None:
    name = unique("whole")
    both("topic", "create", name, "-p", "2")
    for words in (["-c", "retention.ms=5000", "-p", "1"], ["-c", "retention.ms=never", "-p", "3"]):
        assert both("topic", "alter", name, *words, status=1).errors[0].startswith("error: INVALID_")
    described = both("topic", "describe", name, "--format", "json").document
    assert "retention.ms" not in [each["key"] for each in described["configs"]]
    assert len(described["partitions"]) == 2
    failed = both("topic", "alter", name, "-c", "retention.ms=1", "-d", "retention.ms", status=2)
    assert any("retention.ms: set by -c and taken back by -d" in line for line in failed.errors)


def test_bytes_of_the_arguments_are_those_of_key_and_header(cli: Cli) -> None:
    """As those of stdin and of --key-delimiter: a shell passes any bytes but NUL."""
    name = unique("bytes")
    cli("topic", "create", name)
    cli("topic", "produce", name, "-k", os.fsdecode(b"\xff"), "-H", os.fsdecode(b"h=\xfe"), stdin="x\n")
    (line,) = cli("topic", "consume", name, "-o", "start:end", "--format", "json").lines
    record = json.loads(line)
    assert (record["key"], record["headers"]) == ({"hex": "ff"}, [{"key": "h", "value": {"hex": "fe"}}])


def test_a_misspelt_setting_is_not_taken_back_without_a_word(both: Cli) -> None:
    name = unique("misspelt")
    both("topic", "create", name, "-c", "retention.ms=5000")
    failed = both("topic", "alter", name, "-d", "retention.mss", "--format", "json", status=1)
    assert failed.document == [{"topic": name, "status": "failed", "error": "INVALID_CONFIG"}]
    assert "no setting retention.mss" in failed.errors[0]
    # Taking back what is not set changes nothing, as it should.
    both("topic", "alter", name, "-d", "retention.bytes")


def test_one_setting_with_two_values_is_wrong_usage(cli: Cli) -> None:
    policies = ("-c", "cleanup.policy=compact", "-c", "cleanup.policy=delete")
    for verb in ("create", "alter"):
        failed = cli("topic", verb, unique("twice"), *policies, status=2)
        assert any("cleanup.policy has two values, 'compact' and 'delete'" in line for line in failed.errors)


def test_content_is_counted_and_ranges_of_transactions_are_named(both: Cli) -> None:
    name = unique("contents")
    both("topic", "create", name, "-p", "1")
    with Producer(bootstrap_servers=both.bootstrap, transactional_id=name) as producer:
        producer.init_transactions()
        for end in (producer.abort_transaction, producer.commit_transaction):
            producer.begin_transaction()
            producer.send(name, "x").result()
            producer.send(name, "y").result()
            end()
        producer.begin_transaction()
        producer.send(name, "open").result()
        # A transaction's end is answered before its markers are written.
        (found,) = at_last(
            lambda: both("topic", "describe", name, "--content", "--format", "json").document["content"],
            lambda content: content[0]["markers"] == 2,
        )
        text = both("topic", "describe", name, "--content").lines
        wide = both("topic", "describe", name, "--format", "wide").lines
        producer.abort_transaction()
    assert (found["committed"], found["aborted"], found["behind"], found["unknown"]) == (2, 2, 1, {})
    ranges = [(each["first_offset"], each["last_offset"], each["marker_offset"]) for each in found["aborted_ranges"]]
    assert ranges == [(0, 1, 2)]
    assert [each["first_offset"] for each in found["open_ranges"]] == [6]
    assert text[-1].split() == ["0", "2", "2", "2", "1"]
    assert wide[-1].split()[-3:] == ["6", "7", "7"]


def on_a_terminal(cluster: str, answer: bytes, *words: str) -> subprocess.CompletedProcess[str]:
    """Run ``einmal topic`` with a terminal as stdin, on which somebody types the answer."""
    keyboard, terminal = os.openpty()
    try:
        os.write(keyboard, answer)
        return subprocess.run(
            [sys.executable, "-m", "einmal", "topic", *words],
            stdin=terminal,
            capture_output=True,
            text=True,
            env={**os.environ, "KAFKA_BROKERS": cluster},
            timeout=patient(60),
        )
    finally:
        os.close(keyboard)
        os.close(terminal)


def test_a_deletion_asks_first_where_somebody_can_answer(cli: Cli, cluster: str) -> None:
    cli("topic", "create", "kept-on", "script-s")
    kept = on_a_terminal(cluster, b"n\n", "delete", "kept-on")
    assert (kept.returncode, kept.stdout.strip()) == (1, "")
    assert "with all records" in kept.stderr
    gone = on_a_terminal(cluster, b"y\n", "rm", "kept-on")
    assert gone.stdout.splitlines()[-1].split() == ["kept-on", "deleted"]
    script = cli("topic", "delete", "script-s")
    assert (script.lines[-1].split(), script.errors) == (["script-s", "deleted"], [])


def test_wide_has_the_columns_of_json(cli: Cli) -> None:
    cli("topic", "create", "wide-one")
    (row,) = (each for each in cli("topic", "list", "--format", "json").document if each["name"] == "wide-one")
    head, *lines = (line.split() for line in cli("topic", "list", "--format", "wide").lines)
    assert head == [name.upper().replace("_", "-") for name in row]
    assert ["wide-one", "1", "1", "no", row["topic_id"]] in lines
    refused = cli("topic", "create", "wide-one", "--format", "wide", status=1)
    assert refused.lines[-1].split() == ["wide-one", "failed", "TOPIC_ALREADY_EXISTS"]


def test_a_wrong_format_is_answered_with_those_that_there_are(cli: Cli) -> None:
    refused = cli("topic", "list", "--format", "help", status=2)
    assert "'text', 'wide', 'json', 'yaml'" in refused.errors[-1]


def test_short_names_of_verbs_work(cli: Cli) -> None:
    cli("topic", "create", "short-name")
    assert cli("topic", "ls").lines == cli("topic", "list").lines


def test_offsets_in_the_words_of_other_tools_are_understood(both: Cli) -> None:
    name = unique("words")
    both("topic", "create", name, "-p", "1")
    both("topic", "produce", name, stdin="0\n1\n2\n3\n")
    words = ("topic", "consume", name)
    assert both(*words, "-o", "-2:end").lines == ["2", "3"]
    assert both(*words, "-o", "-2", "-n", "1").lines == ["2"]
    for offset in ("earliest:end", "beginning:latest", "s@0:end"):
        assert both(*words, "-o", offset).lines == ["0", "1", "2", "3"]


# --- settings ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", [["-o", "start:end"], ["-n", "2"], ["-o", "-1:end"]], ids=" ".join)
def test_a_look_moves_no_group_that_the_settings_name(cli: Cli, cluster: str, words: list[str]) -> None:
    topic, group = unique("looked-at"), unique("application")
    cli("topic", "create", topic)
    cli("topic", "produce", topic, stdin="0\n1\n2\n")
    with Consumer(bootstrap_servers=cluster, group_id=group) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        consumer.commit({TopicPartition(topic, 0): 1})
    done = cli("topic", "consume", topic, *words, "-X", f"group.id={group}", "-X", "auto.commit.interval.ms=0")
    assert done.errors == ["note: group.id: not used without --group; the group's position stays"]
    with Admin(bootstrap_servers=cluster) as admin:
        assert admin.list_group_offsets(group)[TopicPartition(topic, 0)].offset == 1


def test_settings_hold_where_no_option_overrides_them(cli: Cli, cluster: str) -> None:
    topic = unique("given")
    cli("topic", "create", topic)
    cli("topic", "produce", topic, "-X", "compression.type=zstd", stdin="committed\n")
    cli("topic", "produce", topic, "-X", "compression.type=zstd", "-z", "lz4", stdin="committed\n")
    with Producer(bootstrap_servers=cluster, transactional_id=topic) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic, "open").result()
        words = ("topic", "consume", topic, "-o", "start:2")
        assert cli(*words).lines == ["committed"] * 2
        uncommitted = ("-n", "3", "-X", "isolation.level=read_uncommitted")
        assert cli("topic", "consume", topic, *uncommitted).lines == ["committed", "committed", "open"]
        producer.abort_transaction()
    with RangeReader({"bootstrap.servers": cluster}) as reader:
        batches = list(reader.read({TopicPartition(topic, 0): OffsetRange(0, 2)}))
    assert [batch.header.compression for batch in batches] == [Compression.ZSTD, Compression.LZ4]


def test_a_group_without_a_position_begins_where_the_setting_has_it(cli: Cli, cluster: str) -> None:
    topic, group = unique("latest"), unique("latest-group")
    cli("topic", "create", topic)
    cli("topic", "produce", topic, stdin="before\n")
    with running(cluster, "consume", topic, "-g", group, "-n", "1", "-X", "auto.offset.reset=latest") as process:
        with Admin(bootstrap_servers=cluster) as admin:
            at_last(lambda: admin.describe_groups([group])[group].state, lambda state: state == "Stable")
        while process.poll() is None:
            cli("topic", "produce", topic, stdin="after\n")
        assert read_lines(process, 1) == [b"after\n"]


@pytest.mark.parametrize(
    "words",
    [
        ["topic", "create", "large", "-p", "99999999999"],
        ["topic", "alter", "lines", "-p", "99999999999"],
        ["topic", "consume", "lines", "-o", "@99999999999999999999"],
        ["topic", "consume", "lines", "-o", "99999999999999999999"],
        ["group", "seek", "nobody", "--topic", "lines", "--to", "@99999999999999999999"],
        ["txn", "list", "--duration-filter", "99999999999999999999"],
        ["txn", "describe-producers", "--topic", "lines", "--partition", "99999999999"],
        ["topic", "describe", "x" * 40_000],
    ],
    ids=lambda words: " ".join(words)[:60],
)
def test_a_number_or_a_name_that_the_protocol_has_no_room_for_is_an_error(cli: Cli, words: list[str]) -> None:
    result = invoke(words, env={"KAFKA_BROKERS": cli.bootstrap})
    assert result.exit_code in (1, 2), result.output
    assert "rror: " in result.stderr or result.stderr.startswith("warning: "), result.stderr
    assert "Traceback" not in result.output


# --- stdout --------------------------------------------------------------------------------------------------------


def test_lines_are_written_to_their_end_although_nobody_reads_what_is_printed(cli: Cli, cluster: str) -> None:
    topic, count = unique("unread"), 20_000
    cli("topic", "create", topic)
    with running(cluster, "produce", topic, "-X", "linger.ms=0") as process:
        assert process.stdin is not None and process.stdout is not None and process.stderr is not None
        process.stdout.close()
        process.stdin.write(b"line\n" * count)
        process.stdin.close()
        assert process.wait(patient(60)) == 0
        assert process.stderr.read().decode().splitlines() == [
            "warning: nobody reads stdout any more; the work continues, and prints nothing there"
        ]
    with Admin(bootstrap_servers=cluster) as admin:
        assert admin.list_offsets({TopicPartition(topic, 0): -1})[TopicPartition(topic, 0)].offset == count


@pytest.mark.parametrize(
    "words",
    [["produce", "full"], ["consume", "full", "-o", "start:end"], ["list"], ["describe", "full", "--format", "json"]],
    ids=lambda words: words[0],
)
def test_a_disk_that_is_full_is_an_error_without_a_traceback(cli: Cli, cluster: str, words: list[str]) -> None:
    cli("topic", "create", "full", "--if-not-exists")
    cli("topic", "produce", "full", stdin="x\n" * 10)
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "einmal", "topic", *words],
            stdin=subprocess.DEVNULL if words[0] != "produce" else None,
            input=b"y\n" if words[0] == "produce" else None,
            stdout=full,
            stderr=subprocess.PIPE,
            env={**os.environ, "KAFKA_BROKERS": cluster},
            check=False,
        )
    assert done.returncode == 1, done.stderr
    assert b"error: stdout cannot be written: No space left on device" in done.stderr
    assert b"Traceback" not in done.stderr and b"Exception ignored" not in done.stderr
