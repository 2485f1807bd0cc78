"""A YARN cluster of processes: a ResourceManager and two NodeManagers on loopback, with files of their own.

Containers are processes of this machine, of this user, in folders below the NodeManagers'. Linux only: /proc.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final
from urllib.request import urlopen
from xml.sax.saxutils import escape

import pyspark

from einmal.chaos.processes import command_of, kill, kill_session, launch
from tests.interop.apache_kafka import classpath, java
from tests.ports import loopback_ports
from tests.suite.patience import patient

_POM: Final = Path(__file__).with_name("pom.xml")
_SPARK: Final = Path(pyspark.__file__).parent
_DAEMONS: Final = {
    "resource-manager": "org.apache.hadoop.yarn.server.resourcemanager.ResourceManager",
    "node-manager": "org.apache.hadoop.yarn.server.nodemanager.NodeManager",
}
_JARS: Final = ("hadoop-client-*", "slf4j-api-*", "log4j-*", "jcl-over-slf4j-*")
"""Those of Spark's that the daemons need."""
_READY_S: Final = 120.0
APPLICATION_MASTER: Final = "org.apache.spark.deploy.yarn.ApplicationMaster"
EXECUTOR: Final = "org.apache.spark.executor.YarnCoarseGrainedExecutorBackend"
_LOG4J: Final = """\
rootLogger.level = info
rootLogger.appenderRef.console.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n%ex
"""


class YarnCluster:
    """``with`` starts and ends it."""

    def __init__(self, directory: Path, *, nodes: int = 2) -> None:
        """Raises KafkaUnavailable where there is no complete Java, or no Maven to fetch the daemons."""
        self.directory = directory
        self._java = java()
        jars = [str(jar) for pattern in _JARS for jar in sorted((_SPARK / "jars").glob(f"{pattern}.jar"))]
        self._classpath = os.pathsep.join([classpath("yarn", _POM), *jars])
        self._nodes = nodes
        self._ports = loopback_ports(5)
        self._processes: dict[str, subprocess.Popen[str]] = {}

    def __enter__(self) -> YarnCluster:
        self.directory.mkdir()
        try:
            self._launch("resource-manager", {})
            for number in range(self._nodes):
                self._launch(f"node-manager-{number}", self._of_node(number))
            self._wait_for_nodes()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Kill the daemons and every container."""
        for process in self._processes.values():
            kill_session(process.pid)
            process.wait()
        kill(*self._below())

    @property
    def environment(self) -> dict[str, str]:
        """For spark-submit."""
        return {"HADOOP_CONF_DIR": str(self._configuration("client", {})), "JAVA_HOME": self.java_home}

    @property
    def java_home(self) -> str:
        return str(Path(self._java).resolve().parents[1])

    def containers(self, program: str) -> list[int]:
        """The running processes of containers whose arguments have this."""
        return [pid for pid in self._below() if program in command_of(pid)]

    def logs(self) -> str:
        """What containers have printed."""
        return "\n".join(
            path.read_text(errors="replace")[-4_000:] for path in self.directory.rglob("std*") if path.is_file()
        )

    def _below(self) -> list[int]:
        """The processes whose folder is this cluster's: those of containers."""
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdecimal():
                with suppress(OSError):
                    if (entry / "cwd").readlink().is_relative_to(self.directory / "nodes"):
                        found.append(int(entry.name))
        return found

    def _of_node(self, number: int) -> dict[str, str]:
        folder = self.directory / "nodes" / str(number)
        return {
            "yarn.nodemanager.address": "127.0.0.1:0",
            "yarn.nodemanager.localizer.address": "127.0.0.1:0",
            "yarn.nodemanager.webapp.address": "127.0.0.1:0",
            "yarn.nodemanager.collector-service.address": "127.0.0.1:0",
            "yarn.nodemanager.local-dirs": str(folder / "local"),
            "yarn.nodemanager.log-dirs": str(folder / "logs"),
        }

    def _configuration(self, name: str, more: Mapping[str, str]) -> Path:
        """A folder with the files that name everything."""
        folder = self.directory / f"{name}-conf"
        folder.mkdir(exist_ok=True)
        ends = ("address", "scheduler.address", "resource-tracker.address", "admin.address", "webapp.address")
        files = {
            "core-site.xml": {"fs.defaultFS": "file:///", "hadoop.tmp.dir": str(self.directory / "tmp")},
            "yarn-site.xml": {
                **{
                    f"yarn.resourcemanager.{end}": f"127.0.0.1:{port}"
                    for end, port in zip(ends, self._ports, strict=True)
                },
                "yarn.resourcemanager.am.max-attempts": "1000",
                "yarn.scheduler.minimum-allocation-mb": "128",
                "yarn.nodemanager.resource.memory-mb": "6144",
                "yarn.nodemanager.resource.cpu-vcores": "8",
                # This machine's memory is what it is.
                "yarn.nodemanager.pmem-check-enabled": "false",
                "yarn.nodemanager.vmem-check-enabled": "false",
                "yarn.nodemanager.disk-health-checker.enable": "false",
                **more,
            },
            "capacity-scheduler.xml": {
                "yarn.scheduler.capacity.root.queues": "default",
                "yarn.scheduler.capacity.root.default.capacity": "100",
                "yarn.scheduler.capacity.maximum-am-resource-percent": "1",
            },
        }
        for file, values in files.items():
            properties = "".join(
                f"<property><name>{key}</name><value>{escape(value)}</value></property>\n"
                for key, value in values.items()
            )
            (folder / file).write_text(f"<configuration>\n{properties}</configuration>\n")
        (folder / "log4j2.properties").write_text(_LOG4J)
        return folder

    def _launch(self, name: str, more: Mapping[str, str]) -> None:
        main = next(main for kind, main in _DAEMONS.items() if name.startswith(kind))
        folder = self._configuration(name, more)
        options = ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx512m"]
        self._processes[name] = launch(
            [self._java, *options, "-cp", f"{folder}{os.pathsep}{self._classpath}", main],
            self.directory / f"{name}.log",
            env=os.environ | {"HADOOP_CONF_DIR": str(folder), "JAVA_HOME": self.java_home},
        )

    def _wait_for_nodes(self) -> None:
        """The ResourceManager's page counts them."""
        deadline = time.monotonic() + patient(_READY_S)
        wanted = f'"activeNodes":{self._nodes}'
        while time.monotonic() < deadline:
            for name, process in self._processes.items():
                assert process.poll() is None, (self.directory / f"{name}.log").read_text()[-4_000:]
            with (
                suppress(OSError),
                urlopen(f"http://127.0.0.1:{self._ports[4]}/ws/v1/cluster/metrics", timeout=10) as page,
            ):
                if wanted in page.read().decode().replace(" ", ""):
                    return
            time.sleep(0.2)
        raise AssertionError("\n".join(path.read_text()[-2_000:] for path in self.directory.glob("*.log")))


def submit(cluster: YarnCluster, program: Path, arguments: list[str], log: Path) -> subprocess.Popen[str]:
    """Start spark-submit, which waits for the end of the application. The driver is in a container, too: where it dies,
    YARN starts the program again."""
    quick = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    both = {"PYSPARK_PYTHON": sys.executable, "JAVA_HOME": cluster.java_home, "SPARK_LOCAL_IP": "127.0.0.1"}
    settings = {
        "spark.yarn.jars": f"local:{_SPARK}/jars/*",
        "spark.yarn.stagingDir": (cluster.directory / "staging").as_uri(),
        "spark.yarn.maxAppAttempts": "1000",
        "spark.yarn.report.interval": "1s",
        "spark.driver.memory": "512m",
        "spark.driver.extraJavaOptions": quick,
        "spark.executor.memory": "512m",
        "spark.executor.cores": "1",
        "spark.executor.instances": "2",
        "spark.executor.maxNumFailures": "1000",
        "spark.executor.extraJavaOptions": quick,
        "spark.ui.enabled": "false",
        **{f"spark.yarn.appMasterEnv.{name}": value for name, value in both.items()},
        **{f"spark.executorEnv.{name}": value for name, value in both.items()},
    }
    confs = [part for name, value in settings.items() for part in ("--conf", f"{name}={value}")]
    command = [str(_SPARK / "bin" / "spark-submit"), "--master", "yarn", "--deploy-mode", "cluster", *confs]
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("PYSPARK_", "SPARK_"))}
    return launch([*command, str(program), *arguments], log, env=inherited | cluster.environment)
