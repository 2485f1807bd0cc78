"""A fuzzing run: a broker, an observer, attackers, and what must hold at the end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

LATENCY_SECONDS_MAX: Final = 1.0
RSS_BYTES_MAX: Final = 300_000_000
_SETTINGS: Final = {
    "group.initial.rebalance.delay.ms": 0,
    "group.min.session.timeout.ms": 1,
    "log.retention.bytes": 20_000_000,
    "log.segment.bytes": 4_000_000,
    "log.retention.check.interval.ms": 5_000,
    "log.cleaner.backoff.ms": 2_000,
    "offsets.topic.num.partitions": 3,
    "transaction.state.log.num.partitions": 3,
}
_STDERR_KEPT: Final = 20
_READ_SECONDS_MAX: Final = 60.0


@dataclass
class Verdict:
    frames: int = 0
    seconds: float = 0.0
    rss_bytes_max: int = 0
    requests: int = 0
    latency_seconds_max: float = 0.0
    records_read: int = 0
    problems: list[str] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        lines = [
            f"{self.frames:,} frames in {self.seconds:.0f} s ({self.frames / max(self.seconds, 1e-9):,.0f}/s)",
            f"broker's memory: at most {self.rss_bytes_max / 1e6:.0f} MB",
            f"other client: {self.requests:,} requests, the slowest took {self.latency_seconds_max * 1000:.0f} ms",
            f"read back by librdkafka: {self.records_read:,} records",
            *(f"PROBLEM: {problem}" for problem in self.problems),
        ]
        return "\n".join(lines)


class Broker:
    """A broker process. Its memory is sampled and its diagnostics are read until it is stopped."""

    def __init__(self, folder: Path) -> None:
        settings = [item for key, value in _SETTINGS.items() for item in ("-X", f"{key}={value}")]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "einmal", "start", "--port", "0", "--format", "json"]
            + ["--data-dir", str(folder / "data"), *settings],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        ready = json.loads(self.process.stdout.readline())
        self.port = int(ready["bootstrap_servers"].rpartition(":")[2])
        self.rss_bytes_max = 0
        self.stderr_lines = 0
        self.tracebacks: list[str] = []
        self._log = (folder / "stderr.log").open("w")
        self._threads = [threading.Thread(target=self._read_stderr), threading.Thread(target=self._sample)]
        for thread in self._threads:
            thread.start()

    def _read_stderr(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.stderr_lines += 1
            self._log.write(line)
            if ("Traceback" in line or '"exception"' in line) and len(self.tracebacks) < _STDERR_KEPT:
                self.tracebacks.append(line.strip()[-3000:])

    def _sample(self) -> None:
        while self.process.poll() is None:
            self.rss_bytes_max = max(self.rss_bytes_max, _rss_bytes(self.process.pid))
            time.sleep(0.1)

    def stop(self) -> int:
        self.process.terminate()
        try:
            status = self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            status = self.process.wait()
        for thread in self._threads:
            thread.join()
        self._log.close()
        return status


def _rss_bytes(pid: int) -> int:
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (OSError, IndexError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def fuzz(
    folder: Path, frames: int, seed: int, attackers: int = 1, latency_seconds_max: float = LATENCY_SECONDS_MAX
) -> Verdict:
    """Run, and check what must hold."""
    verdict = Verdict()
    broker = Broker(folder)
    try:
        _attack(verdict, broker, folder, frames, seed, attackers)
        verdict.rss_bytes_max = broker.rss_bytes_max
        if broker.process.poll() is not None:
            verdict.problems.append(f"the broker ended with status {broker.process.returncode}")
        else:
            verdict.records_read = _read_back(verdict, broker.port, folder)
    finally:
        status = broker.stop()
    if status != 0:
        verdict.problems.append(f"the broker stopped with status {status}")
    verdict.problems += [f"traceback: {traceback}" for traceback in broker.tracebacks]
    verdict.figures["stderr_lines"] = broker.stderr_lines
    if verdict.rss_bytes_max >= RSS_BYTES_MAX:
        verdict.problems.append(f"the broker's memory reached {verdict.rss_bytes_max / 1e6:.0f} MB")
    if verdict.latency_seconds_max >= latency_seconds_max:
        verdict.problems.append(f"another client waited for {verdict.latency_seconds_max:.2f} s")
    return verdict


def _attack(verdict: Verdict, broker: Broker, folder: Path, frames: int, seed: int, attackers: int) -> None:
    watched = folder / "observer.json"
    observer = subprocess.Popen(
        [sys.executable, "-m", "tests.fuzz.observer", str(broker.port), str(watched)], stdin=subprocess.PIPE
    )
    began = time.perf_counter()
    reports = [folder / f"attack-{number}.json" for number in range(attackers)]
    running = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.fuzz.attack"]
            + [str(broker.port), str(frames // attackers), str(seed + number), str(report)]
        )
        for number, report in enumerate(reports)
    ]
    for process in running:
        if process.wait() != 0:
            verdict.problems.append(f"an attacker ended with status {process.returncode}")
    verdict.seconds = time.perf_counter() - began
    assert observer.stdin is not None
    observer.stdin.close()
    try:
        status = observer.wait(30)
    except subprocess.TimeoutExpired:
        observer.kill()
        status = observer.wait()
    if status != 0:
        verdict.problems.append(f"the observer ended with status {status}")
    attacks = [json.loads(report.read_text()) for report in reports if report.exists()]
    verdict.frames = sum(attack["sent"] for attack in attacks)
    verdict.figures["attacks"] = attacks
    if watched.exists():
        figures = json.loads(watched.read_text())
        verdict.requests = figures["requests"]
        verdict.figures["slowest"] = figures["slowest"]
        verdict.latency_seconds_max = figures["slowest"][0][0]


def _read_back(verdict: Verdict, port: int, folder: Path) -> int:
    """Read all that is there with librdkafka, in a process of its own, for it may hang; how many records."""
    report = folder / "read-back.json"
    try:
        subprocess.run(
            [sys.executable, "-m", "tests.fuzz.read_back", str(port), str(report)],
            timeout=_READ_SECONDS_MAX,
            check=True,
        )
    except (subprocess.TimeoutExpired, subprocess.CalledProcessError) as error:
        verdict.problems.append(f"librdkafka cannot read what was accepted: {error}")
        return 0
    figures = json.loads(report.read_text())
    verdict.problems += figures["problems"]
    return int(figures["records"])
