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

from einmal.broker.config import STANDARD_AUTHORIZER
from einmal.broker.front.apis import APIS
from einmal.local.layout import plan_cluster, write_properties
from tests.fuzz.attack import Ports
from tests.fuzz.read_back import READ
from tests.fuzz.reports import read_json
from tests.fuzz.values import OBSERVER, PASSWORD, SLOW_USER, USER
from tests.fuzz.watched_broker import longest_stall
from tests.interop.apache_kafka import KafkaUnavailable
from tests.interop.java_reader import JavaReader, Unreadable
from tests.ports import loopback_ports
from tests.security.identity_provider import provider, published

LATENCY_SECONDS_MAX: Final = 0.5
RSS_BYTES_MAX: Final = 300_000_000
COVERING_FRAMES: Final = 100_000
"""In as many, every API is sent in every version."""
_SETTINGS: Final = {
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "1",
    # Not what is tested: a broker that gets no processor for long must not be fenced meanwhile.
    "broker.session.timeout.ms": "60000",
    "log.retention.bytes": "20000000",
    "log.segment.bytes": "4000000",
    "log.retention.check.interval.ms": "5000",
    "log.cleaner.backoff.ms": "2000",
    "offsets.topic.num.partitions": "3",
    "transaction.state.log.num.partitions": "3",
    "transaction.two.phase.commit.enable": "true",
}
_USERS: Final = "USERS"
_AS_IF_ELSEWHERE: Final = ("nice", "-n", "10")
"""Where latency is measured, attackers and readers must not take the processor of the broker or an observer."""
_STDERR_KEPT: Final = 20
_READ_SECONDS_MAX: Final = 600.0
_PROGRESS_SECONDS: Final = 60.0


@dataclass
class Verdict:
    frames: int = 0
    seconds: float = 0.0
    rss_bytes_max: int = 0
    requests: int = 0
    latency_seconds_max: float = 0.0
    read: str = ""
    stalls: str = ""
    problems: list[str] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        lines = [
            f"{self.frames:,} frames in {self.seconds:.0f} s ({self.frames / max(self.seconds, 1e-9):,.0f}/s)",
            f"broker's memory: at most {self.rss_bytes_max / 1e6:.0f} MB",
            f"other clients: {self.requests:,} requests, the slowest took {self.latency_seconds_max * 1000:.0f} ms",
            f"stalls of the broker's loop: {self.stalls}",
            f"read: {self.read}",
            *(f"PROBLEM: {problem}" for problem in self.problems),
        ]
        return "\n".join(lines)


class Broker:
    """A broker process with a listener for each audience, ACLs, and users of every mechanism. Its memory is sampled and
    its diagnostics are read until it is stopped.
    """

    def __init__(self, folder: Path) -> None:
        plans = plan_cluster(folder, 1, host="127.0.0.1", first_port=0)
        (plan,), (users_port,) = plans, loopback_ports(1)
        assert plan.controller_port is not None
        self.ports = Ports(plan.port, plan.internal_port, plan.controller_port, users_port)
        write_properties(plans, {**_SETTINGS, **_listeners(self.ports), **_users(folder)})
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.fuzz.watched_broker", str(folder / "stalls.jsonl")]
            + ["start", "--config", str(plan.properties), "--format", "json"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        json.loads(self.process.stdout.readline())
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
            status = self.process.wait(300)
        except subprocess.TimeoutExpired:
            self.process.kill()
            status = self.process.wait()
        for thread in self._threads:
            thread.join()
        self._log.close()
        return status


def _listeners(ports: Ports) -> dict[str, str]:
    names = {"PLAINTEXT": ports.clients, "INTERNAL": ports.brokers, "CONTROLLER": ports.controllers}
    addresses = {**names, _USERS: ports.users}
    guarded = ",".join(f"{name}:SASL_PLAINTEXT" for name in ("INTERNAL", "CONTROLLER", _USERS))
    return {
        "listeners": ",".join(f"{name}://127.0.0.1:{port}" for name, port in addresses.items()),
        "listener.security.protocol.map": f"PLAINTEXT:PLAINTEXT,{guarded}",
    }


def _users(folder: Path) -> dict[str, str]:
    keys = folder / "keys.json"
    keys.write_bytes(published(provider()))
    users = " ".join(f'user_{name}="{PASSWORD}"' for name in (USER, SLOW_USER, OBSERVER))
    of_users = f"listener.name.{_USERS.lower()}"
    return {
        f"{of_users}.sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER",
        f"{of_users}.plain.sasl.jaas.config": (
            f"org.apache.kafka.common.security.plain.PlainLoginModule required {users};"
        ),
        "einmal.bootstrap.scram.credentials": f"SCRAM-SHA-256=[name={USER},password={PASSWORD}]",
        "sasl.oauthbearer.jwks.endpoint.url": f"file://{keys}",
        "authorizer.class.name": STANDARD_AUTHORIZER,
        "super.users": f"User:ANONYMOUS;User:{OBSERVER}",
        "connection.failed.authentication.delay.ms": "0",
    }


def _rss_bytes(pid: int) -> int:
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (OSError, IndexError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


class _Readers:
    """librdkafka and the Java client, which follow the topics under attack; a problem is what they cannot read."""

    def __init__(self, port: int, folder: Path, prefix: tuple[str, ...]) -> None:
        self._report = folder / "read-back.json"
        self._librdkafka = subprocess.Popen(
            [*prefix, sys.executable, "-m", "tests.fuzz.read_back", str(port), str(self._report)],
            stdin=subprocess.PIPE,
        )
        self._java: JavaReader | None = None
        self._why_not_java = ""
        try:
            self._java = JavaReader(f"127.0.0.1:{port}", sorted(READ))
        except KafkaUnavailable as reason:
            self._why_not_java = str(reason)

    def finish(self, verdict: Verdict) -> None:
        try:
            # In a process of its own, for it may hang.
            self._librdkafka.communicate(timeout=_READ_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            verdict.problems.append("librdkafka does not come to the end of what was accepted")
        figures = read_json(self._report)
        if self._librdkafka.poll() != 0 or not figures:
            verdict.problems.append(f"librdkafka's reader ended with status {self._librdkafka.poll()}")
        else:
            verdict.problems += figures["problems"]
            verdict.read = (
                f"librdkafka {figures['followed']:,} records on the way, {figures['at_the_end']:,} at the end"
            )
        if self._java is None:
            verdict.read += f"; not by Java: {self._why_not_java}"
            return
        try:
            by_java = self._java.finish(_READ_SECONDS_MAX)
        except Unreadable as error:
            verdict.problems.append(f"the Java client: {error}")
        else:
            verdict.read += f"; Java {by_java.followed:,} on the way, {by_java.at_the_end:,} at the end"

    def kill(self) -> None:
        if self._librdkafka.poll() is None:
            self._librdkafka.kill()
            self._librdkafka.communicate()
        if self._java is not None and self._java.is_running:
            self._java.kill()


def fuzz(
    folder: Path, frames: int, seed: int, attackers: int = 1, latency_seconds_max: float = LATENCY_SECONDS_MAX
) -> Verdict:
    """Run, and check what must hold. Where others share the machine, and latency is bounded loosely, a niced attacker
    would hardly run."""
    verdict = Verdict()
    prefix = _AS_IF_ELSEWHERE if latency_seconds_max <= LATENCY_SECONDS_MAX else ()
    broker = Broker(folder)
    readers: _Readers | None = None
    try:
        readers = _Readers(broker.ports.clients, folder, prefix)
        _attack(verdict, broker, folder, [seed + number for number in range(attackers)], frames // attackers, prefix)
        verdict.rss_bytes_max = broker.rss_bytes_max
        if broker.process.poll() is not None:
            verdict.problems.append(f"the broker ended with status {broker.process.returncode}")
        else:
            readers.finish(verdict)
    finally:
        if readers is not None:
            readers.kill()
        status = broker.stop()
    verdict.stalls = longest_stall(folder / "stalls.jsonl")
    if status != 0:
        verdict.problems.append(f"the broker stopped with status {status}")
    verdict.problems += [f"traceback: {traceback}" for traceback in broker.tracebacks]
    verdict.figures["stderr_lines"] = broker.stderr_lines
    if verdict.rss_bytes_max >= RSS_BYTES_MAX:
        verdict.problems.append(f"the broker's memory reached {verdict.rss_bytes_max / 1e6:.0f} MB")
    if verdict.latency_seconds_max >= latency_seconds_max:
        verdict.problems.append(f"another client waited for {verdict.latency_seconds_max:.2f} s")
    return verdict


def _attack(
    verdict: Verdict, broker: Broker, folder: Path, seeds: list[int], frames: int, prefix: tuple[str, ...]
) -> None:
    """``frames`` by each of the attackers, which have a seed each."""
    observers = _observers(broker, folder)
    began = time.perf_counter()
    reports = {seed: folder / f"attack-{seed}.json" for seed in seeds}
    running = [
        subprocess.Popen(
            [*prefix, sys.executable, "-m", "tests.fuzz.attack", *map(str, broker.ports)]
            + [str(frames), str(seed), str(report)]
        )
        for seed, report in reports.items()
    ]
    while any(process.poll() is None for process in running):
        _wait(running, _PROGRESS_SECONDS)
        print(_progress(broker, [*reports.values()], [*observers]), file=sys.stderr, flush=True)
        if any(observer.poll() is not None for observer in observers.values()):
            # It is answered no more: further requests would show nothing.
            for process in running:
                process.kill()
    verdict.problems += [
        f"an attacker ended with status {process.returncode}" for process in running if process.returncode != 0
    ]
    verdict.seconds = time.perf_counter() - began
    attacks = [read_json(report) for report in reports.values() if report.exists()]
    verdict.frames = sum(attack["sent"] for attack in attacks)
    verdict.figures["attacks"] = attacks
    verdict.problems += _unguarded(attacks)
    if verdict.frames >= COVERING_FRAMES:
        verdict.problems += _missing(attacks)
    for watched, observer in observers.items():
        _end_observer(verdict, watched, observer)


def _observers(broker: Broker, folder: Path) -> dict[Path, subprocess.Popen[bytes]]:
    """By their reports: a client of the open listener, and one that authenticates."""
    listeners = ("", broker.ports.clients), (OBSERVER, broker.ports.users)
    return {
        report: subprocess.Popen(
            [sys.executable, "-m", "tests.fuzz.observer", str(port), str(report), user], stdin=subprocess.PIPE
        )
        for user, port in listeners
        for report in [folder / f"observer-{user}.json"]
    }


def _end_observer(verdict: Verdict, watched: Path, observer: subprocess.Popen[bytes]) -> None:
    try:
        observer.communicate(timeout=300)
    except subprocess.TimeoutExpired:
        observer.kill()
        observer.communicate()
    if observer.returncode != 0:
        verdict.problems.append(f"{watched.stem} ended with status {observer.returncode}")
    figures = read_json(watched)
    if figures.get("slowest"):
        verdict.requests += figures["requests"]
        verdict.figures[watched.stem] = figures["slowest"]
        verdict.latency_seconds_max = max(verdict.latency_seconds_max, figures["slowest"][0][0])


def _wait(running: list[subprocess.Popen[bytes]], seconds: float) -> None:
    """Until they have ended, or for so long."""
    deadline = time.monotonic() + seconds
    for process in running:
        try:
            process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            return


def _progress(broker: Broker, reports: list[Path], watched: list[Path]) -> str:
    attacks = list(filter(None, map(read_json, reports)))
    sent = sum(attack["sent"] for attack in attacks)
    seconds = max((attack["seconds"] for attack in attacks), default=0.0)
    slowest = max((read_json(each).get("slowest") or [[0.0]])[0][0] for each in watched)
    return (
        f"{sent:,} frames in {seconds:.0f} s ({sent / max(seconds, 1e-9):,.0f}/s), RSS at most "
        f"{broker.rss_bytes_max / 1e6:.0f} MB, slowest {slowest * 1000:.0f} ms"
    )


def _unguarded(attacks: list[dict[str, Any]]) -> list[str]:
    answered = sorted({name for attack in attacks for name in attack["unguarded"]})
    return [f"answered without authentication: {', '.join(answered)}"] if answered else []


def _missing(attacks: list[dict[str, Any]]) -> list[str]:
    """APIs and versions that were not sent."""
    sent = {name for attack in attacks for name in attack["by_version"]}
    served = {
        f"{entry.key}v{version}" for entry in APIS for version in range(entry.versions.min, entry.versions.max + 1)
    }
    return [f"never sent: {', '.join(sorted(served - sent))}"] if served - sent else []
