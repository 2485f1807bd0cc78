"""The listeners of a node, their users and their security protocols, from Kafka's settings of listeners.

A broker has any number of listeners. One of them is for other brokers (``inter.broker.listener.name``), and may be for
clients as well; those of ``controller.listener.names`` are for brokers and controllers. Where a listener uses SASL,
nodes of the cluster authenticate by its secret: so a sender is known to be a node, or not to be one.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cache
from typing import Final, NamedTuple

PLAINTEXT: Final = "PLAINTEXT"
PROTOCOLS: Final = (PLAINTEXT, "SSL", "SASL_PLAINTEXT", "SASL_SSL")
"""In the order of their numbers in Kafka's protocol."""
_WILDCARDS: Final = ("", "0.0.0.0", "::")


class Audience(Enum):
    """The role that a listener belongs to: the broker's, for clients and other brokers, or the controller's."""

    CLIENTS = 0
    CONTROLLERS = 1


class ConfigError(Exception):
    """An invalid setting. ``str()`` is a sentence for the user."""


class Endpoint(NamedTuple):
    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_everywhere(self) -> bool:
        """Whether it is all addresses of the machine, to which nobody can connect."""
        return self.host in _WILDCARDS

    def reachable(self, port: int) -> Endpoint:
        """The address for others, who cannot connect to a wildcard. ``port``: the one that the listener is bound to."""
        return Endpoint("localhost" if self.is_everywhere else self.host, port)


class NamedListener(NamedTuple):
    """``is_between_nodes``: other nodes of the cluster connect to it."""

    name: str
    endpoint: Endpoint
    protocol: str
    audience: Audience = Audience.CLIENTS
    is_between_nodes: bool = False

    @property
    def authenticates(self) -> bool:
        """Whether SASL comes before all else."""
        return self.protocol.startswith("SASL_")

    @property
    def is_encrypted(self) -> bool:
        return self.protocol.endswith("SSL")

    @property
    def protocol_number(self) -> int:
        return PROTOCOLS.index(self.protocol)


@dataclass(frozen=True, slots=True)
class Listeners:
    """``of_broker``: empty if the process is no broker. ``of_controller``: empty if nobody can reach this controller,
    or the process is none. ``between_brokers``: the one of ``of_broker`` that other brokers use; None: the settings
    name none. ``controllers_elsewhere``: the name and protocol of the listeners of other controllers.
    """

    of_broker: tuple[NamedListener, ...]
    of_controller: tuple[NamedListener, ...]
    between_brokers: NamedListener | None
    controllers_elsewhere: NamedListener

    @property
    def all(self) -> tuple[NamedListener, ...]:
        return self.of_broker + self.of_controller

    @property
    def first(self) -> NamedListener:
        """For clients, rather than for brokers; of what is only a controller, the controller's."""
        for_clients = [listener for listener in self.of_broker if not listener.is_between_nodes]
        return next(iter((*for_clients, *self.of_broker, *self.of_controller)))

    def is_for_clients(self, listener: NamedListener) -> bool:
        """Whether clients connect to it; on one that is only for nodes they would take what nodes need."""
        return listener.audience is Audience.CLIENTS and (listener == self.first or not listener.is_between_nodes)

    def identifies_clients(self, listener: NamedListener) -> bool:
        """Whether what comes there is a client's, or is known to be a node's."""
        return listener.audience is Audience.CLIENTS and (listener.authenticates or self.is_for_clients(listener))

    @property
    def between_nodes(self) -> tuple[NamedListener, ...]:
        """Those that this node uses to reach others."""
        return (self.controllers_elsewhere, *filter(None, (self.between_brokers,)))


class ListenerSettings(NamedTuple):
    """As they are written."""

    listeners: str
    security_protocol_map: str
    inter_broker_name: str
    controller_names: str
    is_broker: bool
    is_controller: bool
    has_voters: bool


@cache
def listeners_of(settings: ListenerSettings) -> Listeners:
    """Raises ConfigError for a listener that cannot do what its settings promise."""
    endpoints = endpoints_of("listeners", settings.listeners)
    protocols = _protocols(settings.security_protocol_map)
    names = [name.strip().upper() for name in settings.controller_names.split(",") if name.strip()]
    if not names:
        raise ConfigError("controller.listener.names is empty: name the controllers' listener, such as CONTROLLER")
    of_brokers = settings.inter_broker_name.strip().upper()
    if of_brokers in names:
        raise ConfigError(f"{of_brokers} cannot be in both inter.broker.listener.name and controller.listener.names")
    others = [name for name in endpoints if name not in names]
    is_alone = not settings.has_voters and len(others) == len(endpoints)
    between = of_brokers or _shared(others)
    named = [
        NamedListener(
            name,
            endpoint,
            _protocol(name, protocols, names),
            Audience.CONTROLLERS if name in names else Audience.CLIENTS,
            name in names or (name == between and not is_alone),
        )
        for name, endpoint in endpoints.items()
    ]
    of_broker = tuple(listener for listener in named if listener.audience is Audience.CLIENTS)
    of_controller = tuple(listener for listener in named if listener.audience is Audience.CONTROLLERS)
    elsewhere = NamedListener(
        names[0], Endpoint("", 0), _protocol(names[0], protocols, names), Audience.CONTROLLERS, is_between_nodes=True
    )
    listeners = Listeners(of_broker, of_controller, next((x for x in of_broker if x.name == between), None), elsewhere)
    _check(settings, listeners)
    return listeners


def _shared(names: Sequence[str]) -> str:
    """The listener for other brokers where none is named, as on Kafka PLAINTEXT; else the only one; else none."""
    return PLAINTEXT if PLAINTEXT in names else names[0] if len(names) == 1 else ""


def _check(settings: ListenerSettings, listeners: Listeners) -> None:
    if settings.is_broker and settings.inter_broker_name.strip() and listeners.between_brokers is None:
        raise ConfigError(
            f"inter.broker.listener.name={settings.inter_broker_name} is not in listeners={settings.listeners}"
        )
    if settings.is_broker and not listeners.of_broker:
        raise ConfigError(f"listeners={settings.listeners} has no address for clients")
    for is_there, role, useless in (
        (settings.is_broker, "broker", listeners.of_broker),
        (settings.is_controller, "controller", listeners.of_controller),
    ):
        if useless and not is_there:
            names = ", ".join(listener.name for listener in useless)
            raise ConfigError(f"listeners: {names} would serve nobody: this process is no {role}")


def _protocol(name: str, protocols: Mapping[str, str], of_controllers: Collection[str]) -> str:
    """Kafka's rules: as in the map, else as the name; a controllers' listener is PLAINTEXT by default."""
    if name in protocols:
        return protocols[name]
    if name in PROTOCOLS:
        return name
    if name in of_controllers:
        return PLAINTEXT
    raise ConfigError(f"listeners: {name} has no security protocol in listener.security.protocol.map")


def _protocols(text: str) -> dict[str, str]:
    key = "listener.security.protocol.map"
    protocols: dict[str, str] = {}
    for item in filter(None, map(str.strip, text.split(","))):
        name, separator, protocol = (component.strip().upper() for component in item.partition(":"))
        if not separator or protocol not in PROTOCOLS:
            raise ConfigError(f"{key}: {item!r} is not NAME:PROTOCOL with one of {', '.join(PROTOCOLS)}")
        protocols[name] = protocol
    return protocols


def endpoints_of(key: str, text: str) -> dict[str, Endpoint]:
    """A comma-separated list of ``[NAME://]host:port`` by name. Raises ConfigError."""
    endpoints: dict[str, Endpoint] = {}
    for item in filter(None, map(str.strip, text.split(","))):
        name, separator, address = item.rpartition("://")
        name = name.upper() if separator else PLAINTEXT
        if name in endpoints:
            raise ConfigError(f"{key}: {name} is there twice")
        endpoints[name] = address_of(key, item, address)
    return endpoints


def address_of(key: str, item: str, address: str) -> Endpoint:
    """Raises ConfigError."""
    host, _, port = address.rpartition(":")
    if not port.isdigit() or int(port) > 65_535:
        raise ConfigError(f"{key}: {item!r} does not end in a port")
    return Endpoint(host.strip("[]"), int(port))
