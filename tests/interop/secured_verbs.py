"""What every verb of the command line does on a secured cluster: the steps that show that it works there."""

from __future__ import annotations

import contextlib
import json
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import typer
from typer.core import TyperGroup

from einmal.cli.app import app
from einmal.client import Admin, Consumer, KafkaError, NewTopic, Producer
from einmal.pipeline.dead_letters import FailedRecord, RowFailure, dead_letter
from tests.cli.pipeline_owner import PipelineOwner, write_checkpoint
from tests.security.secure_kafka import CANARY, SecureKafka
from tests.suite.patience import patient

Run = Callable[..., str]


def verbs() -> dict[str, Any]:
    """The leaves of the command line's tree: "topic create", ..."""

    def leaves(command: Any, path: str) -> Iterator[tuple[str, Any]]:
        if isinstance(command, TyperGroup):
            for name, each in command.commands.items():
                yield from leaves(each, f"{path} {name}".strip())
        else:
            yield path, command

    return dict(leaves(typer.main.get_command(app), ""))


_OF_PROFILES = {f"profile {verb}" for verb in ("create", "list", "show", "use", "delete")}
WITHOUT_A_CLUSTER = {"start", "demo", "bench", "simulate", "log dump", *_OF_PROFILES}
"""They start what they connect to, or read and write files."""
IN_SPARKS_TESTS = {"run", "explain"}
"""Their settings are in pipeline.toml: tests/spark/test_secured.py runs both."""
IN_THE_MIRRORS_TESTS = {"mirror run", "mirror status", "mirror failover", "mirror explain"}
"""Their settings are in mirror.toml: tests/mirroring/test_apache_kafka.py runs them."""
IN_THE_INGESTERS_TESTS = {"ingest"}
"""Its settings are in pipeline.toml: tests/ingest/test_apache_kafka.py runs it."""
CONNECTING = sorted(
    verbs().keys() - WITHOUT_A_CLUSTER - IN_SPARKS_TESTS - IN_THE_MIRRORS_TESTS - IN_THE_INGESTERS_TESTS
)


class Stage(NamedTuple):
    """What a verb is shown on: ``run`` it, on ``node``. Every one has names of its own."""

    run: Run
    node: SecureKafka
    directory: Path
    name: str

    @property
    def settings(self) -> dict[str, str]:
        return self.node.settings("SCRAM-SHA-512")

    def rows(self, *arguments: str) -> list[dict[str, Any]]:
        """What a verb prints as JSON, between the warnings of the file."""
        printed = self.run(*arguments, "--format", "json")
        found: list[dict[str, Any]] = json.JSONDecoder().raw_decode(printed, printed.index("["))[0]
        return found

    def topic(self) -> str:
        """A new one with one partition, which every later request finds."""
        with Admin(self.settings) as admin:
            admin.create_topics([NewTopic(self.name, 1)])
        deadline = time.monotonic() + patient(30)
        # A broker that has just created a topic may not list it yet.
        while self.name not in self.run("topic", "list"):
            assert time.monotonic() < deadline
        return self.name

    @contextmanager
    def open_transaction(self) -> Iterator[str]:
        """The transactional.id of a transaction that has written a record to ``topic()``."""
        topic = self.topic()
        with Producer(self.settings, transactional_id=self.name) as producer:
            producer.init_transactions()
            producer.begin_transaction()
            producer.send(topic, b"open").result(300)
            yield self.name
            with contextlib.suppress(KafkaError):
                producer.abort_transaction()

    @contextmanager
    def pipeline(self) -> Iterator[PipelineOwner]:
        """One that has committed batch 4, up to offset 3 of t-0."""
        owner = PipelineOwner(self.settings, self.name)
        try:
            owner.commit(4, {"t": {"0": 3}})
            yield owner
        finally:
            owner.close()


Shows = Callable[[Stage], None]
SHOWN: dict[str, Shows] = {}


def shows(verb: str) -> Callable[[Shows], Shows]:
    def keep(function: Shows) -> Shows:
        SHOWN[verb] = function
        return function

    return keep


@shows("topic create")
def _(stage: Stage) -> None:
    assert "created" in stage.run("topic", "create", stage.name, "-p", "2")


@shows("topic list")
def _(stage: Stage) -> None:
    assert stage.topic() in stage.run("topic", "list")


@shows("topic describe")
def _(stage: Stage) -> None:
    assert stage.topic() in stage.run("topic", "describe", stage.name, "--format", "json")


@shows("topic alter")
def _(stage: Stage) -> None:
    assert "altered" in stage.run("topic", "alter", stage.topic(), "-c", "retention.ms=5000")


@shows("cluster info")
def _(stage: Stage) -> None:
    assert "NODE-ID" in stage.run("cluster", "info")


@shows("cluster health")
def _(stage: Stage) -> None:
    assert "have a leader" in stage.run("cluster", "health")


@shows("cluster config")
def _(stage: Stage) -> None:
    assert "log.dirs" in stage.run("cluster", "config")


@shows("cluster loggers")
def _(stage: Stage) -> None:
    # Which loggers a node of Apache Kafka has depends on its logging library: with that of the tests, none.
    assert stage.run("cluster", "loggers", "--format", "json").startswith("[")


@shows("topic delete")
def _(stage: Stage) -> None:
    assert "deleted" in stage.run("topic", "delete", stage.topic(), "--yes")


@shows("topic produce")
def _(stage: Stage) -> None:
    stage.run("topic", "produce", stage.topic(), stdin="one\ntwo\n")
    assert "two" in stage.run("topic", "consume", stage.name, "-n", "2")


@shows("topic consume")
def _(stage: Stage) -> None:
    with Producer(stage.settings) as producer:
        producer.send(stage.topic(), b"to-be-read").result(300)
    assert "to-be-read" in stage.run("topic", "consume", stage.name, "--offset", "start", "-n", "1")
    assert "to-be-read" in stage.run("topic", "consume", stage.name, "-n", "1", "--group", f"{stage.name}-group")


def group_of(stage: Stage) -> str:
    """One without members, with a committed offset."""
    topic = stage.topic()
    with Producer(stage.settings) as producer:
        producer.send(topic, b"").result(300)
    with Consumer(stage.settings, group_id=stage.name, auto_offset_reset="earliest") as consumer:
        consumer.subscribe([topic])
        deadline = time.monotonic() + patient(60)
        while not consumer.poll(500):
            assert time.monotonic() < deadline
        consumer.commit()
    return stage.name


@shows("group list")
def _(stage: Stage) -> None:
    assert group_of(stage) in stage.run("group", "list")


@shows("group describe")
def _(stage: Stage) -> None:
    assert group_of(stage) in stage.run("group", "describe", stage.name)
    assert "GROUP_ID_NOT_FOUND" in stage.run("group", "describe", "nobody", status=1)


@shows("group lag")
def _(stage: Stage) -> None:
    assert "UNREAD" in stage.run("group", "lag", group_of(stage))


@shows("group seek")
def _(stage: Stage) -> None:
    assert "moved" in stage.run("group", "seek", group_of(stage), "--to", "earliest", "--yes")


@shows("group delete")
def _(stage: Stage) -> None:
    assert "deleted" in stage.run("group", "delete", group_of(stage))


@shows("txn doctor")
def _(stage: Stage) -> None:
    with stage.open_transaction() as name:
        found = stage.run("txn", "doctor", "--topic", stage.name, status=1)
        assert re.search(rf"einmal txn abort .*{name}", found), found


@shows("top")
def _(stage: Stage) -> None:
    assert stage.topic() in stage.run("top", "-n", "1")


@shows("trace")
def _(stage: Stage) -> None:
    assert "committed. Its producer knew after" in stage.run("trace")


_LISTING = """
import os, sys
from einmal.client import Admin
settings = dict(pair.split("=", 1) for pair in sys.argv[1:] if "=" in pair)
with Admin({**settings, "bootstrap.servers": os.environ["KAFKA_BROKERS"]}) as admin:
    print(admin.list_topics())
"""


@shows("chaos")
def _(stage: Stage) -> None:
    # What the stage appends is the command's.
    own = [part for name, value in stage.settings.items() for part in ("-X", f"{name}={value}")]
    behind = {**stage.settings, "security.protocol": "SASL_PLAINTEXT"}
    given = [f"{name}={value}" for name, value in behind.items() if not name.startswith("ssl.")]
    rule = ["--rule", "on(Metadata).delay(0).once()"]
    shown = stage.run("chaos", *rule, *own, "--", sys.executable, "-c", _LISTING, *given)
    assert CANARY not in shown
    assert "security.protocol=SASL_PLAINTEXT" in shown
    assert "request delayed by 0 s: Metadata, " in shown


@shows("verify")
def _(stage: Stage) -> None:
    shown = stage.run("verify", "--workload", "appends", "--time", "5s", "--seed", "1")
    assert "exactly-once" in shown or "holds" in shown


@shows("txn show")
def _(stage: Stage) -> None:
    with stage.open_transaction() as name:
        assert "Ongoing" in stage.run("txn", "show", name)


@shows("txn list")
def _(stage: Stage) -> None:
    with stage.open_transaction() as name:
        assert name in stage.run("txn", "list", "--state", "Ongoing")


@shows("txn describe")
def _(stage: Stage) -> None:
    with stage.open_transaction() as name:
        assert "Ongoing" in stage.run("txn", "describe", name)


@shows("txn describe-producers")
def _(stage: Stage) -> None:
    with stage.open_transaction():
        (row,) = stage.rows("txn", "describe-producers", "--topic", stage.name)
        assert row["producer_id"] >= 0


@shows("txn find-hanging")
def _(stage: Stage) -> None:
    with stage.open_transaction():
        assert stage.rows("txn", "find-hanging", "--topic", stage.name, "--max-timeout-ms", "0") == []


@shows("txn abort")
def _(stage: Stage) -> None:
    with stage.open_transaction() as name:
        refused = stage.run("txn", "abort", "--topic", name, "--start-offset", "0", "--yes", status=1)
        assert f"einmal txn doctor --topic {name}" in refused
        assert "aborted" in stage.run("txn", "abort", name, "--yes")
        assert "Ongoing" not in stage.run("txn", "describe", name)


@shows("pipeline status")
def _(stage: Stage) -> None:
    with stage.pipeline() as owner:
        (row,) = stage.rows("pipeline", "status", owner.name)
    assert (row["batch"], row["positions"]) == (4, ["t-0:3"])


@shows("pipeline adopt")
def _(stage: Stage) -> None:
    write_checkpoint(stage.directory)
    with stage.pipeline() as owner:
        stage.run("pipeline", "adopt", owner.name, "--checkpoint", str(stage.directory), "--yes")
        record = owner.read()
    assert record is not None
    assert (record.query_id, record.batch_id) == ("other", 7)


@shows("pipeline reset")
def _(stage: Stage) -> None:
    with stage.pipeline() as owner:
        stage.run("pipeline", "reset", owner.name, "--yes")
        assert owner.read() is None


def until_listed(stage: Stage, wanted: str, *arguments: str) -> None:
    """A broker learns a moment later what the controller has answered."""
    deadline = time.monotonic() + patient(30)
    while wanted not in stage.run(*arguments):
        assert time.monotonic() < deadline, f"{wanted} is not in the answer to {arguments}"


@shows("acl add")
def _(stage: Stage) -> None:
    assert stage.name in stage.run("acl", "add", "User:nobody", "--topic", stage.name, "--producer")


@shows("acl list")
def _(stage: Stage) -> None:
    stage.run("acl", "add", "User:nobody", "--topic", stage.name, "--operation", "read")
    until_listed(stage, stage.name, "acl", "list", "User:nobody")


@shows("acl remove")
def _(stage: Stage) -> None:
    stage.run("acl", "add", "User:nobody", "--topic", stage.name, "--operation", "read")
    until_listed(stage, stage.name, "acl", "list", "--topic", stage.name)
    assert stage.name in stage.run("acl", "remove", "User:nobody", "--topic", stage.name, "--yes")


@shows("quota set")
def _(stage: Stage) -> None:
    stage.run("quota", "set", "producer_byte_rate=1000000", "--client-id", stage.name)
    until_listed(stage, stage.name, "quota", "list")


@shows("quota list")
def _(stage: Stage) -> None:
    stage.run("quota", "set", "consumer_byte_rate=1000000", "--user", stage.name)
    until_listed(stage, "consumer_byte_rate", "quota", "list", "--user", stage.name)


@shows("quota remove")
def _(stage: Stage) -> None:
    stage.run("quota", "set", "producer_byte_rate=1000000", "--client-id", stage.name)
    until_listed(stage, stage.name, "quota", "list")
    stage.run("quota", "remove", "producer_byte_rate", "--client-id", stage.name)


@shows("user create")
def _(stage: Stage) -> None:
    stage.run("user", "create", stage.name, stdin=f"{CANARY}-new\n")
    until_listed(stage, stage.name, "user", "list")


@shows("user list")
def _(stage: Stage) -> None:
    until_listed(stage, "SCRAM-SHA-256", "user", "list")


@shows("user delete")
def _(stage: Stage) -> None:
    stage.run("user", "create", stage.name, stdin=f"{CANARY}-new\n")
    until_listed(stage, stage.name, "user", "list")
    stage.run("user", "delete", stage.name)


@shows("pipeline infer")
def _(stage: Stage) -> None:
    with Producer(stage.settings) as producer:
        producer.send(stage.topic(), b'{"amount": 3}').result(300)
    assert '"amount"' in stage.run("pipeline", "infer", stage.name)


def dead_letters_of(stage: Stage) -> str:
    """A dead-letter topic with one record, which was in ``stage.topic()``."""
    topic, letters = stage.topic(), f"{stage.name}-dlq"
    failed = FailedRecord(topic=topic, partition=0, offset=0, key=b"k", value=b"{", headers=())
    failure = RowFailure(
        source="orders",
        batch=1,
        stage="VALUE_CONVERTER",
        exception="MalformedValue",
        message="not JSON",
        executing="x",
    )
    row = dead_letter(failed, failure, letters)
    with Admin(stage.settings) as admin, Producer(stage.settings) as producer:
        admin.create_topics([NewTopic(letters, 1)])
        headers = [(each["key"], each["value"]) for each in row["headers"]]
        producer.send(letters, row["value"], row["key"], headers).result(300)
    return letters


@shows("dlq list")
def _(stage: Stage) -> None:
    (row,) = stage.rows("dlq", "list", dead_letters_of(stage))
    assert (row["reason"], row["count"]) == ("MalformedValue", 1)


@shows("dlq show")
def _(stage: Stage) -> None:
    assert "MalformedValue" in stage.run("dlq", "show", dead_letters_of(stage), "0:0")


@shows("dlq replay")
def _(stage: Stage) -> None:
    letters = dead_letters_of(stage)
    assert "1 copied" in stage.run("dlq", "replay", letters, "--yes")
    assert "0 copied" in stage.run("dlq", "replay", letters, "--yes")
