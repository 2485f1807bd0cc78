"""A real Prometheus and its promtool: those of this machine, else the ones of Debian's package, fetched once."""

from __future__ import annotations

import fcntl
import json
import shutil
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, Final

from tests.ports import loopback_ports
from tests.suite.patience import patient
from tests.suite.shared import Unavailable

_FOLDER: Final = Path(__file__).parent.parent.parent / "build" / "prometheus"
_FETCH_S: Final = 300
_START_S: Final = 60


@cache
def program(name: str) -> str:
    """The path of ``prometheus`` or ``promtool``. Raises Unavailable."""
    found = shutil.which(name)
    if found is not None:
        return found
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        raise Unavailable(f"{name} is not installed")
    _FOLDER.mkdir(parents=True, exist_ok=True)
    path = _FOLDER / "root" / "usr" / "bin" / name
    # Tests run in several processes: one fetches, the others wait.
    with (_FOLDER / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            _fetch()
    return str(path)


def _fetch() -> None:
    """Unpack Debian's package, which apt has checked; nothing is installed."""
    try:
        # Without the lists of packages it is not found.
        for command in (["apt-get", "download", "prometheus"], ["apt-get", "update"]):
            done = subprocess.run(command, cwd=_FOLDER, capture_output=True, text=True, timeout=_FETCH_S)
            if done.returncode == 0 and command[1] == "download":
                break
        else:
            done = subprocess.run(
                ["apt-get", "download", "prometheus"], cwd=_FOLDER, capture_output=True, text=True, timeout=_FETCH_S
            )
        package = next(_FOLDER.glob("prometheus_*.deb"), None)
        if package is None:
            raise Unavailable(f"apt-get download prometheus: {done.stderr.strip()}")
        part = _FOLDER / "part"
        shutil.rmtree(part, ignore_errors=True)
        subprocess.run(["dpkg-deb", "-x", str(package), str(part)], check=True, timeout=_FETCH_S)
        part.rename(_FOLDER / "root")
    except (OSError, subprocess.SubprocessError) as error:
        raise Unavailable(str(error)) from error


def promtool(*arguments: str) -> str:
    """Run it; what it has printed. Raises AssertionError where it finds fault."""
    done = subprocess.run([program("promtool"), *arguments], capture_output=True, text=True, timeout=_START_S)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


class Prometheus:
    def __init__(self, url: str) -> None:
        self._url = url

    def get(self, path: str, **parameters: str) -> Any:
        """The data of an answer of its API. Raises OSError."""
        query = urllib.parse.urlencode(parameters)
        with urllib.request.urlopen(f"{self._url}/api/v1/{path}?{query}", timeout=30) as answer:
            return json.load(answer)["data"]

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The samples of an instant query."""
        result: list[dict[str, Any]] = self.get("query", query=expression)["result"]
        return result

    def firing(self) -> set[str]:
        """The names of the alerts that fire."""
        return {each["labels"]["alertname"] for each in self.get("alerts")["alerts"] if each["state"] == "firing"}


@contextmanager
def scraping(folder: Path, targets: list[str], rules: Path | None = None, job: str = "einmal") -> Iterator[Prometheus]:
    """Scrape every second. ``targets``: host:port. Raises Unavailable."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
        "scrape_configs": [{"job_name": job, "static_configs": [{"targets": targets}]}],
        "rule_files": [] if rules is None else [str(rules)],
    }
    # JSON is YAML.
    (folder / "prometheus.yml").write_text(json.dumps(config))
    (port,) = loopback_ports(1)
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            [
                program("prometheus"),
                f"--config.file={folder / 'prometheus.yml'}",
                f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            stdout=log,
            stderr=log,
        )
    try:
        url = f"http://127.0.0.1:{port}"
        _wait_until_ready(process, url, folder / "log")
        yield Prometheus(url)
    finally:
        process.terminate()
        try:
            process.wait(_START_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_until_ready(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    deadline = time.monotonic() + patient(_START_S)
    while time.monotonic() < deadline:
        assert process.poll() is None, log.read_text()
        try:
            with urllib.request.urlopen(f"{url}/-/ready", timeout=5):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.1)
    raise AssertionError(log.read_text())
