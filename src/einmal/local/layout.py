"""The plan of a cluster on one machine: ports, folders and settings of each broker.

A folder holds one cluster: ``broker-N`` is broker N's data, ``broker-N.properties`` its settings, so that any of them
can be restarted by itself, and ``broker-N.log`` its log output. The first brokers are controllers too, an odd number
of them. Topics get three replicas of which two must have a write, fewer where there are fewer brokers.

Brokers and controllers connect to each other on loopback listeners of their own, where they authenticate by the secret
in ``cluster.secret``. So no client can act as one of them.
"""

from __future__ import annotations

import os
import re
import secrets
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from einmal.local.ports import free_ports

BROKERS_MAX: Final = 9
DEFAULT_PORT: Final = 9_092
PORT_STEP: Final = 1_000
_CONTROLLERS_MAX: Final = 5
_REPLICAS_MAX: Final = 3
_INTERNAL: Final = "INTERNAL"
_METRICS: Final = "metrics.listeners"
_SECRET_BYTES: Final = 32
_CLUSTER_ID_BYTES: Final = 16
_CLUSTER_ID: Final = re.compile(r"^cluster\.id=(\S+)$", re.MULTILINE)
_IDENTITY: Final = "meta.properties"
_DATA: Final = re.compile(r"broker-(\d+)")


class LayoutError(Exception):
    """The folder belongs to another cluster. ``str()`` is a sentence for the user."""


@dataclass(frozen=True, slots=True)
class BrokerPlan:
    """``internal_port``: for other brokers. ``controller_port``: None for a broker that is no controller.

    ``is_alone``: nobody else listens at ``host``, which other brokers reach, too.
    """

    node_id: int
    host: str
    port: int
    internal_port: int
    controller_port: int | None
    folder: Path
    is_alone: bool = False

    @property
    def bootstrap_server(self) -> str:
        return _address(self.host, self.port)

    @property
    def internal_address(self) -> str:
        return _address(self._internal_host, self.internal_port)

    @property
    def controller_address(self) -> str | None:
        return None if self.controller_port is None else _address(self._internal_host, self.controller_port)

    @property
    def _internal_host(self) -> str:
        return self.host if self.is_alone else _loopback(self.host)

    @property
    def data(self) -> Path:
        return data_folder(self.folder, self.node_id)

    @property
    def properties(self) -> Path:
        return self.folder / f"broker-{self.node_id}.properties"

    @property
    def log(self) -> Path:
        return self.folder / f"broker-{self.node_id}.log"

    @property
    def secret(self) -> Path:
        return self.folder / "cluster.secret"


def moved_brokers(plans: Sequence[BrokerPlan], first_port: int) -> list[tuple[int, BrokerPlan]]:
    """The brokers that have other ports than ``first_port`` asks for, each with its wanted port; none for 0."""
    wanted = [(first_port + number * PORT_STEP, plan) for number, plan in enumerate(plans)] if first_port else []
    return [
        (port, plan)
        for port, plan in wanted
        if (plan.port, plan.controller_port or port + 1, plan.internal_port) != (port, port + 1, port + 2)
    ]


def plan_cluster(folder: Path, count: int, *, host: str, first_port: int) -> list[BrokerPlan]:
    """The ports of all brokers: ``first_port``, 1,000 above it and so on; instead of an occupied one, any free one.

    The controller of a broker is one port above it, the listener for other brokers two above.

    ``first_port`` 0: all on free ones. Raises LayoutError when the folder holds a cluster of another size, or a broker
    that is in none.
    """
    existing = brokers_in(folder)
    # A broker by itself may have a topic whose partitions are named broker-N.
    if (folder / _IDENTITY).exists() and not (folder / "broker-1.properties").exists():
        raise LayoutError(f"{folder} has the data of one broker, which was started without --brokers")
    if existing and existing != count:
        raise LayoutError(f"{folder} has the data of {existing} brokers, not of {count}")
    controllers = _controllers(count)
    internal = _loopback(host)
    wanted = []
    for number in range(count):
        port = first_port and first_port + number * PORT_STEP
        wanted += [(host, port), (internal, port and port + 1), (internal, port and port + 2)]
    ports = free_ports(wanted)
    return [
        BrokerPlan(
            number + 1,
            host,
            port=ports[3 * number],
            internal_port=ports[3 * number + 2],
            controller_port=ports[3 * number + 1] if number < controllers else None,
            folder=folder,
        )
        for number in range(count)
    ]


def data_folder(folder: Path, node_id: int) -> Path:
    """Return where a broker of the cluster in this folder has its data."""
    return folder / f"broker-{node_id}"


def plan_hosts(folder: Path, hosts: Sequence[str]) -> list[BrokerPlan]:
    """The plan of one broker for each host of its own, all on the usual ports."""
    return [
        BrokerPlan(
            number,
            host,
            port=DEFAULT_PORT,
            internal_port=DEFAULT_PORT + 2,
            controller_port=DEFAULT_PORT + 1 if number <= _controllers(len(hosts)) else None,
            folder=folder,
            is_alone=True,
        )
        for number, host in enumerate(hosts, start=1)
    ]


def _controllers(count: int) -> int:
    """An odd number."""
    controllers = min(count, _CONTROLLERS_MAX)
    return controllers - (controllers % 2 == 0)


def brokers_in(folder: Path) -> int:
    """How many brokers the cluster has whose folder this is; 0 if it is none."""
    return sum(_DATA.fullmatch(path.name) is not None for path in folder.glob("broker-*"))


def _loopback(host: str) -> str:
    """The address at which the brokers of one machine find each other."""
    return "::1" if ":" in host and host != "::" else "127.0.0.1"


def write_properties(plans: Sequence[BrokerPlan], settings: Mapping[str, str]) -> None:
    """Write each broker's settings, and the secret they share; ``settings`` apply to all of them, and override.

    Raises OSError.
    """
    _make_secret(plans[0].secret)
    cluster_id = _known_cluster_id(plans) or secrets.token_urlsafe(_CLUSTER_ID_BYTES)
    for plan in plans:
        values = {
            **settings_of_node(plan, plans),
            "listeners": _listeners(plan),
            "inter.broker.listener.name": _INTERNAL,
            "listener.security.protocol.map": (
                f"PLAINTEXT:PLAINTEXT,{_INTERNAL}:SASL_PLAINTEXT,CONTROLLER:SASL_PLAINTEXT"
            ),
            "einmal.cluster.secret.file": str(plan.secret),
            # The addresses, from which it would follow, are those of other clusters, too.
            "einmal.cluster.id": cluster_id,
            **settings,
            **_own_metrics(settings, plan.node_id - 1),
        }
        write_private_properties(plan.properties, values)


def settings_of_node(plan: BrokerPlan, plans: Sequence[BrokerPlan]) -> dict[str, str]:
    """Settings that a node of these plans has, of either kind."""
    replicas = str(min(_REPLICAS_MAX, len(plans)))
    in_sync = str(max(1, int(replicas) - 1))
    voters = [
        f"{node_plan.node_id}@{address}" for node_plan in plans if (address := node_plan.controller_address) is not None
    ]
    return {
        "node.id": str(plan.node_id),
        "process.roles": "broker" if plan.controller_port is None else "broker,controller",
        "controller.quorum.voters": ",".join(voters),
        "controller.listener.names": "CONTROLLER",
        "log.dirs": str(plan.data),
        "default.replication.factor": replicas,
        "min.insync.replicas": in_sync,
        "offsets.topic.replication.factor": replicas,
        "transaction.state.log.replication.factor": replicas,
        "transaction.state.log.min.isr": in_sync,
    }


def _own_metrics(settings: Mapping[str, str], number: int) -> dict[str, str]:
    """The address of one broker's metrics: as clients' ports, 1,000 apart; 0 is a free one for each."""
    host, colon, port = settings.get(_METRICS, "").rpartition(":")
    if not port.isdecimal() or port == "0":
        return {}
    return {_METRICS: f"{host}{colon}{int(port) + number * PORT_STEP}"}


def write_private_properties(file: Path, values: Mapping[str, str]) -> None:
    """Only the owner can read it: passwords may be among the settings. Raises OSError."""
    with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as opened:
        file.chmod(0o600)
        opened.write("".join(f"{name}={value}\n" for name, value in values.items()))


def _known_cluster_id(plans: Sequence[BrokerPlan]) -> str | None:
    """The id of the cluster that has these folders; None if all of them are new."""
    ids: Counter[str] = Counter()
    for plan in plans:
        with suppress(OSError, UnicodeDecodeError):
            ids.update(_CLUSTER_ID.findall((plan.data / _IDENTITY).read_text(encoding="utf-8")))
    # Where one of the files is damaged, its broker reports that.
    return ids.most_common(1)[0][0] if ids else None


def _make_secret(file: Path) -> None:
    """Create a secret that only the folder's owner can read, unless there is one."""
    try:
        handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return
    with os.fdopen(handle, "w", encoding="utf-8") as opened:
        opened.write(secrets.token_urlsafe(_SECRET_BYTES) + "\n")


def _listeners(plan: BrokerPlan) -> str:
    advertised = f"PLAINTEXT://{plan.bootstrap_server},{_INTERNAL}://{plan.internal_address}"
    return advertised if plan.controller_port is None else f"{advertised},CONTROLLER://{plan.controller_address}"


def _address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
