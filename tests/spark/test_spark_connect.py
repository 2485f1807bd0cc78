"""Spark Connect: ``format("einmal")`` reads and writes through a remote server, and what needs a driver of one's own is
refused at once.

The client of Spark Connect (grpcio) is not among our packages. Without it the refusals are tested with a session that
raises what a Connect session raises; with it, on a server.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
from pyspark.errors import PySparkAttributeError, PySparkException
from pyspark.sql import DataFrame

from einmal.chaos.waiting import holds_within
from einmal.spark import PipelineRefused, decode, register, session, write, write_stream
from tests.examples.stranger import blocks
from tests.security.certificates import Authority
from tests.spark.connect_server import TOKEN, ConnectServer
from tests.spark.pipelines import BATCH, Pipeline, format_writer
from tests.spark.tls_proxy import TlsProxy
from tests.spark.topics import commit_record, create, fill, numbers
from tests.suite.patience import patient
from tests.suite.shared import unique

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.connect.session import SparkSession as ConnectSparkSession

_REACHED_S = 100.0
_PROGRAM_S = 120.0
JSON = {"value.format": "json", "value.schema": "number int"}


class ConnectSession:
    """What a Connect session raises where a classic one has its JVM."""

    def __getattr__(self, name: str) -> Any:
        raise PySparkAttributeError(errorClass="JVM_ATTRIBUTE_NOT_SUPPORTED", messageParameters={"attr_name": name})


def frame(*, streaming: bool) -> DataFrame:
    return cast(DataFrame, SimpleNamespace(isStreaming=streaming, sparkSession=ConnectSession()))


def test_a_connect_session_is_not_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(PipelineRefused, match=r"Spark Connect, .*\nhint: SparkSession.builder.remote\(...\) makes one"):
        session(master="sc://127.0.0.1:15002")
    monkeypatch.setenv("SPARK_REMOTE", "sc://127.0.0.1:15002")
    with pytest.raises(PipelineRefused, match="spark-submit"):
        session()


def test_a_frame_of_a_connect_session_is_not_written() -> None:
    assert_only_read(frame(streaming=False), frame(streaming=True))


def assert_only_read(batch: DataFrame, stream: DataFrame) -> None:
    leads = r"Spark Connect, whose driver runs elsewhere: the sink leads its transactions .*\nhint: .*spark-submit"
    with pytest.raises(PipelineRefused, match=leads):
        write(batch)
    with pytest.raises(PipelineRefused, match=leads):
        write_stream(stream)
    for each in (batch, stream):
        with pytest.raises(PipelineRefused, match=r"Spark Connect, .*: decode looks into the query's plan"):
            decode(each, JSON)


# --- on a server ----------------------------------------------------------------------------------------------------


def remote_session(url: str) -> ConnectSparkSession:
    """Not of ``pyspark.sql.SparkSession.builder``, which makes one kind of session in a process."""
    from pyspark.sql.connect.session import SparkSession as ConnectSparkSession

    return ConnectSparkSession.builder.remote(url).create()


@contextmanager
def held_session(directory: Path, held: Path) -> Iterator[SparkSession]:
    """A session on a server of its own, which is killed at the end."""
    directory.mkdir()
    with ConnectServer(directory, held) as server:
        remote = remote_session(server.url)
        yield cast("SparkSession", remote)
        # Of a server that is held, or dead, nobody releases the session: that is tried for ten minutes.
        remote.client.close()


@pytest.fixture(scope="module")
def server(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConnectServer]:
    """After the classic session: grpc's threads hold what a JVM that is started later would need."""
    if find_spec("grpc") is None:
        pytest.skip("the client of Spark Connect needs grpcio: pip install 'pyspark[connect]'")
    with ConnectServer(tmp_path_factory.mktemp("connect")) as server:
        yield server


@pytest.fixture(scope="module")
def connect(server: ConnectServer) -> Iterator[SparkSession]:
    remote = remote_session(server.url)
    yield cast("SparkSession", remote)
    remote.stop()


@pytest.mark.spark
@pytest.mark.long
def test_topics_are_read_over_connect_beside_a_classic_session_that_writes(
    spark: SparkSession, connect: SparkSession, bootstrap: str, tmp_path: Path
) -> None:
    pipeline = Pipeline(bootstrap, str(tmp_path), unique("connect"))
    create(bootstrap, pipeline.source_topic, pipeline.topic)
    fill(bootstrap, pipeline.source_topic, range(20))
    options = {**pipeline.client_options, "subscribe": pipeline.source_topic, "startingOffsets": "earliest"}
    batch = connect.read.format("einmal").options(**options).load()
    assert sorted(int(bytes(row.value)) for row in batch.collect()) == list(range(20))
    # A restart of a stream continues: its position is in the checkpoint on the server.
    read = []
    for more in (range(20, 25), range(25, 30)):
        fill(bootstrap, pipeline.source_topic, more)
        stream = connect.readStream.format("einmal").options(**options).load().selectExpr("int(string(value)) as n")
        written = stream.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "checkpoint"))
        written.trigger(availableNow=True).start(str(tmp_path / "table")).awaitTermination()
        read.append(sorted(row.n for row in connect.read.parquet(str(tmp_path / "table")).collect()))
    assert read == [list(range(25)), list(range(30))]
    # In the same program, a classic session writes exactly once.
    pipeline.writer(spark).start().awaitTermination()
    assert numbers(bootstrap, pipeline.topic) == list(range(30))
    assert_only_read(batch, stream)


@pytest.mark.spark
@pytest.mark.long
def test_a_stream_and_a_batch_are_written_once_over_connect(
    connect: SparkSession, bootstrap: str, tmp_path: Path
) -> None:
    pipeline = Pipeline(bootstrap, str(tmp_path), unique("connect"))
    create(bootstrap, pipeline.source_topic, pipeline.topic)
    for more in (range(2 * BATCH), range(2 * BATCH, 3 * BATCH)):
        fill(bootstrap, pipeline.source_topic, more)
        format_writer(pipeline, connect).start().awaitTermination()
    assert numbers(bootstrap, pipeline.topic, committed=False) == list(range(3 * BATCH))
    record = commit_record(bootstrap, pipeline.name)
    assert record is not None and record.records == BATCH
    for _ in range(2):
        rows = connect.range(100, 110).selectExpr("string(id) as value")
        writer = rows.write.format("einmal").mode("append").options(**pipeline.client_options)
        writer = writer.option("topic", pipeline.topic).option("transactional.id", f"{pipeline.name}-batch")
        writer.option("txnVersion", 1).save()
    assert numbers(bootstrap, pipeline.topic, committed=False) == [*range(3 * BATCH), *range(100, 110)]


@pytest.mark.spark
@pytest.mark.long
def test_a_stream_over_connect_whose_server_is_killed_twice_is_written_once(
    spark: SparkSession, bootstrap: str, tmp_path: Path
) -> None:
    pipeline = Pipeline(bootstrap, str(tmp_path), unique("connect"))
    create(bootstrap, pipeline.source_topic, pipeline.topic)
    fill(bootstrap, pipeline.source_topic, range(3 * BATCH))
    holds = tmp_path / "holds"
    holds.mkdir()
    # Before its transaction ends, and between that and Spark's own commit file.
    for moment, committed in (("written", BATCH), ("answered", 2 * BATCH)):
        reached = holds / f"{pipeline.name}.reached"
        (holds / pipeline.name).write_text(f"{moment} 2")
        with held_session(tmp_path / moment, holds) as remote:
            query = format_writer(pipeline, remote).start()
            assert holds_within(patient(_REACHED_S), reached.exists), query.exception()
        reached.unlink()
        assert numbers(bootstrap, pipeline.topic) == list(range(committed))
    (holds / pipeline.name).unlink()
    with held_session(tmp_path / "last", holds) as remote:
        format_writer(pipeline, remote).start().awaitTermination()
    assert numbers(bootstrap, pipeline.topic) == list(range(3 * BATCH))


@pytest.mark.spark
@pytest.mark.long
def test_the_program_of_the_page_writes_once_through_a_proxy_with_tls_and_with_the_token_only(
    server: ConnectServer, bootstrap: str, tmp_path: Path
) -> None:
    pipeline = Pipeline(bootstrap, str(tmp_path), unique("connect"))
    create(bootstrap, pipeline.source_topic, pipeline.topic)
    authority = Authority()
    environment = os.environ | {
        "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH": str(authority.write(tmp_path / "ca.pem")),
        "SPARK_CONNECT_AUTHENTICATE_TOKEN": TOKEN,
    }
    with TlsProxy(server.port, authority.issue(tmp_path, "proxy")) as proxy:
        program = tmp_path / "upper.py"
        program.write_text(page_program(f"sc://localhost:{proxy.port}/;use_ssl=true", pipeline))
        for more in (range(20), range(20, 30)):
            fill(bootstrap, pipeline.source_topic, more)
            run = [sys.executable, str(program)]
            done = subprocess.run(run, env=environment, capture_output=True, text=True, timeout=patient(_PROGRAM_S))
            assert done.returncode == 0, done.stderr
        assert proxy.handshakes >= 2
    assert numbers(bootstrap, pipeline.topic, committed=False) == list(range(30))
    with pytest.raises(PySparkException, match="UNAUTHENTICATED"):
        remote_session(f"sc://127.0.0.1:{server.port}").range(1).collect()


def page_program(url: str, pipeline: Pipeline) -> str:
    """The program of docs/spark-connect.md, with names of its own."""
    ((_, text),) = [block for block in blocks("spark-connect.md", "Run a program") if block[0] == "python"]
    own = {
        "sc://localhost:15002": url,
        "127.0.0.1:9092": pipeline.bootstrap,
        '"orders-upper"': f'"{pipeline.name}"',
        f'"topic", "{pipeline.name}"': f'"topic", "{pipeline.topic}"',
        '"orders"': f'"{pipeline.source_topic}"',
        "/var/tmp/checkpoints/orders-upper": str(pipeline.checkpoint),
    }
    for theirs, mine in own.items():
        assert theirs in text, theirs
        text = text.replace(theirs, mine)
    return text


@pytest.mark.spark
@pytest.mark.long
def test_the_source_is_registered_with_a_connect_session_and_its_errors_arrive(
    connect: SparkSession, bootstrap: str
) -> None:
    register(connect)
    options = {"kafka.bootstrap.servers": bootstrap, "subscribe": "t", "kafka.nonsense": "1"}
    with pytest.raises(PySparkException, match=r"OptionError: kafka.\* options: unknown setting 'nonsense'"):
        connect.read.format("einmal").options(**options).load().collect()
