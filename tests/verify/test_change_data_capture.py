"""Claims about ``einmal verify --input-database``: capture that keeps every change, and one that does not."""

from __future__ import annotations

import asyncio
import json
import random
import shlex
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

import pytest

from einmal.verify.evidence import Evidence
from einmal.verify.pipeline.mapping import MappingWrong, projection, query
from einmal.verify.pipeline.run import PipelineOptions
from einmal.verify.pipeline.table_input import TableFailed, TableInput
from einmal.verify.run import VerifyOptions, VerifyRun
from einmal.verify.verdict import RunVerdict
from einmal.workloads.recorder import Recorder
from tests.ingest.postgresql.conftest import SETTINGS
from tests.interop.einmal_broker import EinmalBroker
from tests.sinks.postgres.server import PASSWORD, PostgresServer, running
from tests.suite.patience import as_slow
from tests.suite.shared import shared, unique

pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.time_limit(180)]

_REPOSITORY = Path(__file__).parents[2]
INPUT_SQL = "SELECT value->>'op' AS op, id, CASE WHEN (value->>'op') <> 'd' THEN amount END AS amount FROM input"
OUTPUT_SQL = (
    "SELECT value->>'op' AS op, (key->>'id')::BIGINT AS id, (value->'after'->>'amount')::BIGINT AS amount "
    "FROM output WHERE value IS NOT NULL"
)


@pytest.fixture(scope="module")
def database() -> Iterator[PostgresServer]:
    with running(**SETTINGS) as server:
        server.rows("CREATE PUBLICATION einmal FOR ALL TABLES")
        yield server


def options(server: PostgresServer, name: str, command: str, folder: Path) -> PipelineOptions:
    return PipelineOptions(
        command=command,
        input=name,
        output=f"shop.public.{name}",
        mapping=query(INPUT_SQL),
        log=folder / "pipeline.log",
        quiet_s=15.0,
        database=server.url_of("postgres").replace("@", f":{quote(PASSWORD, safe='')}@"),
        projection=projection(OUTPUT_SQL),
    )


def ingesting(name: str, server: PostgresServer, folder: Path) -> str:
    """The command of ``einmal ingest`` with a slot of this name."""
    return f"""cat > {folder}/pipeline.toml <<END
[ingest.{name}]
type = "postgresql"
kafka.bootstrap.servers = "$BOOTSTRAP_SERVERS"
url = "{server.url_of("postgres")}"
password = {json.dumps(PASSWORD)}
slot.name = "{name}"
publication.name = "einmal"
topic.prefix = "shop"
END
cd {folder} && exec {shlex.quote(sys.executable)} -m einmal ingest {name}"""


async def verified(pipeline: PipelineOptions, seconds: float) -> Evidence:
    broker: EinmalBroker = shared("einmal")
    verifying = VerifyOptions(
        client="einmal",
        workloads=(),
        control=None,
        pipeline=pipeline,
        seconds=seconds,
        seed=7,
        config={"bootstrap.servers": broker.bootstrap},
    )
    evidence, left = await VerifyRun(verifying, pipeline.input, None, None, lambda _line: None).run()
    assert left == []
    return evidence


async def test_every_change_of_a_table_is_captured_once(database: PostgresServer, tmp_path: Path) -> None:
    name = unique("orders").replace("-", "_")
    evidence = await verified(options(database, name, ingesting(name, database, tmp_path), tmp_path), 20.0)
    assert evidence.verdict is RunVerdict.HOLDS, (evidence.sentence, evidence.workloads)
    assert any(each.text == "kill -9 of the pipeline" for each in evidence.faults)
    assert database.rows("SELECT count(*) FROM pg_tables WHERE tablename = %s", (name,)) == [(0,)]


@pytest.mark.long
async def test_a_capture_that_only_looks_now_and_then_loses_changes(database: PostgresServer, tmp_path: Path) -> None:
    name = unique("orders").replace("-", "_")
    command = f"cd {_REPOSITORY} && exec {shlex.quote(sys.executable)} -m tests.verify.pipelines.polling"
    evidence = await verified(options(database, name, command, tmp_path), as_slow(10.0))
    assert evidence.verdict is RunVerdict.ANOMALY, evidence.sentence
    (part,) = evidence.workloads
    lost = next(each for each in part.shown(evidence.began) if each.kind == "lost-output")
    assert f"of {name}" in lost.detail


async def test_a_table_that_is_there_is_not_the_runs_to_change(database: PostgresServer, tmp_path: Path) -> None:
    name = unique("kept").replace("-", "_")
    database.rows(f"CREATE TABLE {name} (id int)")
    with pytest.raises(TableFailed, match=f"{name} is in the database: name one that does not exist"):
        await verified(options(database, name, "true", tmp_path), 5.0)
    assert database.rows(f"SELECT count(*) FROM {name}") == [(0,)]


async def test_a_database_that_does_not_answer_is_reported(database: PostgresServer, tmp_path: Path) -> None:
    pipeline = replace(options(database, "orders", "true", tmp_path), database="postgresql://127.0.0.1:1/shop")
    with pytest.raises(TableFailed, match="--input-database: .*(refused|failed)"):
        await verified(pipeline, 5.0)


@pytest.mark.long
async def test_an_answer_to_commit_that_is_lost_is_looked_up(database: PostgresServer, tmp_path: Path) -> None:
    """The writer's sessions are ended again and again: whatever they have committed is wanted, and nothing else."""
    name = unique("orders").replace("-", "_")
    ended = 0

    async def end_writers() -> None:
        nonlocal ended
        while True:
            await asyncio.sleep(0.1)
            ended += len(
                await asyncio.to_thread(
                    database.rows,
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'einmal-verify' "
                    "AND query ~ '^(INSERT|UPDATE|DELETE|BEGIN|COMMIT|SELECT pg_current)'",
                )
            )

    ending = asyncio.create_task(end_writers())
    try:
        evidence = await verified(options(database, name, ingesting(name, database, tmp_path), tmp_path), 12.0)
    finally:
        ending.cancel()
    assert ended >= 3, evidence.sentence
    assert evidence.verdict is RunVerdict.HOLDS, (evidence.sentence, evidence.workloads)


async def test_a_locked_table_is_left_and_named(database: PostgresServer, tmp_path: Path) -> None:
    name = unique("orders").replace("-", "_")
    table = TableInput(
        database.url_of("postgres").replace("@", f":{PASSWORD}@"), name, random.Random(1), Recorder(), lambda: True
    )
    await table.make()
    with database.connect() as reader:
        reader.execute("BEGIN")
        reader.execute(f"SELECT * FROM {name}")
        (left,) = await table.remove()
        reader.execute("ROLLBACK")
    assert name in left and "lock timeout" in left
    assert await table.remove() == []


@pytest.mark.parametrize("url", ["postgresql://u:se@cret@h/d", "postgresql://u:se cret@h/d", "nonsense"])
def test_a_url_that_is_none_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(MappingWrong, match="is no URL such as") as refused:
        TableInput(url, "orders", random.Random(1), Recorder(), lambda: True)
    assert "cret" not in str(refused.value)


@pytest.mark.parametrize("name", ["Orders", "a b", "a.b.c", "", "orders; DROP TABLE x"])
def test_a_name_that_needs_quotes_is_refused(name: str) -> None:
    with pytest.raises(MappingWrong, match="no name that SQL has without quotes"):
        TableInput("postgresql://h/d", name, random.Random(1), Recorder(), lambda: True)


async def test_a_pipeline_that_begins_at_the_end_is_not_enough_evidence(
    database: PostgresServer, tmp_path: Path
) -> None:
    name = unique("orders").replace("-", "_")
    command = f"sleep 3; cd {_REPOSITORY} && exec {shlex.quote(sys.executable)} -m tests.verify.pipelines.polling"
    evidence = await verified(replace(options(database, name, command, tmp_path), quiet_s=0.5), 2.0)
    assert evidence.verdict is RunVerdict.UNKNOWN, evidence.sentence
    assert "give it a longer --time" in evidence.sentence
