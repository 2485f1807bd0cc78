"""The plan of a cluster on one machine: ports, folders and settings of each broker.

A folder holds one cluster: ``broker-N`` is broker N's data, ``broker-N.properties`` its settings, so that any of them
can be started again by itself, and ``broker-N.log`` what it has to say. The first brokers are controllers too, an odd
number of them. Topics get three replicas of which two must have a write, fewer where there are fewer brokers.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

BROKERS_MAX: Final = 9
PORT_STEP: Final = 1_000
_CONTROLLERS_MAX: Final = 5
_REPLICAS_MAX: Final = 3
_CONTROLLER_PORT_OFFSET: Final = 1
_PORT_MAX: Final = 65_535
_WILDCARDS: Final = ("", "0.0.0.0", "::")
_DATA: Final = re.compile(r"broker-(\d+)")


class LayoutError(Exception):
    """The folder is of another cluster. ``str()`` is a sentence for the user."""


@dataclass(frozen=True, slots=True)
class BrokerPlan:
    """``controller_port``: None for a broker that is no controller."""

    node_id: int
    host: str
    port: int
    controller_port: int | None
    folder: Path

    @property
    def bootstrap_server(self) -> str:
        return _address(self.host, self.port)

    @property
    def controller_address(self) -> str | None:
        # Nobody can connect to a wildcard, and the brokers are on one machine.
        host = "127.0.0.1" if self.host in _WILDCARDS else self.host
        return None if self.controller_port is None else _address(host, self.controller_port)

    @property
    def data(self) -> Path:
        return self.folder / f"broker-{self.node_id}"

    @property
    def properties(self) -> Path:
        return self.folder / f"broker-{self.node_id}.properties"

    @property
    def log(self) -> Path:
        return self.folder / f"broker-{self.node_id}.log"


def plan_cluster(folder: Path, count: int, *, host: str, first_port: int) -> list[BrokerPlan]:
    """Who listens where: on ``first_port``, 1,000 above it and so on; where one is taken, on any free one.

    ``first_port`` 0: all on free ones. Raises LayoutError when the folder holds a cluster of another size.
    """
    found = sorted(int(match[1]) for path in folder.glob("broker-*") if (match := _DATA.fullmatch(path.name)))
    if found and len(found) != count:
        raise LayoutError(f"{folder} has the data of {len(found)} brokers, not of {count}")
    controllers = min(count, _CONTROLLERS_MAX)
    controllers -= controllers % 2 == 0
    wanted = []
    for number in range(count):
        port = first_port and first_port + number * PORT_STEP
        wanted.append(port)
        if number < controllers:
            wanted.append(port and port + _CONTROLLER_PORT_OFFSET)
    ports = iter(_free_ports(host, wanted))
    return [
        BrokerPlan(number + 1, host, next(ports), next(ports) if number < controllers else None, folder)
        for number in range(count)
    ]


def _free_ports(host: str, wanted: Iterable[int]) -> list[int]:
    """The wanted ports, and any free one in place of one that is taken."""
    sockets = []
    try:
        for port in wanted:
            each = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
            sockets.append(each)
            # As the brokers will: a port whose last connections are still closing is free.
            each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                each.bind((host, port if port <= _PORT_MAX else 0))
            except OSError:
                each.bind((host, 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


def write_properties(plans: Sequence[BrokerPlan], settings: Mapping[str, str]) -> None:
    """Write each broker's settings; ``settings`` hold for all of them, and win."""
    voters = ",".join(f"{plan.node_id}@{address}" for plan in plans if (address := plan.controller_address) is not None)
    replicas = min(_REPLICAS_MAX, len(plans))
    in_sync = max(1, replicas - 1)
    for plan in plans:
        values = {
            "node.id": str(plan.node_id),
            "process.roles": "broker" if plan.controller_port is None else "broker,controller",
            "controller.quorum.voters": voters,
            "controller.listener.names": "CONTROLLER",
            "listeners": _listeners(plan),
            "log.dirs": str(plan.data),
            "default.replication.factor": str(replicas),
            "min.insync.replicas": str(in_sync),
            "offsets.topic.replication.factor": str(replicas),
            "transaction.state.log.replication.factor": str(replicas),
            "transaction.state.log.min.isr": str(in_sync),
            **settings,
        }
        plan.properties.write_text("".join(f"{name}={value}\n" for name, value in values.items()))


def _listeners(plan: BrokerPlan) -> str:
    told = f"PLAINTEXT://{plan.bootstrap_server}"
    return told if plan.controller_port is None else f"{told},CONTROLLER://{plan.controller_address}"


def _address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
