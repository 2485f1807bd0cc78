"""The listeners of a node, their users and their security protocols, from Kafka's settings of listeners.

A broker has one listener for clients, and one for other brokers if ``inter.broker.listener.name`` names it; else they
share one. A controller that others can reach has its own. Clients are not authenticated yet. Brokers and controllers
can be, by the cluster's secret: this is the meaning of SASL_PLAINTEXT on their listeners.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cache
from typing import Final, NamedTuple

PLAINTEXT: Final = "PLAINTEXT"
SASL_PLAINTEXT: Final = "SASL_PLAINTEXT"
PROTOCOLS: Final = (PLAINTEXT, "SSL", SASL_PLAINTEXT, "SASL_SSL")
"""In the order of their numbers in Kafka's protocol."""
_WILDCARDS: Final = ("", "0.0.0.0", "::")


class Audience(Enum):
    """The users of a listener."""

    CLIENTS = 0
    BROKERS = 1
    CONTROLLERS = 2


class ConfigError(Exception):
    """An invalid setting. ``str()`` is a sentence for the user."""


class Endpoint(NamedTuple):
    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def reachable(self, port: int) -> Endpoint:
        """The address for others, who cannot connect to a wildcard. ``port``: the one that the listener is bound to."""
        return Endpoint("localhost" if self.host in _WILDCARDS else self.host, port)


class NamedListener(NamedTuple):
    name: str
    endpoint: Endpoint
    protocol: str

    @property
    def is_authenticated(self) -> bool:
        return self.protocol == SASL_PLAINTEXT

    @property
    def protocol_number(self) -> int:
        return PROTOCOLS.index(self.protocol)


@dataclass(frozen=True, slots=True)
class Listeners:
    """``clients`` None: the process is no broker. ``brokers`` None: they use the clients'. ``controllers`` None: nobody
    can reach this controller, or the process is none. ``controllers_authenticate``: the listeners of all of them.
    """

    clients: NamedListener | None
    brokers: NamedListener | None
    controllers: NamedListener | None
    controllers_authenticate: bool


class ListenerSettings(NamedTuple):
    """As they are written."""

    listeners: str
    security_protocol_map: str
    inter_broker_name: str
    controller_names: str
    is_broker: bool
    is_controller: bool


@cache
def listeners_of(settings: ListenerSettings) -> Listeners:
    """Raises ConfigError for a listener that cannot do what its settings promise."""
    endpoints = endpoints_of("listeners", settings.listeners)
    protocols = _protocols(settings.security_protocol_map)
    of_controllers, of_brokers = settings.controller_names.strip().upper(), settings.inter_broker_name.strip().upper()
    if "," in of_controllers:
        raise ConfigError(f"controller.listener.names={settings.controller_names}: one listener is supported")
    named = {
        name: NamedListener(name, endpoint, _protocol(name, protocols, of_controllers))
        for name, endpoint in endpoints.items()
    }
    controllers = named.pop(of_controllers, None)
    clients = brokers = None
    if settings.is_broker:
        if of_brokers and of_brokers not in named:
            raise ConfigError(f"inter.broker.listener.name={of_brokers} is not in listeners={settings.listeners}")
        if len(named) > 1:
            brokers = named.pop(of_brokers, None)
        clients = _only_one(list(named.values()), settings.listeners)
    elif named:
        raise ConfigError(f"listeners: {', '.join(named)} would serve nobody: this process is no broker")
    if controllers is not None and not settings.is_controller:
        raise ConfigError(f"listeners: {controllers.name} would serve nobody: this process is no controller")
    elsewhere = _protocol(of_controllers, protocols, of_controllers)
    _check_protocol(of_controllers, elsewhere)
    if brokers is not None:
        _check_protocol(brokers.name, brokers.protocol)
    return Listeners(
        clients=clients,
        brokers=brokers,
        controllers=controllers,
        controllers_authenticate=elsewhere == SASL_PLAINTEXT,
    )


def _only_one(found: list[NamedListener], text: str) -> NamedListener:
    if not found:
        raise ConfigError(f"listeners={text} has no address for clients")
    if len(found) > 1:
        names = ", ".join(each.name for each in found)
        raise ConfigError(f"listeners: one listener for clients is supported, not {len(found)} ({names})")
    if found[0].protocol != PLAINTEXT:
        raise ConfigError(
            f"listeners: {found[0].name} is {found[0].protocol}, which is not supported: clients are neither encrypted "
            "nor authenticated yet; use PLAINTEXT and keep the port off networks that you do not trust"
        )
    return found[0]


def _check_protocol(name: str, protocol: str) -> None:
    if protocol not in (PLAINTEXT, SASL_PLAINTEXT):
        raise ConfigError(f"listeners: {name} is {protocol}; supported: PLAINTEXT, SASL_PLAINTEXT")


def _protocol(name: str, protocols: Mapping[str, str], of_controllers: str) -> str:
    """Kafka's rules: as in the map, else as the name; a controllers' listener is PLAINTEXT by default."""
    if name in protocols:
        return protocols[name]
    if name in PROTOCOLS:
        return name
    if name == of_controllers:
        return PLAINTEXT
    raise ConfigError(f"listeners: {name} has no security protocol in listener.security.protocol.map")


def _protocols(text: str) -> dict[str, str]:
    key = "listener.security.protocol.map"
    protocols: dict[str, str] = {}
    for item in filter(None, map(str.strip, text.split(","))):
        name, separator, protocol = (part.strip().upper() for part in item.partition(":"))
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
