"""Records that a topic does not take, on a real broker: what becomes of them, and of what else is set aside."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from einmal.client import Admin, NewTopic
from einmal.client.aio.admin_calls.acls import EVERY_ACL
from einmal.commit_protocol.commit_record import CommitRecord
from einmal.ingest import Ingest, IngestBatch, IngestRecord, IngestStopped, Position, RecordSource, SourceNotice
from einmal.ingest.files import FilesSource
from einmal.security.acl import Acl, AclOperation, PatternType, Permission, ResourceType
from tests.ingest.sources import committed
from tests.interop.einmal_broker import EinmalBroker

pytestmark = pytest.mark.system

MAY_WRITE = [
    Acl(ResourceType.TOPIC, "t", PatternType.LITERAL, "User:ANONYMOUS", "*", each, Permission.ALLOW)
    for each in (AclOperation.READ, AclOperation.WRITE, AclOperation.DESCRIBE)
]
TRUNCATE = IngestRecord("t", b"{}", skipped_as="the TRUNCATE of public.t")


@dataclass
class Records(RecordSource):
    """Each record is a batch."""

    found: list[IngestRecord] = field(default_factory=list)

    def origin(self) -> str:
        return "records"

    def read(self, position: Position | None) -> Iterator[IngestBatch | None]:
        begin = 0 if position is None else int(position["next"])
        while True:
            for number in range(begin, len(self.found)):
                yield IngestBatch([self.found[number]], {"next": number + 1})
                begin = number + 1
            yield None


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[EinmalBroker]:
    settings = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "allow.everyone.if.no.acl.found": "true",
    }
    broker = EinmalBroker(tmp_path / "broker", settings)
    broker.start()
    yield broker
    broker.stop()


@pytest.mark.parametrize("may_ask", [True, False])
def test_a_truncate_is_left_out_whether_or_not_the_ingester_may_ask_for_the_policy_and_when_that_changes(
    may_ask: bool, broker: EinmalBroker
) -> None:
    client = {"bootstrap.servers": broker.bootstrap}
    source, notices = Records([TRUNCATE, IngestRecord("t", b"1", b"k")]), list[SourceNotice]()

    def run() -> None:
        Ingest(source, client, name="i", notify=notices.append).run(available_now=True)

    with Admin(client) as admin:
        admin.create_topics([NewTopic("t", num_partitions=1, configs={"cleanup.policy": "compact"})])

        def guard() -> None:
            if not may_ask:
                admin.create_acls(MAY_WRITE)

        def change(policy: str) -> None:
            admin.delete_acls([EVERY_ACL])
            admin.alter_configs("t", {"cleanup.policy": policy})
            guard()

        guard()
        run()
        assert committed(broker.bootstrap, "t", 1) == [[b"1"]]
        assert [each.kind for each in notices] == (["skipped"] if may_ask else ["restart", "skipped"])

        # One process, while the policy changes.
        def committing(record: CommitRecord) -> None:
            if record.batch_id in (2, 3):
                change("delete" if record.batch_id == 2 else "compact")

        ingest = Ingest(source, client, name="i", notify=notices.append, committed=committing)

        notices.clear()
        source.found += [IngestRecord("t", b"2", b"k"), TRUNCATE, TRUNCATE, IngestRecord("t", b"3", b"k")]
        ingest.run(available_now=True)
        assert committed(broker.bootstrap, "t", 1) == [[b"1", b"2", b"{}", b"3"]]
        assert [each.kind for each in notices] == (["skipped"] if may_ask else ["restart", "skipped"])
        source.found.append(IngestRecord("t", b"4"))
        with pytest.raises(IngestStopped, match="has no key, and the topic is compacted") as stopped:
            run()
        assert "cleanup.policy=delete" in stopped.value.hint
        change("delete")
        run()
    assert committed(broker.bootstrap, "t", 1) == [[b"1", b"2", b"{}", b"3", b"4"]]


def test_a_file_that_is_set_aside_keeps_no_other_from_being_written_and_is_reported_at_the_end(
    broker: EinmalBroker, tmp_path: Path
) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a").write_bytes(gzip.compress(b"1\n" * 99)[:-1])
    os.utime(tmp_path / "in" / "a", (1, 1))
    (tmp_path / "in" / "b").write_text("2\n")
    with Admin({"bootstrap.servers": broker.bootstrap}) as admin:
        admin.create_topics([NewTopic("t", num_partitions=1)])
    source = FilesSource(str(tmp_path / "in" / "*"), "t")
    with pytest.raises(IngestStopped, match="not ingested: .*/in/a; everything else is") as stopped:
        Ingest(source, {"bootstrap.servers": broker.bootstrap}, name="i").run(available_now=True)
    assert "way past" in stopped.value.hint
    assert committed(broker.bootstrap, "t", 1) == [[b"2"]]


def test_the_command_reports_what_it_leaves_out_and_that_nothing_matches(broker: EinmalBroker, tmp_path: Path) -> None:
    declaration = tmp_path / "pipeline.toml"
    declaration.write_text(
        f'kafka.bootstrap.servers = "{broker.bootstrap}"\n[ingest.a]\ntype = "files"\npath = "{tmp_path}/in/*.log"\n'
        'topic = "t"\nmax.line.bytes = 10\n'
    )
    (tmp_path / "in").mkdir()

    def run() -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "einmal", "ingest", "a", "-f", str(declaration), "--available-now"]
        return subprocess.run([*command, "--format", "json"], capture_output=True, text=True, timeout=120, check=False)

    nothing = run()
    assert nothing.returncode == 0, nothing.stderr
    assert json.loads(nothing.stderr)["notice"] == "no files"
    (tmp_path / "in" / "a.log").write_text("1\n" + "x" * 11 + "\n")
    stopped = run()
    assert stopped.returncode == 3, stopped.stderr
    notice, error, hint = stopped.stderr.splitlines()
    assert "skip.long.lines" in json.loads(notice)["text"]
    assert error.startswith(f"error: not ingested: {(tmp_path / 'in' / 'a.log').resolve()}"), hint
    declaration.write_text(declaration.read_text() + "skip.long.lines = true\n")
    past = run()
    assert past.returncode == 0, past.stderr
    assert json.loads(past.stderr)["notice"] == "skipped line"
    assert committed(broker.bootstrap, "t", 1) == [[b"1"]]
