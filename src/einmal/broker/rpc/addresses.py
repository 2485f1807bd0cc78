"""Where the nodes of the cluster are: voters by the settings, brokers by what they have registered.

Several connections may lead to one node: each *lane* is one of its own, so that a long poll holds up no vote and no
heartbeat. What concerns the quorum goes to a node's controller listener, all else to its listener that this node's
inter.broker.listener.name has the name of.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from einmal.broker.cluster_metadata import ClusterMetadata
from einmal.broker.config import BrokerConfig
from einmal.broker.listeners import PLAINTEXT, PROTOCOLS, Audience
from einmal.types import BrokerId

_CONTROLLER_LANES: Final = ("quorum", "quorum-fetch", "controller", "heartbeat")


class PeerLocation(NamedTuple):
    """``listener`` and ``protocol``: of the listener there."""

    host: str
    port: int
    lane: str
    listener: str
    protocol: str

    @property
    def authenticates(self) -> bool:
        """A connection is one only after both sides have shown that they know the cluster's secret."""
        return self.protocol.startswith("SASL_")

    @property
    def is_encrypted(self) -> bool:
        return self.protocol.endswith("SSL")


class Addresses:
    def __init__(self, config: BrokerConfig, metadata: ClusterMetadata) -> None:
        self._voters = config.quorum_voters
        listeners = config.named_listeners
        self._controllers = listeners.controllers_elsewhere
        between = listeners.between_brokers
        self._of_brokers = config.inter_broker_listener_name.strip().upper() or (between.name if between else PLAINTEXT)
        self._metadata = metadata
        self.node_id = config.node_id
        """This node's own."""

    def location_of(self, node_id: int, lane: str) -> PeerLocation | None:
        """None: nobody knows where the node is, or it has no such listener."""
        voter = self._voters.get(node_id)
        broker = self._metadata.image.brokers.get(BrokerId(node_id))
        if voter is not None and (lane in _CONTROLLER_LANES or broker is None):
            return PeerLocation(*voter, lane, self._controllers.name, self._controllers.protocol)
        point = None if broker is None else broker.end_point(self._of_brokers)
        if point is None:
            return None
        return PeerLocation(point.host, point.port, lane, point.name, PROTOCOLS[point.security_protocol])


def audience_of(lane: str) -> Audience:
    """Whose listener a request in a lane is for, where the node asks itself."""
    return Audience.CONTROLLERS if lane in _CONTROLLER_LANES else Audience.CLIENTS
