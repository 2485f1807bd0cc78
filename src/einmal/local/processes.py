"""Processes of brokers, of either kind: start, monitor and stop them. Each is a process group of its own.

Ours report in JSON lines, and stop when their standard input is closed: so none of them outlives the process that
started it, however that ends.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar, Final, Generic, Self, TypeAlias, TypeVar

from einmal.local.layout import BrokerPlan, plan_cluster, plan_hosts, write_properties

_TAIL_LINES: Final = 15
Inside: TypeAlias = Callable[[int], Sequence[str]]
"""The beginning of a node's command, such as that of its network namespace; it becomes the same process."""


def directly(_node_id: int) -> Sequence[str]:
    """Nothing comes before a node's command."""
    return ()


class BrokerFailed(Exception):
    """A broker ended before it was ready; the text has its last output."""


class NodeProcess(ABC):
    """One broker, which can be killed. ``start`` again after it has ended: on the same ports and data.

    ``stop_s``: how long a clean stop may take. ``inside``: comes before its command, and becomes the same process.
    """

    stop_s: ClassVar = 15.0

    def __init__(self, plan: BrokerPlan, inside: Sequence[str] = ()) -> None:
        self.plan = plan
        self.inside = inside
        self._child: subprocess.Popen[str] | None = None

    @property
    def pid(self) -> int:
        assert self._child is not None
        return self._child.pid

    @abstractmethod
    def start(self) -> None:
        """Start, and do not wait: the brokers of a cluster wait for one another. Raises BrokerFailed."""

    @abstractmethod
    def wait_until_ready(self) -> Mapping[str, Any]:
        """Return the broker's report of itself, once it serves. Raises BrokerFailed."""

    def wait(self) -> int:
        """Its exit status, negative for a signal, once it has ended."""
        assert self._child is not None
        return self._child.wait()

    @property
    def is_running(self) -> bool:
        return self._child is not None and self._child.poll() is None

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        self.signal(signal.SIGKILL)
        self._reap()

    def stop(self) -> None:
        """SIGTERM, and wait until it is gone; SIGKILL if that takes too long."""
        self.signal(signal.SIGTERM)
        self._reap()

    def signal(self, number: signal.Signals) -> None:
        if self.is_running:
            # Another thread may have seen its end since.
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def _failure(self) -> BrokerFailed:
        """Kill it, and return the error."""
        self.kill()
        plan = self.plan
        return BrokerFailed(f"broker {plan.node_id} does not serve; the end of {plan.log}:\n{tail(plan.log)}")

    def _reap(self) -> None:
        child = self._child
        if child is None:
            return
        try:
            child.wait(self.stop_s)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
        for pipe in (child.stdin, child.stdout):
            if pipe is not None:
                pipe.close()


class BrokerProcess(NodeProcess):
    """A broker of einmal. ``options``: of ``einmal start``."""

    def __init__(self, plan: BrokerPlan, options: Sequence[str] = (), inside: Sequence[str] = ()) -> None:
        super().__init__(plan, inside)
        self._options = options

    def start(self) -> None:
        command = [*self.inside, sys.executable, "-m", "einmal", "start", "--config", str(self.plan.properties)]
        with self.plan.log.open("ab") as log:
            self._child = subprocess.Popen(
                [*command, "--format", "json", "--stop-with-stdin", *self._options],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
                text=True,
            )

    def wait_until_ready(self) -> dict[str, Any]:
        """The broker's ready event, once it serves. Raises BrokerFailed."""
        assert self._child is not None and self._child.stdout is not None
        for line in self._child.stdout:
            event: dict[str, Any] = json.loads(line)
            if event["event"] == "ready":
                return event
        raise self._failure()


Node = TypeVar("Node", bound=NodeProcess, covariant=True)


class ProcessCluster(Generic[Node]):
    """The brokers of a cluster on this machine, by node id."""

    def __init__(self, brokers: Mapping[int, Node]) -> None:
        self.brokers = brokers

    @property
    def bootstrap_servers(self) -> str:
        return ",".join(broker.plan.bootstrap_server for broker in self.brokers.values())

    def start(self) -> list[Mapping[str, Any]]:
        """Return the report of each, once all serve. Raises BrokerFailed; then none of them runs."""
        try:
            for broker in self.brokers.values():
                broker.start()
            return [broker.wait_until_ready() for broker in self.brokers.values()]
        except BaseException:
            self.kill()
            raise

    def stop(self) -> None:
        """All of them at once: no broker is left to hand their partitions over to."""
        for broker in self.brokers.values():
            broker.signal(signal.SIGTERM)
        for broker in self.brokers.values():
            broker.stop()

    def kill(self) -> None:
        for broker in self.brokers.values():
            broker.kill()


class LocalCluster(ProcessCluster[BrokerProcess]):
    """All brokers of a plan. ``options``: of ``einmal start``. ``inside``: comes before the command of a node."""

    def __init__(self, plans: Sequence[BrokerPlan], options: Sequence[str] = (), inside: Inside = directly) -> None:
        super().__init__({plan.node_id: BrokerProcess(plan, options, inside(plan.node_id)) for plan in plans})

    @classmethod
    def on_loopback(
        cls, folder: Path, count: int, settings: Mapping[str, str] | None = None, inside: Inside = directly
    ) -> Self:
        """Brokers on free ports of this machine, with their data in ``folder``. ``settings``: of each of them."""
        plans = plan_cluster(folder, count, host="127.0.0.1", first_port=0)
        write_properties(plans, settings or {})
        return cls(plans, inside=inside)

    @classmethod
    def on_hosts(cls, folder: Path, hosts: Sequence[str], inside: Inside) -> Self:
        """A broker on each host, with its data in ``folder``."""
        plans = plan_hosts(folder, hosts)
        write_properties(plans, {})
        return cls(plans, inside=inside)

    def watch(self, ended: Callable[[BrokerProcess, int], None]) -> None:
        """Call ``ended``, in another thread, when a broker has ended."""
        for broker in self.brokers.values():
            threading.Thread(target=lambda process=broker: ended(process, process.wait()), daemon=True).start()


def tail(log: Path) -> str:
    """The last lines of a log."""
    return (
        "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-_TAIL_LINES:]) if log.exists() else ""
    )
