"""Java's library as a client of ``einmal verify``: its settings. ``tests/verify/test_run.py`` runs it."""

from __future__ import annotations

from pathlib import Path

import pytest

from einmal.client.errors import ConfigError
from einmal.local.apache_kafka import KafkaJars, KafkaMissing
from einmal.security.sasl.jaas import parse_jaas
from einmal.spark.environment.java import use_java
from einmal.verify.clients.java import Jvm, java_settings

_CONNECTION = {"bootstrap.servers": "127.0.0.1:9092"}


@pytest.mark.parametrize("password", ["simple", 'with "quotes"', "back\\slash", "semi;colon = 'x'"])
@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_a_password_is_one_option_of_the_login_module_of_its_mechanism(mechanism: str, password: str) -> None:
    own = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism,
        "sasl.username": "alice",
        "sasl.password": password,
    }
    settings = java_settings(_CONNECTION | own)
    module = parse_jaas(settings["sasl.jaas.config"])
    assert mechanism in module.mechanisms
    assert module.options == {"username": "alice", "password": password}
    assert settings["sasl.mechanism"] == mechanism


def test_an_authority_is_a_trust_store_in_pem(tmp_path: Path) -> None:
    authority = tmp_path / "ca.pem"
    authority.write_text("-----BEGIN CERTIFICATE-----\n")
    own = {"security.protocol": "SSL", "ssl.ca.location": str(authority)}
    settings = java_settings(_CONNECTION | own | {"ssl.endpoint.identification.algorithm": "none"})
    assert settings["ssl.truststore.type"] == "PEM"
    assert settings["ssl.truststore.certificates"] == authority.read_text()
    assert settings["ssl.endpoint.identification.algorithm"] == ""


@pytest.mark.parametrize(
    ("own", "named"),
    [
        ({"security.protocol": "SSL", "enable.ssl.certificate.verification": "false"}, "verifies certificates"),
        (
            {
                "security.protocol": "SASL_PLAINTEXT",
                "sasl.mechanism": "OAUTHBEARER",
                "sasl.oauthbearer.token.endpoint.url": "https://127.0.0.1/token",
                "sasl.oauthbearer.client.credentials.client.id": "alice",
                "sasl.oauthbearer.client.credentials.client.secret": "secret",
            },
            "OAUTHBEARER with java",
        ),
    ],
)
def test_what_java_cannot_do_or_verify_does_not_support_is_refused(own: dict[str, str], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        java_settings(_CONNECTION | own)


def test_jars_of_clients_are_located_in_a_distribution_and_in_a_folder(tmp_path: Path) -> None:
    libs = tmp_path / "kafka" / "libs"
    libs.mkdir(parents=True)
    for name in ("kafka-clients-4.4.0-sources.jar", "kafka-clients-4.4.0.jar", "kafka_2.13-4.3.1.jar"):
        (libs / name).touch()
    assert KafkaJars.locate(tmp_path / "kafka", of_clients=True) == KafkaJars(libs, "4.4.0")
    assert KafkaJars.locate(libs, of_clients=True) == KafkaJars(libs, "4.4.0")
    assert KafkaJars.locate(libs) == KafkaJars(libs, "4.3.1")
    with pytest.raises(KafkaMissing, match="kafka-clients"):
        KafkaJars.locate(tmp_path, of_clients=True)


def test_a_jvm_that_does_not_start_is_an_error_with_a_way_out(tmp_path: Path) -> None:
    for java in (tmp_path / "no-java", Path("/bin/false")):
        with pytest.raises(ConfigError) as raised:
            Jvm(java, tmp_path)
        assert str(java) in str(raised.value) and "JAVA_HOME" in raised.value.what_to_do


@pytest.mark.slow
@pytest.mark.system
def test_a_jvm_ends_although_a_thread_of_it_runs(tmp_path: Path) -> None:
    jvm = Jvm(use_java() / "bin" / "java", tmp_path)
    jvm.classes.java.util.Timer()
    process = jvm._gateway.java_process
    assert process.poll() is None
    jvm.close()
    assert process.poll() is not None
