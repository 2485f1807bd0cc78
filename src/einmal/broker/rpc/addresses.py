"""Where the nodes of the cluster are: voters by the settings, brokers by what they have registered.

Several connections may lead to one node: each *lane* is one of its own, so that a long poll holds up no vote and no
heartbeat. What concerns the quorum goes to a node's controller listener, all else to its listener for brokers.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from einmal.broker.cluster_metadata import ClusterMetadata
from einmal.broker.config import BrokerConfig
from einmal.broker.listeners import PROTOCOLS, SASL_PLAINTEXT, Audience
from einmal.types import BrokerId

_CONTROLLER_LANES: Final = ("quorum", "quorum-fetch", "controller", "heartbeat")


class PeerLocation(NamedTuple):
    """``authenticates``: a connection is one only after both sides have shown that they know the cluster's secret."""

    host: str
    port: int
    lane: str
    authenticates: bool


class Addresses:
    def __init__(self, config: BrokerConfig, metadata: ClusterMetadata) -> None:
        self._voters = config.quorum_voters
        self._controllers_authenticate = config.named_listeners.controllers_authenticate
        self._metadata = metadata
        self.node_id = config.node_id
        """This node's own."""

    def location_of(self, node_id: int, lane: str) -> PeerLocation | None:
        """None: nobody knows where the node is."""
        voter = self._voters.get(node_id)
        broker = self._metadata.image.brokers.get(BrokerId(node_id))
        if voter is not None and (lane in _CONTROLLER_LANES or broker is None):
            return PeerLocation(*voter, lane, self._controllers_authenticate)
        if broker is None or not broker.end_points:
            return None
        point = broker.end_point(for_brokers=True)
        return PeerLocation(point.host, point.port, lane, PROTOCOLS[point.security_protocol] == SASL_PLAINTEXT)


def audience_of(lane: str) -> Audience:
    """Whose listener a request in a lane is for, where the node asks itself."""
    return Audience.CONTROLLERS if lane in _CONTROLLER_LANES else Audience.CLIENTS
