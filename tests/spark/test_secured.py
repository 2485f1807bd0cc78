"""Claims about pipelines on a secured cluster: exactly once after killed drivers, and no secret in any artefact."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import psutil
import pytest
from pyspark.sql import SparkSession

from einmal.pipeline import events
from einmal.spark import write
from tests.security.secure_kafka import (
    CANARY,
    PASSWORD,
    USER,
    SecureKafka,
    unsecured_token,
)
from tests.security.token_endpoint import Endpoint, running
from tests.spark.artefacts import Artefacts, run
from tests.spark.killed_drivers import run_until_killed
from tests.spark.pipelines import BATCH, Pipeline, format_writer
from tests.spark.standalone import StandaloneCluster
from tests.spark.topics import create, fill, numbers
from tests.suite.shared import shared, unique

pytestmark = [pytest.mark.spark, pytest.mark.slow]

RECORDS = 3 * BATCH
KEEPER = "einmal.spark.writer.keeper"


def environment_of(process: psutil.Process) -> str:
    """Empty once it has ended, as keepers of other tests may."""
    try:
        return str(process.environ())
    except psutil.NoSuchProcess:
        return ""


@pytest.fixture(scope="module")
def secure_kafka() -> SecureKafka:
    node: SecureKafka = shared("secure-apache")
    return node


def pipeline_of(node: SecureKafka, directory: Path, name: str, way: str = "SCRAM-SHA-512") -> Pipeline:
    """A pipeline whose source has records."""
    settings = node.settings(way)
    pipeline = Pipeline(settings.pop("bootstrap.servers"), str(directory), name, client=settings)
    create(node.settings(way), pipeline.source_topic, pipeline.topic)
    fill(node.settings(way), pipeline.source_topic, range(RECORDS))
    return pipeline


WAYS = ("SCRAM-SHA-512", "mTLS", "OAUTHBEARER")


@pytest.fixture(scope="module")
def dead(secure_kafka: SecureKafka, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Pipeline]:
    """Pipelines whose drivers were killed with -9 twice, by the way they authenticate: before the end of a transaction,
    and, when it was written again, after it."""
    directory = tmp_path_factory.mktemp("killed")
    pipelines = {way: pipeline_of(secure_kafka, directory, unique(f"killed-{way}"), way) for way in WAYS}
    for event in ("BatchWritten", "TransactionEnded"):
        (directory / event).mkdir()
        printed = run_until_killed(directory / event, [(each, event, 1) for each in pipelines.values()])
        assert CANARY not in printed
    return pipelines


# What authenticates, and that kills change nothing, each has its quick tests.
@pytest.mark.long
@pytest.mark.parametrize("way", WAYS)
def test_a_secured_pipeline_is_exactly_once_after_two_of_its_drivers_were_killed(
    spark: SparkSession, secure_kafka: SecureKafka, dead: dict[str, Pipeline], way: str
) -> None:
    pipeline = dead[way]
    heard: list[events.Event] = []
    pipeline.writer(spark).listener(heard.append).start().awaitTermination()
    settings = secure_kafka.settings(way)
    assert numbers(settings, pipeline.topic) == list(range(RECORDS))
    assert events.BatchAlreadyIn(1) in heard, "the second driver was killed after its transaction had ended"
    uncommitted = numbers(settings, pipeline.topic, committed=False)
    assert len(uncommitted) > RECORDS, "the first driver was killed before"


# The program below does it with PLAIN as well, through sasl.jaas.config.
@pytest.mark.long
def test_a_stream_and_a_batch_authenticate_with_plain(
    spark: SparkSession, secure_kafka: SecureKafka, tmp_path: Path
) -> None:
    way = "PLAIN"
    pipeline = pipeline_of(secure_kafka, tmp_path, unique("way"), way)
    pipeline.writer(spark).start().awaitTermination()
    settings = secure_kafka.settings(way)
    assert numbers(settings, pipeline.topic) == list(range(RECORDS))
    options = {f"kafka.{name}": value for name, value in settings.items()}
    frame = spark.read.format("einmal").options(**options).option("subscribe", pipeline.source_topic).load()
    write(frame.select("key", "value")).options(**options).option("topic", pipeline.topic).save()
    assert len(numbers(settings, pipeline.topic)) == 2 * RECORDS


@pytest.mark.long
def test_sparks_own_writers_authenticate_and_show_no_secret(
    spark: SparkSession, secure_kafka: SecureKafka, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    pipeline = pipeline_of(secure_kafka, tmp_path, unique("format"), "SCRAM-SHA-512")
    settings = secure_kafka.settings("SCRAM-SHA-512")
    format_writer(pipeline, spark).start().awaitTermination()
    assert numbers(settings, pipeline.topic) == list(range(RECORDS))
    keepers = [each for each in psutil.process_iter(["cmdline"]) if KEEPER in (each.info["cmdline"] or ())]
    assert keepers
    assert not any(CANARY in f"{each.info['cmdline']} {environment_of(each)}" for each in keepers)
    reader = spark.read.format("einmal").options(**pipeline.client_options).option("subscribe", pipeline.source_topic)
    writer = reader.load().select("key", "value").write.format("einmal").mode("append")
    writer.options(**pipeline.client_options).option("topic", pipeline.topic).save()
    assert len(numbers(settings, pipeline.topic)) == 2 * RECORDS
    output = capfd.readouterr()
    assert CANARY not in output.out + output.err


@pytest.mark.long
def test_no_text_of_a_frame_or_its_plan_has_a_secret(
    spark: SparkSession, secure_kafka: SecureKafka, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    pipeline = pipeline_of(secure_kafka, tmp_path, unique("plan"), "PLAIN")
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


@pytest.mark.long
@pytest.mark.time_limit(600)
def test_no_artefact_of_a_run_contains_a_secret_with_every_log_at_debug(
    secure_kafka: SecureKafka, tmp_path: Path
) -> None:
    """A run, a failed run, ``explain`` and ``pipeline status``: output, event log, checkpoint, commit records."""
    artefacts, secrets = Artefacts(tmp_path / "artefacts"), tmp_path / "secrets.properties"
    secrets.write_text(f"right={PASSWORD}\nwrong={CANARY}-wrong\n")
    client = tmp_path / "client.properties"
    client.write_text(
        f"bootstrap.servers={secure_kafka.at('SASL_SSL')}\nsecurity.protocol=SASL_SSL\nsasl.mechanism=SCRAM-SHA-256\n"
        f"ssl.ca.location={secure_kafka.ca}\nsasl.username=alice\nsasl.password=${{file:{secrets}:right}}\n"
    )
    name = unique("canary")
    settings = secure_kafka.settings("SCRAM-SHA-256")
    create(settings, f"{name}-in", f"{name}-out")
    fill(settings, f"{name}-in", range(RECORDS))
    fields = {"name": name, "bootstrap": secure_kafka.at("SASL_SSL"), "ca": secure_kafka.ca, "secrets": secrets}
    right, wrong = tmp_path / "right.toml", tmp_path / "wrong.toml"
    right.write_text(PIPELINE.format(**fields, directory=artefacts.directory, key="right"))
    wrong.write_text(PIPELINE.format(**fields, directory=tmp_path / "w", key="wrong"))
    ran = artefacts.run("run", 0, "run", str(right), "--available-now", *artefacts.confs)
    assert numbers(settings, f"{name}-out") == list(range(RECORDS))
    assert " DEBUG org.apache.spark" in ran
    assert "DEBUG:" in ran, "Python's"
    failed = artefacts.run("failed", 3, "run", str(wrong), "--available-now", *artefacts.confs)
    assert "SASL_AUTHENTICATION_FAILED" in failed
    assert "exactly" in artefacts.run("explain", 0, "explain", str(right), *artefacts.confs)
    status = artefacts.run("status", 0, "pipeline", "status", name, "--command-config", str(client))
    assert name in status
    artefacts.keep_commits(settings)
    assert {"events", "offsets"} <= {path.parent.name for path in artefacts.files()}
    assert artefacts.leaks() == []


@pytest.mark.long
@pytest.mark.time_limit(600)
def test_no_artefact_of_a_program_contains_the_secret_of_any_option(secure_kafka: SecureKafka, tmp_path: Path) -> None:
    """Spark's UI and REST API, the arguments of all processes and the temporary files, while it runs, besides."""
    artefacts, name = Artefacts(tmp_path / "artefacts"), unique("secrets")
    token, both = unsecured_token(), tmp_path / "both.pem"
    scram, mutual = secure_kafka.settings("SCRAM-SHA-512"), secure_kafka.settings("mTLS")
    pem = secure_kafka.client_certificate.key_pem
    for option in ("ssl.certificate.location", "ssl.key.location"):
        del mutual[option]
    mutual |= {
        "ssl.keystore.key": pem,
        "ssl.keystore.certificate.chain": secure_kafka.client_certificate.certificate_pem,
    }
    jaas = secure_kafka.settings("PLAIN")
    del jaas["sasl.username"], jaas["sasl.password"]
    jaas["sasl.jaas.config"] = (
        f'org.apache.kafka.common.security.plain.PlainLoginModule required username="{USER}" password="{PASSWORD}";'
    )
    with running(Endpoint(tmp_path)) as endpoint:
        endpoint.body = {"access_token": token, "expires_in": 3_600}
        both.write_text(endpoint.ca.read_text() + secure_kafka.ca.read_text())
        credentials = secure_kafka.settings("OAUTHBEARER") | {
            "ssl.ca.location": str(both),
            "sasl.oauthbearer.token.endpoint.url": endpoint.url,
            "sasl.oauthbearer.client.id": "me",
            "sasl.oauthbearer.client.secret": f"{CANARY}-secret",
        }
        ways = {
            "scram": scram,
            "jaas": jaas,
            "mutual": mutual,
            "token": secure_kafka.settings("OAUTHBEARER"),
            "credentials": credentials,
        }
        plan = {
            "artefacts": str(artefacts.directory),
            "source": name,
            "ways": ways,
            "wrong": scram | {"sasl.password": f"{CANARY}-wrong"},
        }
        (tmp_path / "plan.json").write_text(json.dumps(plan))
        create(scram, name, *(f"{name}-{way}" for way in (*ways, "wrong")))
        fill(scram, name, range(RECORDS))
        program = Path(__file__).with_name("programs") / "every_secret.py"
        path = str(tmp_path / "plan.json")
        printed = artefacts.run("program", 0, "run", str(program), *artefacts.confs, EINMAL_SECRETS=path)
    assert "all is kept" in printed
    assert "SASL_AUTHENTICATION_FAILED" in printed
    for way in ways:
        assert len(numbers(scram, f"{name}-{way}")) == 2 * RECORDS
    artefacts.keep_commits(scram)
    names = {path.name for path in artefacts.files()}
    assert {"arguments.txt", "environment_", "SQL_", "StreamingQuery_", "plan-mutual.txt"} <= names
    assert "java" in (artefacts.directory / "arguments.txt").read_text()
    tokens = [each.split(".")[1] for each in (token, secure_kafka.ca.with_name("token").read_text())]
    basic = base64.b64encode(f"me:{CANARY}-secret".encode()).decode()
    assert artefacts.leaks(*(each.encode() for each in (*tokens, basic, pem.splitlines()[1]))) == []


@pytest.mark.long
def test_executors_of_a_cluster_connect_and_leave_no_secret(
    secure_kafka: SecureKafka, cluster: StandaloneCluster, tmp_path: Path
) -> None:
    """Its executors are processes of their own, which get the settings with their tasks."""
    secrets, name = tmp_path / "secrets.properties", unique("executors")
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
