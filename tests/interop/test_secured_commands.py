"""Claims about the command line on a secured cluster: every command that connects takes the settings of a file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.running import invoke
from tests.interop.secured_verbs import CONNECTING, SHOWN, Run, Stage
from tests.security.secure_kafka import CANARY, PASSWORD, USER, SecureKafka
from tests.suite.shared import unique

pytestmark = [pytest.mark.interop, pytest.mark.slow]


@pytest.fixture
def properties(secure_kafka: SecureKafka, tmp_path: Path) -> Path:
    """As for Kafka's own tools, with a setting of Java's client that has no equivalent."""
    (tmp_path / "secrets.properties").write_text(f"password={PASSWORD}\n")
    path = tmp_path / "client.properties"
    path.write_text(
        f"bootstrap.servers={secure_kafka.at('SASL_SSL')}\n"
        "security.protocol=SASL_SSL\n"
        "sasl.mechanism=SCRAM-SHA-512\n"
        "ssl.truststore.type=PEM\n"
        f"ssl.truststore.location={secure_kafka.ca}\n"
        "sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required \\\n"
        f'  username="{USER}" password="${{file:{tmp_path}/secrets.properties:password}}";\n'
        "acks=all\n"
        "metric.reporters=com.example.Reporter\n"
    )
    return path


@pytest.fixture
def run(properties: Path) -> Run:
    """``einmal`` with these arguments and the file; its output, which has no secret."""

    def command(*arguments: str, stdin: str = "", status: int = 0) -> str:
        given = [*arguments, "--command-config", str(properties)]
        result = invoke(given, input=stdin)
        assert result.exit_code == status, (result.output, result.exception)
        assert CANARY not in result.output
        assert "Traceback" not in result.output
        return result.output

    return command


# --- every verb -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", CONNECTING)
def test_every_verb_that_connects_works_over_sasl_ssl(
    verb: str, run: Run, secure_kafka: SecureKafka, tmp_path: Path
) -> None:
    done: list[str] = []

    def recorded(*arguments: str, **keywords: Any) -> str:
        done.append(" ".join(arguments))
        return run(*arguments, **keywords)

    directory = tmp_path / "stage"
    directory.mkdir()
    SHOWN[verb](Stage(recorded, secure_kafka, directory, unique(verb.replace(" ", "-"))))
    assert any(each.startswith(f"{verb} ") or each == verb for each in done)


def test_a_setting_of_javas_client_is_ignored_with_a_warning(run: Run) -> None:
    output = run("topic", "list")
    assert "unknown setting 'metric.reporters' is ignored" in output
    assert "'acks'" not in output


def test_a_wrong_password_is_an_error_with_a_hint(run: Run) -> None:
    output = run(
        "topic", "list", "-X", "sasl.jaas.config=", "-X", "sasl.username=alice", "-X", "sasl.password=x", status=1
    )
    assert "error: SASL_AUTHENTICATION_FAILED (58): the broker rejects the credentials" in output
    assert "hint: correct sasl.username (now 'alice') and sasl.password" in output


def test_security_settings_may_be_in_the_environment(secure_kafka: SecureKafka) -> None:
    environment = {
        "KAFKA_BROKERS": secure_kafka.at("SASL_SSL"),
        "KAFKA_SECURITY_PROTOCOL": "SASL_SSL",
        "KAFKA_SSL_CA_LOCATION": str(secure_kafka.ca),
        "KAFKA_SASL_MECHANISM": "PLAIN",
        "KAFKA_SASL_USERNAME": USER,
        "KAFKA_SASL_PASSWORD": "wrong",
        "THE_PASSWORD": PASSWORD,
    }
    arguments = ["topic", "list", "--format", "json", "-X", "sasl.password=${env:THE_PASSWORD}"]
    result = invoke(arguments, env=environment)
    assert result.exit_code == 0, result.output
    assert isinstance(json.loads(result.stdout), list)
