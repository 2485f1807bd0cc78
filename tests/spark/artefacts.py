"""Everything that runs leave behind, and the search in it for secrets."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from einmal.commit_protocol.commit_record import COMMIT_TOPIC
from tests.security.secure_kafka import CANARY, USER
from tests.spark import event_log
from tests.spark.topics import records

_ENDS_S = 900.0

DEBUG_LOG4J = """
rootLogger.level = debug
rootLogger.appenderRef.console.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{HH:mm:ss} %p %c: %m%n%ex
logger.gateway.name = org.apache.spark.api.python.PythonGatewayServer
logger.gateway.level = debug
"""
"""As Spark applies it: the gateway's level is everyone's."""
CLAIM_KEYS = (b"MEECAQAwEwYHKoZIzj0CAQYIKoZIzj0DAQcE", b"MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0w")
"""How every private key on P-256 begins in PKCS 8, in base64: as Java and as OpenSSL encode it."""


class Artefacts:
    """A directory for everything that runs leave, and the settings under which they leave the most."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        for name in ("events", "local", "tmp"):
            (directory / name).mkdir(parents=True)
        beside = directory.with_name(f"{directory.name}-beside")
        beside.mkdir()
        # Python imports it at every start, also of Spark's workers.
        (beside / "sitecustomize.py").write_text("import logging\nlogging.basicConfig(level=logging.DEBUG)\n")
        (beside / "log4j2.properties").write_text(DEBUG_LOG4J)
        self.environment = {
            "KAFKA_USER": USER,
            "SPARK_CONF_DIR": str(beside),
            "PYTHONPATH": f"{beside}{os.pathsep}{Path.cwd()}",
            "PYTHONASYNCIODEBUG": "1",
            "TMPDIR": str(directory / "tmp"),
        }
        settings = {
            **event_log.SETTINGS,
            "spark.eventLog.dir": str(directory / "events"),
            "spark.local.dir": str(directory / "local"),
            "spark.ui.enabled": "true",
            "spark.ui.port": "0",
            "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={(beside / 'log4j2.properties').as_uri()} "
            f"-Djava.io.tmpdir={directory / 'tmp'} -XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        }
        # For a program that no settings can be passed to.
        (beside / "spark-defaults.conf").write_text("".join(f"{key} {value}\n" for key, value in settings.items()))
        self.confs = [part for key, value in settings.items() for part in ("--conf", f"{key}={value}")]

    def run(self, name: str, status: int, *arguments: str, **environment: str) -> str:
        return run(self.directory / f"{name}.txt", status, *arguments, **self.environment, **environment)

    def keep_commits(self, settings: dict[str, str]) -> None:
        commits = [record for _, record in records(settings, COMMIT_TOPIC, committed=False)]
        assert commits
        (self.directory / "commits.txt").write_text("\n".join(map(repr, commits)))

    def files(self) -> list[Path]:
        return [path for path in self.directory.rglob("*") if path.is_file()]

    def leaks(self, *secrets: bytes) -> list[str]:
        """Which file has which secret, with what is around it."""
        found = []
        for path in self.files():
            content = path.read_bytes()
            for secret in (CANARY.encode(), b"PRIVATE KEY-----", *CLAIM_KEYS, *secrets):
                if (at := content.find(secret)) >= 0:
                    around = content[max(0, at - 200) : at + 60]
                    found.append(f"{path.relative_to(self.directory)}: {secret!r} in {around!r}")
        return found


def run(output: Path, status: int, *arguments: str, **variables: str) -> str:
    """``einmal`` with these arguments as a process, in a session of its own; what it prints, which ``output`` keeps."""
    environment = {**os.environ, "KAFKA_USER": USER, **variables}
    with output.open("w") as file:
        command = [sys.executable, "-m", "einmal", *arguments]
        done = subprocess.run(
            command, stdout=file, stderr=subprocess.STDOUT, env=environment, timeout=_ENDS_S, start_new_session=True
        )
    text = output.read_text()
    assert done.returncode == status, text[-4000:]
    return text
