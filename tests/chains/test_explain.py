"""``einmal explain`` of a chain: two real clusters, a mirror between them, a pipeline behind it."""

from __future__ import annotations

import json
import re
import subprocess
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from pathlib import Path

import pytest

from einmal.client import Admin, NewTopic, Producer
from tests.interop.einmal_broker import EinmalBroker
from tests.suite import warm

pytestmark = pytest.mark.system


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    """With mirror.toml and pipeline.toml, which name the brokers."""
    source, target = EinmalBroker(tmp_path / "A"), EinmalBroker(tmp_path / "B")
    source.start()
    target.start()
    (tmp_path / "mirror.toml").write_text(
        f'clusters = ["A", "B"]\nA.bootstrap.servers = "{source.bootstrap}"\n'
        f'B.bootstrap.servers = "{target.bootstrap}"\n["A->B"]\ntopics = "raw"\n'
    )
    (tmp_path / "pipeline.toml").write_text(
        '"transactional.id" = "totals"\ncheckpointLocation = "checkpoint"\n'
        f'[sources.raw]\nkafka.bootstrap.servers = "localhost:{target.port}"\nsubscribe = "A.raw"\n'
        '[sinks.totals]\nfrom = "raw"\ntype = "sqlite"\npath = "totals.db"\ntable = "totals"\n'
    )
    with Admin({"bootstrap.servers": source.bootstrap}) as admin:
        admin.create_topics([NewTopic("raw", num_partitions=1)])
    (tmp_path / "source").write_text(source.bootstrap)
    yield tmp_path
    source.stop()
    target.stop()


def einmal(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return warm.run(["einmal", *arguments], cwd=directory, timeout=300)


def produce(directory: Path, count: int) -> None:
    with Producer({"bootstrap.servers": (directory / "source").read_text()}) as producer:
        for number in range(count):
            producer.send("raw", str(number))


def test_a_chain_is_explained_drawn_and_measured_from_end_to_end(directory: Path) -> None:
    produce(directory, 5)
    assert einmal(directory, "mirror", "A->B", "--available-now").returncode == 0
    produce(directory, 3)
    files = ("pipeline.toml", "mirror.toml")
    done = einmal(directory, "explain", *files, "--graph", "chain.svg", "--format", "json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert [(each["link"], each["guarantee"]) for each in found["links"]] == [
        ("A->B", "exactly_once_v2"),
        ("totals", "exactly_once_v2"),
    ]
    mirror, totals = found["links"]
    # One cluster, whatever address it is reached by.
    assert mirror["outputs"] == totals["inputs"]
    assert mirror["behind"].startswith("lag 3, oldest record ")
    assert totals["behind"] == "nothing committed yet"
    (end,) = found["ends"]
    assert end["location"].startswith("totals [table, ")
    assert end["behind"].startswith("lag 3")
    assert ElementTree.parse(directory / "chain.svg").getroot().tag.endswith("svg")
    shown = einmal(directory, "explain", *files)
    assert "raw [topic, " in shown.stdout and "from end to end: exactly_once_v2; lag 3" in shown.stdout


def test_clusters_that_do_not_answer_are_named_and_nothing_else_changes(directory: Path) -> None:
    text = (directory / "mirror.toml").read_text()
    port = (directory / "source").read_text().rpartition(":")[2]
    (directory / "mirror.toml").write_text(text.replace(f":{port}", ":1"))
    done = einmal(directory, "explain", "pipeline.toml", "mirror.toml")
    assert done.returncode == 0, done.stderr
    assert "pipeline totals: exactly_once_v2; nothing committed yet" in done.stdout
    unknown = "(no topic that is known yet)"
    assert f"{unknown}  ~~>  {unknown}\n    mirror A->B: exactly_once_v2" in done.stdout
    assert re.search("^warning: the topics of [^ ]*:1 are not known: .*no bootstrap server answers", done.stderr, re.M)
    assert "Traceback" not in done.stderr


@pytest.mark.long
def test_a_broken_section_is_left_out_and_reported(directory: Path) -> None:
    mirror = directory / "mirror.toml"
    mirror.write_text(mirror.read_text() + '["B->A"]\nenabled = "perhaps"\n')
    (directory / "ingest.toml").write_text('[ingest.shop]\ntype = "postgresql"\npassword = "${env:NO_SUCH}"\n')
    done = einmal(directory, "explain", "pipeline.toml", "ingest.toml", "mirror.toml")
    assert done.returncode == 2
    assert "pipeline totals: exactly_once_v2" in done.stdout
    assert "mirror A->B: exactly_once_v2" in done.stdout
    assert "left out, and everything above is without it: ingest.toml: ingest.shop" in done.stdout
    assert "left out, and everything above is without it: mirror.toml: B->A" in done.stdout
    assert "error: ingest.toml: ingest.shop.password: the environment has no NO_SUCH" in done.stderr
    assert "error: mirror.toml: B->A.enabled is true or false" in done.stderr
    as_json = einmal(directory, "explain", "ingest.toml", "mirror.toml", "--format", "json")
    assert as_json.returncode == 2
    assert json.loads(as_json.stdout)["left_out"] == ["ingest.toml: ingest.shop", "mirror.toml: B->A"]
    nothing = einmal(directory, "explain", "ingest.toml", "ingest.toml")
    assert (nothing.returncode, nothing.stdout) == (2, "")


@pytest.mark.long
def test_a_file_that_is_broken_as_a_whole_blocks_no_other(directory: Path) -> None:
    (directory / "half.toml").write_text('clusters = ["A"\n')
    (directory / "latin.toml").write_bytes(b'name = "caf\xe9"\n')
    (directory / "folder.toml").mkdir()
    broken = ("half.toml", "latin.toml", "folder.toml", "absent.toml")
    done = einmal(directory, "explain", *broken, "mirror.toml")
    assert done.returncode == 2
    assert "mirror A->B: exactly_once_v2" in done.stdout
    for file in broken:
        assert f"left out, and everything above is without it: {file}: all of it" in done.stdout
        assert f"error: {file}: " in done.stderr
    assert "Traceback" not in done.stderr


def test_settings_that_no_client_takes_are_a_reason_and_block_nothing(directory: Path) -> None:
    text = (directory / "pipeline.toml").read_text()
    (directory / "pipeline.toml").write_text(
        text.replace(
            "[sinks.totals]", 'kafka.security.protocol = "SSL"\nkafka.ssl.ca.location = "nowhere.pem"\n[sinks.totals]'
        )
    )
    done = einmal(directory, "explain", "pipeline.toml", "mirror.toml")
    assert done.returncode == 0, done.stderr
    assert "mirror A->B: exactly_once_v2" in done.stdout
    assert "Traceback" not in done.stderr


_INGESTERS_ALONE = (
    'kafka.bootstrap.servers = "127.0.0.1:1"\n[ingest.logs]\ntype = "files"\npath = "/nowhere/*"\ntopic = "logs"\n'
)


def test_one_file_without_a_pipeline_is_a_chain_of_its_own(directory: Path) -> None:
    mirror = einmal(directory, "explain", "mirror.toml")
    assert mirror.returncode == 0, mirror.stderr
    assert "mirror A->B: exactly_once_v2" in mirror.stdout
    (directory / "ingest.toml").write_text(_INGESTERS_ALONE)
    ingesters = einmal(directory, "explain", "ingest.toml")
    assert ingesters.returncode == 0, ingesters.stderr
    assert "ingester logs: exactly_once_v2" in ingesters.stdout
