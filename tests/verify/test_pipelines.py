"""Claims about ``einmal verify --pipeline``: subtly wrong pipelines are found, a right one is not blamed."""

from __future__ import annotations

import asyncio
import random
import shlex
import sys
from pathlib import Path

import pytest

from einmal.client import Admin
from einmal.verify.evidence import Evidence
from einmal.verify.pipeline.mapping import OutputMapping, identity, query
from einmal.verify.pipeline.run import PipelineOptions, PipelineRun
from einmal.verify.run import VerifyOptions, VerifyRun
from einmal.verify.verdict import RunVerdict
from tests.cli.running import invoke
from tests.interop.einmal_broker import EinmalBroker
from tests.suite.shared import shared, unique

pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.interop, pytest.mark.time_limit(180)]

_REPOSITORY = Path(__file__).parents[2]
_DOUBLED = "SELECT id, 2 * amount AS amount FROM input"


def own(program: str) -> str:
    """The command of a program of ``tests.verify.pipelines``."""
    return f"cd {_REPOSITORY} && exec {shlex.quote(sys.executable)} -m tests.verify.pipelines.{program}"


async def verified(
    command: str,
    folder: Path,
    mapping: OutputMapping,
    *,
    seconds: float = 25.0,
    quiet_s: float = 15.0,
    target: str = "",
) -> Evidence:
    """The outcome with a command, or with a program of ``tests.verify.pipelines``."""
    broker: EinmalBroker = shared("einmal")
    name = unique("pipeline")
    options = VerifyOptions(
        client="einmal",
        workloads=(),
        control=None,
        pipeline=PipelineOptions(
            command=command,
            input=f"{name}-in",
            output=f"A.{name}-in" if target else f"{name}-out",
            mapping=mapping,
            log=folder / f"{name}.log",
            quiet_s=quiet_s,
            output_config={"bootstrap.servers": target} if target else None,
        ),
        seconds=seconds,
        seed=7,
        config={"bootstrap.servers": broker.bootstrap},
    )
    evidence, left = await VerifyRun(options, name, None, None, lambda _line: None).run()
    assert left == []
    return evidence


WRONG = {
    "positions_first": "lost-output",
    "without_transaction": "duplicate-output",
    "side_effect": "duplicate-output",
    "uncommitted": "aborted-output",
}


@pytest.mark.parametrize(
    "prefix", ["", pytest.param("with_aiokafka ", marks=pytest.mark.long)], ids=["confluent-kafka", "aiokafka"]
)
async def test_wrong_pipelines_are_found_and_a_right_one_passes(tmp_path: Path, prefix: str) -> None:
    doubling = query(_DOUBLED)
    right, *wrong = await asyncio.gather(
        *(verified(own(prefix + program), tmp_path, doubling) for program in ("right", *WRONG))
    )
    assert right.verdict is RunVerdict.HOLDS, right.sentence
    assert any(each.text == "kill -9 of the pipeline" for each in right.faults)
    for evidence, kind in zip(wrong, WRONG.values(), strict=True):
        assert evidence.verdict is RunVerdict.ANOMALY, (evidence.client, evidence.sentence)
        (part,) = evidence.workloads
        shown = next(each for each in part.shown(evidence.began) if each.kind == kind)
        # Named with the offset in the input, and with the operations on it.
        assert "-in-" in shown.detail
        assert any("send" in each for each in shown.operations)
        assert kind == "lost-output" or any("read" in each for each in shown.operations)


@pytest.mark.long
async def test_a_mirror_between_two_clusters_is_a_pipeline(tmp_path: Path) -> None:
    target: EinmalBroker = shared("einmal-commands")
    mirror = f"""cat > {tmp_path}/mirror.toml <<END
clusters = ["A", "B"]
A.bootstrap.servers = "$BOOTSTRAP_SERVERS"
B.bootstrap.servers = "$OUTPUT_BOOTSTRAP_SERVERS"
["A->B"]
topics = ["$INPUT_TOPIC"]
END
exec {shlex.quote(sys.executable)} -m einmal mirror 'A->B' --file {tmp_path}/mirror.toml"""
    evidence = await verified(mirror, tmp_path, identity(), seconds=12.0, target=target.bootstrap)
    assert evidence.verdict is RunVerdict.HOLDS, evidence.sentence
    assert any(each.text == "kill -9 of the pipeline" for each in evidence.faults)
    assert {"replication factor", "replication factor (output)"} <= evidence.durability.keys()
    with Admin({"bootstrap.servers": target.bootstrap}) as admin:
        assert [each for each in admin.list_topics() if each.startswith("A.pipeline")] == []


@pytest.mark.long
async def test_a_mapping_that_is_not_the_pipelines_is_an_anomaly(tmp_path: Path) -> None:
    evidence = await verified(own("right"), tmp_path, query("SELECT id FROM input"), seconds=8.0, quiet_s=6.0)
    assert evidence.verdict is RunVerdict.ANOMALY
    assert {each.kind for each in evidence.workloads[0].anomalies} == {"invented-output", "lost-output"}


async def test_a_command_that_writes_nothing_is_not_enough_evidence_and_its_words_are_quoted(tmp_path: Path) -> None:
    command = "echo there is no such pipeline; exit 3"
    evidence = await verified(command, tmp_path, query(_DOUBLED), seconds=2.0, quiet_s=1.0)
    assert evidence.verdict is RunVerdict.UNKNOWN
    assert "status 3" in evidence.sentence and "there is no such pipeline" in evidence.sentence


async def test_a_pipeline_that_was_never_killed_shows_nothing(tmp_path: Path) -> None:
    evidence = await verified(own("right"), tmp_path, query(_DOUBLED), seconds=0.1)
    assert evidence.verdict is RunVerdict.UNKNOWN, evidence.sentence
    assert "it was never killed" in evidence.sentence


async def test_a_command_that_has_ended_by_itself_is_not_killed(tmp_path: Path) -> None:
    options = PipelineOptions(command="exit 0", input="a", output="b", mapping=identity(), log=tmp_path / "log")
    run = PipelineRun(options, {"bootstrap.servers": "127.0.0.1:1"}, "127.0.0.1:1", random.Random(1))
    notes: list[str] = []
    await run.inject(random.Random(1), notes.append)
    assert notes == []


_LEAVES_OPEN = """
import os, time
from einmal.client import Producer
with Producer(bootstrap_servers=os.environ["BOOTSTRAP_SERVERS"], transactional_id=os.environ["OUTPUT_TOPIC"]) as p:
    p.init_transactions()
    p.begin_transaction()
    p.send(os.environ["OUTPUT_TOPIC"], "who knows").result()
    time.sleep(1000)
"""


async def test_an_output_with_an_open_transaction_at_its_end_is_no_verdict(tmp_path: Path) -> None:
    (tmp_path / "open.py").write_text(_LEAVES_OPEN)
    both = f"{shlex.quote(sys.executable)} {tmp_path}/open.py & {own('right')}"
    evidence = await verified(both, tmp_path, query(_DOUBLED), seconds=8.0)
    assert evidence.verdict is RunVerdict.UNKNOWN, evidence.sentence
    assert "an open transaction holds back" in evidence.sentence


def test_topics_that_exist_are_neither_used_nor_removed() -> None:
    broker: EinmalBroker = shared("einmal")
    topic = unique("topic")
    with Admin({"bootstrap.servers": broker.bootstrap}) as admin:
        admin.create_topics([topic])
        arguments = ["-b", broker.bootstrap, "--pipeline", "true", "--input", topic, "--output", f"{topic}-2"]
        result = invoke(["verify", *arguments])
        assert result.exit_code == 2
        assert f"{topic} is on the cluster" in result.output
        assert topic in admin.list_topics() and f"{topic}-2" not in admin.list_topics()
