"""Claims about pipelines on a secured cluster: exactly once after killed drivers, and no secret in any artefact."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from einmal.pipeline.commit_record import COMMIT_TOPIC
from einmal.spark import events, write
from tests.security.secure_kafka import CANARY, PASSWORD, USER, SecureKafka, running_secure_kafka
from tests.spark import event_log
from tests.spark.killed_drivers import run_until_killed
from tests.spark.pipelines import BATCH, Pipeline
from tests.spark.standalone import StandaloneCluster
from tests.spark.topics import create, fill, new_name, numbers, records

pytestmark = [pytest.mark.spark, pytest.mark.slow]

RECORDS = 3 * BATCH
_ENDS_S = 300.0


@pytest.fixture(scope="module")
def secure_kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureKafka]:
    with running_secure_kafka(tmp_path_factory.mktemp("secure")) as node:
        yield node


def pipeline_of(node: SecureKafka, directory: Path, name: str, way: str = "SCRAM-SHA-512") -> Pipeline:
    """A pipeline whose source has records."""
    settings = node.settings(way)
    pipeline = Pipeline(settings.pop("bootstrap.servers"), str(directory), name, client=settings)
    create(node.settings(way), pipeline.source_topic, pipeline.topic)
    fill(node.settings(way), pipeline.source_topic, range(RECORDS))
    return pipeline


@pytest.fixture(scope="module")
def dead(secure_kafka: SecureKafka, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Pipeline]:
    """Pipelines whose drivers were killed with -9, by the event at which they were."""
    directory = tmp_path_factory.mktemp("killed")
    points = {"BatchWritten": "before-end", "TransactionEnded": "after-end"}
    pipelines = {event: pipeline_of(secure_kafka, directory, new_name(name)) for event, name in points.items()}
    printed = run_until_killed(directory, [(each, event, 1) for event, each in pipelines.items()])
    assert CANARY not in printed
    return pipelines


@pytest.mark.parametrize("event", ["BatchWritten", "TransactionEnded"])
def test_a_pipeline_over_sasl_ssl_is_exactly_once_after_its_driver_was_killed(
    spark: SparkSession, secure_kafka: SecureKafka, dead: dict[str, Pipeline], event: str
) -> None:
    pipeline = dead[event]
    heard: list[events.Event] = []
    pipeline.writer(spark).listener(heard.append).start().awaitTermination()
    settings = secure_kafka.settings("SCRAM-SHA-512")
    assert numbers(settings, pipeline.topic) == list(range(RECORDS))
    assert (events.BatchAlreadyIn(1) in heard) is (event == "TransactionEnded")
    uncommitted = numbers(settings, pipeline.topic, committed=False)
    assert (len(uncommitted) > RECORDS) is (event == "BatchWritten")


@pytest.mark.parametrize("way", ["mTLS", "OAUTHBEARER", "PLAIN"])
def test_a_stream_and_a_batch_use_every_way_to_authenticate(
    spark: SparkSession, secure_kafka: SecureKafka, tmp_path: Path, way: str
) -> None:
    pipeline = pipeline_of(secure_kafka, tmp_path, new_name("way"), way)
    pipeline.writer(spark).start().awaitTermination()
    settings = secure_kafka.settings(way)
    assert numbers(settings, pipeline.topic) == list(range(RECORDS))
    options = {f"kafka.{name}": value for name, value in settings.items()}
    frame = spark.read.format("einmal").options(**options).option("subscribe", pipeline.source_topic).load()
    write(frame.select("key", "value")).options(**options).option("topic", pipeline.topic).save()
    assert len(numbers(settings, pipeline.topic)) == 2 * RECORDS


def test_no_text_of_a_frame_or_its_plan_has_a_secret(
    spark: SparkSession, secure_kafka: SecureKafka, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    pipeline = pipeline_of(secure_kafka, tmp_path, new_name("plan"), "PLAIN")
    inline = {"kafka.ssl.keystore.key": f"{CANARY}-inline", "kafka.ssl.keystore.certificate.chain": "x"}
    jaas = f'org.apache.kafka.common.security.plain.PlainLoginModule required username="{USER}" password="{PASSWORD}";'
    options = {name: value for name, value in pipeline.client_options.items() if "sasl." not in name}
    options |= {"kafka.sasl.mechanism": "PLAIN", "kafka.sasl.jaas.config": jaas, "subscribe": pipeline.source_topic}
    for given in (options, pipeline.client_options | {"subscribe": pipeline.source_topic}):
        for frame in (
            spark.read.format("einmal").options(**given).load(),
            spark.readStream.format("einmal").options(**given, **inline).load(),
        ):
            frame.explain("extended")
            plans = frame._jdf.queryExecution()
            assert CANARY not in f"{plans.toString()} {plans.logical().toString()} {plans.analyzed().treeString()}"
    output = capfd.readouterr()
    assert CANARY not in output.out + output.err


PIPELINE = """
transactional.id = "{name}"
checkpointLocation = "{directory}/checkpoint"
kafka.bootstrap.servers = "{bootstrap}"
kafka.security.protocol = "SASL_SSL"
kafka.ssl.ca.location = "{ca}"
kafka.sasl.mechanism = "SCRAM-SHA-256"
kafka.sasl.username = "${{env:KAFKA_USER}}"
kafka.sasl.password = "${{file:{secrets}:{key}}}"

[sources.numbers]
subscribe = "{name}-in"
startingOffsets = "earliest"

[sinks.out]
from = "numbers"
topic = "{name}-out"
"""


def test_no_artefact_of_a_run_contains_a_secret(secure_kafka: SecureKafka, tmp_path: Path) -> None:
    """A run, a failed run, ``explain`` and ``pipeline status``: output, event log, checkpoint, commit records."""
    artefacts, secrets = tmp_path / "artefacts", tmp_path / "secrets.properties"
    artefacts.mkdir()
    (artefacts / "events").mkdir()
    secrets.write_text(f"right={PASSWORD}\nwrong={CANARY}-wrong\n")
    client = tmp_path / "client.properties"
    client.write_text(
        f"bootstrap.servers={secure_kafka.at('SASL_SSL')}\nsecurity.protocol=SASL_SSL\nsasl.mechanism=SCRAM-SHA-256\n"
        f"ssl.ca.location={secure_kafka.ca}\nsasl.username=alice\nsasl.password=${{file:{secrets}:right}}\n"
    )
    name = new_name("canary")
    settings = secure_kafka.settings("SCRAM-SHA-256")
    create(settings, f"{name}-in", f"{name}-out")
    fill(settings, f"{name}-in", range(RECORDS))
    fields = {"name": name, "bootstrap": secure_kafka.at("SASL_SSL"), "ca": secure_kafka.ca, "secrets": secrets}
    right, wrong = tmp_path / "right.toml", tmp_path / "wrong.toml"
    right.write_text(PIPELINE.format(**fields, directory=artefacts, key="right"))
    wrong.write_text(PIPELINE.format(**fields, directory=tmp_path / "w", key="wrong"))
    logged = {**event_log.SETTINGS, "spark.eventLog.dir": str(artefacts / "events"), "spark.log.level": "INFO"}
    confs = [part for key, value in logged.items() for part in ("--conf", f"{key}={value}")]
    run(artefacts / "run.txt", 0, "run", str(right), "--available-now", *confs)
    assert numbers(settings, f"{name}-out") == list(range(RECORDS))
    failed = run(artefacts / "failed.txt", 3, "run", str(wrong), "--available-now", *confs)
    assert "SASL_AUTHENTICATION_FAILED" in failed
    assert "Traceback" not in failed
    assert "exactly" in run(artefacts / "explain.txt", 0, "explain", str(right))
    status = run(artefacts / "status.txt", 0, "pipeline", "status", name, "--command-config", str(client))
    assert name in status
    commits = [record for _, record in records(settings, COMMIT_TOPIC, committed=False)]
    assert commits
    (artefacts / "commits.txt").write_text("\n".join(map(repr, commits)))
    files = [path for path in artefacts.rglob("*") if path.is_file()]
    assert any(path.parent.name == "events" for path in files)
    assert any(path.parent.name == "offsets" for path in files)
    assert [path for path in files if CANARY.encode() in path.read_bytes()] == []


@pytest.mark.long
def test_executors_of_a_cluster_connect_and_leave_no_secret(
    secure_kafka: SecureKafka, cluster: StandaloneCluster, tmp_path: Path
) -> None:
    """Its executors are processes of their own, which get the settings with their tasks."""
    secrets, name = tmp_path / "secrets.properties", new_name("executors")
    secrets.write_text(f"right={PASSWORD}\n")
    settings = secure_kafka.settings("SCRAM-SHA-256")
    create(settings, f"{name}-in", f"{name}-out")
    fill(settings, f"{name}-in", range(RECORDS))
    fields = {"name": name, "bootstrap": secure_kafka.at("SASL_SSL"), "ca": secure_kafka.ca, "secrets": secrets}
    file = tmp_path / "pipeline.toml"
    file.write_text(PIPELINE.format(**fields, directory=tmp_path / "checkpoint", key="right"))
    run(tmp_path / "run.txt", 0, "run", str(file), "--available-now", "--master", cluster.master)
    assert numbers(settings, f"{name}-out") == list(range(RECORDS))
    texts = [path for path in cluster.directory.rglob("*") if path.is_file() and path.suffix not in (".jar", ".so")]
    assert any(path.name == "stderr" for path in texts), "logs of executors"
    assert [path for path in texts if CANARY.encode() in path.read_bytes()] == []


def run(output: Path, status: int, *arguments: str) -> str:
    """``einmal`` with these arguments as a process; what it prints, which ``output`` keeps."""
    environment = {**os.environ, "KAFKA_USER": USER}
    with output.open("w") as file:
        command = [sys.executable, "-m", "einmal", *arguments]
        done = subprocess.run(command, stdout=file, stderr=subprocess.STDOUT, env=environment, timeout=_ENDS_S)
    text = output.read_text()
    assert done.returncode == status, text[-4000:]
    return text
