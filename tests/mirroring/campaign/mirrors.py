"""The mirrors that a campaign kills: ours, and MirrorMaker 2 as the peer."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from einmal.chaos.instances import Instances
from einmal.chaos.processes import launch
from tests.interop.apache_kafka import JVM, classpath, java
from tests.mirroring.campaign.bank import GROUP, TRANSFERS

_POM = Path(__file__).parent / "pom.xml"
_FAILOVER_S = 300.0
# kio registers strategies where Hypothesis is installed, which computes its tables anew in each directory: seconds.
_ENVIRONMENT = {**os.environ, "HYPOTHESIS_STORAGE_DIRECTORY": str(Path(".hypothesis").resolve())}


UNCOPIED = "x" * 248
"""The name of its copy would be longer than Kafka permits."""
LONELY = "lonely"
"""A topic with one replica: without its broker it has no leader."""


class OurMirror(Instances[subprocess.Popen[str]]):
    """``einmal mirror``, with a declaration in ``directory``."""

    name = "einmal"
    log_name = "mirror.log"

    def __init__(self, directory: Path, source: str, target: str, *, alias: str = "A", topic: str = TRANSFERS) -> None:
        super().__init__(self.launch, directory / self.log_name)
        self._directory = directory
        self._flow = f"{alias}->B"
        (directory / "mirror.toml").write_text(
            f'clusters = ["{alias}", "B"]\n{alias}.bootstrap.servers = "{source}"\nB.bootstrap.servers = "{target}"\n'
            f'["{alias}->B"]\ntopics = ["{topic}", "{UNCOPIED}", "{LONELY}"]\n'
        )

    @property
    def pid(self) -> int:
        return self.running[0].pid

    def fail_over(self) -> None:
        """The group moves to the target; afterwards the mirror runs again."""
        self.kill()
        subprocess.run(
            [*self._command("failover"), "--group", GROUP],
            cwd=self._directory,
            check=True,
            timeout=_FAILOVER_S,
            stdout=subprocess.DEVNULL,
        )
        self.start()

    def ask(self, verb: str, *options: str) -> subprocess.CompletedProcess[str]:
        """One command about the flow, to its end."""
        command = [*self._command(verb), *options]
        return subprocess.run(
            command, cwd=self._directory, env=_ENVIRONMENT, capture_output=True, text=True, timeout=_FAILOVER_S
        )

    def launch(self) -> subprocess.Popen[str]:
        """Start a process that is managed by the caller."""
        return launch(self._command("run"), self._directory / self.log_name, cwd=self._directory, env=_ENVIRONMENT)

    def _command(self, verb: str) -> list[str]:
        return [sys.executable, "-m", "einmal", "mirror", verb, self._flow]


class MirrorMaker(OurMirror):
    """MirrorMaker 2 in its dedicated mode, with exactly-once support, as quick as its settings allow."""

    name = "MirrorMaker 2"
    log_name = "mm2.log"
    options: ClassVar[tuple[str, ...]] = ("-Xmx512m", *JVM)
    more: ClassVar[Mapping[str, str]] = {}
    """Settings of a subclass; ``{alias}`` is the source's."""

    def __init__(self, directory: Path, source: str, target: str, *, alias: str = "A", topic: str = TRANSFERS) -> None:
        super().__init__(directory, source, target, alias=alias, topic=topic)
        self._classpath = classpath("mirror", _POM)
        settings = {
            "clusters": f"{alias}, B",
            f"{alias}.bootstrap.servers": source,
            "B.bootstrap.servers": target,
            f"{alias}->B.enabled": "true",
            f"B->{alias}.enabled": "false",
            f"B->{alias}.emit.heartbeats.enabled": "false",
            f"{alias}->B.topics": topic,
            f"{alias}->B.groups": GROUP,
            "B.exactly.once.source.support": "enabled",
            "dedicated.mode.enable.internal.rest": "true",
            "listeners": "http://127.0.0.1:0",
            f"{alias}.consumer.isolation.level": "read_committed",
            "tasks.max": "4",
            "replication.factor": "-1",
            "refresh.topics.interval.seconds": "2",
            "refresh.groups.interval.seconds": "2",
            "emit.checkpoints.interval.seconds": "1",
            "sync.group.offsets.enabled": "true",
            "sync.group.offsets.interval.seconds": "1",
            "offset.lag.max": "0",
            "checkpoints.topic.replication.factor": "-1",
            "heartbeats.topic.replication.factor": "-1",
            "offset-syncs.topic.replication.factor": "-1",
            "offset.storage.replication.factor": "-1",
            "status.storage.replication.factor": "-1",
            "config.storage.replication.factor": "-1",
        }
        settings |= {name.format(alias=alias): value for name, value in self.more.items()}
        (directory / "mm2.properties").write_text("".join(f"{name}={value}\n" for name, value in settings.items()))

    def fail_over(self) -> None:
        """Nothing: it synchronises the groups by itself; the campaign waits."""

    def launch(self) -> subprocess.Popen[str]:
        main = "org.apache.kafka.connect.mirror.MirrorMaker"
        command = [java(), *self.options, "-cp", self._classpath, main, "mm2.properties"]
        return launch(command, self._directory / self.log_name, cwd=self._directory)
