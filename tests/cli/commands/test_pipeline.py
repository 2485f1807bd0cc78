"""Claims about ``einmal pipeline``: it shows state, prints a plan, asks for confirmation, and carries out the plan."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from einmal.client import Admin, Producer
from einmal.client.errors import KafkaError
from einmal.commit_protocol.commit_record import COMMIT_TOPIC
from einmal.commit_protocol.positions import topic_ids, topics_in
from einmal.sinks.kafka.commit_log import PARTITIONS
from tests.cli.pipeline_owner import PipelineOwner, write_checkpoint
from tests.cli.running import Cli
from tests.suite.shared import unique

pytestmark = pytest.mark.system


@pytest.fixture
def owner(cluster: str) -> Iterator[PipelineOwner]:
    owner = PipelineOwner({"bootstrap.servers": cluster}, unique("pipeline"))
    yield owner
    owner.close()


def shown(cli: Cli, name: str) -> dict[str, object]:
    (row,) = cli("pipeline", "status", name, "--format", "json").document
    return dict(row)


def test_status_shows_batch_positions_lag_and_identity(cli: Cli, cluster: str, owner: PipelineOwner) -> None:
    topic = f"of-{owner.name}"
    cli("topic", "create", topic)
    with Producer(bootstrap_servers=cluster) as producer:
        for number in range(7):
            producer.send(topic, str(number), partition=0)
    owner.commit(4, {topic: {"0": 3}})
    row = shown(cli, owner.name)
    assert (row["batch"], row["lag"], row["positions"]) == (4, 4, [f"{topic}-0:3"])
    assert (row["state"], row["open_ms"], row["checkpoint"]) == ("CompleteCommit", None, "file:/c")
    assert row["producer_id"] == owner.identity.producer_id
    assert any(line.split() == ["positions", f"{topic}-0:3"] for line in cli("pipeline", "status", owner.name).lines)
    assert owner.name in [line.split()[0] for line in cli("pipeline", "status").lines]


def test_an_open_transaction_has_an_age_and_what_is_in_it_does_not_count(cli: Cli, owner: PipelineOwner) -> None:
    owner.commit(4, {"elsewhere": {"0": 3}})
    owner.write(5, {"elsewhere": {"0": 9}})
    row = shown(cli, owner.name)
    assert (row["batch"], row["state"], row["lag"]) == (4, "Ongoing", None)
    assert isinstance(row["open_ms"], int)


def test_a_commit_topic_that_gets_more_partitions_hides_no_records(cluster: str, owner: PipelineOwner) -> None:
    owner.commit(4, {"t": {"0": 3}})
    with Admin(bootstrap_servers=cluster) as admin:
        admin.create_partitions({COMMIT_TOPIC: PARTITIONS + 7})
    successor = PipelineOwner({"bootstrap.servers": cluster}, owner.name)
    record = successor.read()
    successor.close()
    assert record is not None and record.batch_id == 4


def test_an_unknown_pipeline_name_is_reported(cli: Cli) -> None:
    assert "no pipeline has committed" in cli("pipeline", "status", "nobody's", status=1).errors[0]
    assert "nothing to reset" in cli("pipeline", "reset", "nobody's", status=1).errors[0]


def test_a_reset_asks_and_does_nothing_without_a_yes(cli: Cli, owner: PipelineOwner) -> None:
    owner.commit(4, {"t": {"0": 3}})
    asked = cli("pipeline", "reset", owner.name, stdin="n\n", status=1)
    assert "  - forget that batch 4, up to t-0:3, is committed" in asked.errors
    owner.commit(5, {"t": {"0": 9}})
    assert shown(cli, owner.name)["batch"] == 5


@pytest.mark.parametrize("to", ['{"t":{"0":-2}}', '{"t":{"0":"many"}}', '{"t":{"0":1.7}}', '{"t":{"first":1}}', "7"])
def test_a_position_that_is_none_is_refused(cli: Cli, owner: PipelineOwner, to: str) -> None:
    owner.commit(4, {"t": {"0": 3}})
    assert (
        "--to is start, earliest, latest, or JSON"
        in cli("pipeline", "reset", owner.name, "--to", to, "--yes", status=2).errors[-1]
    )


def test_a_reset_fences_the_running_instance_and_leaves_no_record(cli: Cli, owner: PipelineOwner) -> None:
    owner.commit(4, {"t": {"0": 3}})
    owner.write(5, {"t": {"0": 9}})
    told = cli("pipeline", "reset", owner.name, "--yes").errors
    assert "it is probably running" in told[0]
    assert owner.read() is None
    assert owner.name not in [row["name"] for row in cli("pipeline", "status", "--format", "json").document]
    with pytest.raises(KafkaError, match="47|PRODUCER_FENCED"):
        owner.commit(5, {"t": {"0": 9}})
    assert owner.read() is None


def test_a_reset_to_a_position_leaves_a_record_without_a_query_id(cli: Cli, owner: PipelineOwner) -> None:
    owner.commit(4, {"t": {"0": 3}})
    cli("pipeline", "reset", owner.name, "--to", json.dumps([{"t": {"0": 1}}]), "--yes")
    record = owner.read()
    assert record is not None
    assert (record.query_id, record.end) == ("", ({"t": {"0": 1}},))
    row = shown(cli, owner.name)
    assert (row["batch"], row["checkpoint"], row["positions"]) == (None, None, ["t-0:1"])


def test_a_reset_to_the_end_means_the_last_stable_offset(cli: Cli, cluster: str, owner: PipelineOwner) -> None:
    topic = f"of-{owner.name}"
    cli("topic", "create", topic)
    owner.commit(4, {topic: {"0": 0}})
    with Producer(bootstrap_servers=cluster) as producer:
        for number in range(3):
            producer.send(topic, str(number), partition=0)
    with Producer(bootstrap_servers=cluster, transactional_id=f"open-{owner.name}") as open_one:
        open_one.init_transactions()
        open_one.begin_transaction()
        open_one.send(topic, "x", partition=0).result()
        cli("pipeline", "reset", owner.name, "--to", "latest", "--yes")
        record = owner.read()
        open_one.abort_transaction()
    assert record is not None
    (position,) = record.end
    assert topics_in(position) == {topic: {"0": 3}}
    assert set(topic_ids(position)) == {topic}, "in the topic as it is now"


def test_a_position_that_is_none_is_wrong_usage(cli: Cli, owner: PipelineOwner) -> None:
    owner.commit(4, {"t": {"0": 3}})
    assert "--to is start" in " ".join(cli("pipeline", "reset", owner.name, "--to", "[3]", status=2).errors)


def test_adopt_replaces_a_checkpoint(cli: Cli, owner: PipelineOwner, tmp_path: Path) -> None:
    owner.commit(4, {"t": {"0": 3}})
    write_checkpoint(tmp_path)
    told = cli("pipeline", "adopt", owner.name, "--checkpoint", str(tmp_path), "--yes").errors
    assert "  - t-0: offsets 2 to 2 will be written AGAIN" in told
    record = owner.read()
    assert record is not None
    assert (record.query_id, record.checkpoint, record.batch_id) == ("other", f"file:{tmp_path}", 7)
    assert record.end == ({"t": {"0": 2}},)
    again = cli("pipeline", "adopt", owner.name, "--checkpoint", str(tmp_path), status=1)
    assert "is at batch 7 of this checkpoint already" in again.errors[0]


def test_a_checkpoint_that_only_spark_can_read_is_not_adopted_from_outside(cli: Cli, owner: PipelineOwner) -> None:
    owner.commit(4, {"t": {"0": 3}})
    told = cli("pipeline", "adopt", owner.name, "--checkpoint", "hdfs://h/c", status=1).errors
    assert "einmal.adopt=true" in told[1]


def test_what_has_moved_on_since_the_question_is_fenced_and_left_as_it_is(
    cli: Cli, cluster: str, owner: PipelineOwner
) -> None:
    from einmal.spark.operate.ownership import Changed, KafkaOwnership

    owner.commit(4, {"t": {"0": 3}})
    seen = owner.read()
    owner.commit(5, {"t": {"0": 9}})
    with KafkaOwnership({"bootstrap.servers": cluster}) as owned, pytest.raises(Changed):
        owned.change(owner.name, seen, None)
    assert shown(cli, owner.name)["batch"] == 5


def test_nothing_of_it_needs_spark() -> None:
    others = "spark.operate.ownership", "spark.protocol.local_checkpoint", "declare.pipeline", "sinks.kinds"
    modules = ", ".join(f"einmal.{module}" for module in ("cli.commands.pipeline", *others))
    program = f"import sys, {modules}; sys.exit('pyspark' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], timeout=180).returncode == 0
