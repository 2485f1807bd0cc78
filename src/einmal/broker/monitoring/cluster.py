"""Samples of the cluster as this node knows it: its metadata quorum, and all of it on the active controller."""

from __future__ import annotations

from collections.abc import Iterator

from einmal.broker.monitoring.page import Page, labels
from einmal.broker.monitoring.parts import Monitored
from einmal.metadata.records import NO_LEADER

_CONTROLLER = "kafka_controller_kafkacontroller_"


def add_quorum(page: Page, node: Monitored) -> None:
    raft, partition = node.quorum.raft, node.quorum.partition
    state = type(raft.role).__name__.lower() if raft.is_voter else "observer"
    end = raft.log_end
    page.add("kafka_server_raftmetrics_current_state", 1, labels(current_state=state))
    for name, value in (
        ("current_leader", raft.leader_id),
        ("current_epoch", raft.epoch),
        ("current_vote", raft.election.voted_id),
        ("high_watermark", partition.high_watermark),
        ("log_end_offset", end.offset),
        ("log_end_epoch", end.epoch),
    ):
        page.add(f"kafka_server_raftmetrics_{name}", -1 if value is None else value)
    channel = node.peers.to_controllers
    for name, value in (
        ("request_total", channel.requests),
        ("response_total", channel.responses),
        ("outgoing_byte_total", channel.bytes_out),
        ("incoming_byte_total", channel.bytes_in),
    ):
        page.add(f"kafka_server_raftchannelmetrics_{name}", value)


class QuorumRates:
    """The rates at which the metadata log grows here, between two looks."""

    def __init__(self) -> None:
        self._ms = self._end = -1

    def add(self, page: Page, node: Monitored) -> None:
        now_ms, end = node.clock.now().monotonic_ms, node.quorum.partition.log_end_offset
        seconds = (now_ms - self._ms) / 1000
        rate = max(0, end - self._end) / seconds if self._ms >= 0 and seconds > 0 else 0.0
        self._ms, self._end = now_ms, end
        is_leader = node.quorum.is_leader
        page.add("kafka_server_raftmetrics_append_records_rate", rate if is_leader else 0.0)
        page.add("kafka_server_raftmetrics_fetch_records_rate", 0.0 if is_leader else rate)


def add_cluster(page: Page, node: Monitored) -> Iterator[None]:
    """On each controller the names are there; only the active one counts."""
    image, config = node.metadata.image, node.config
    active = sum(broker.is_active for broker in image.brokers.values())
    if config.is_broker and node.metadata.is_applied:
        page.add("kafka_brokers", active)
        # A page may be read while the node starts.
        if node.listening.is_open:
            page.add("kafka_broker_info", 1, labels(id=config.node_id, address=node.listening.endpoint))
    if not config.is_controller:
        return
    is_active = node.controller.is_active
    offline = imbalanced = count = 0
    for topic in list(image.topics.values()) if is_active else ():
        for partition in topic.partitions:
            count += 1
            offline += partition.leader == NO_LEADER
            imbalanced += partition.leader != partition.replicas[0]
            if count % 100 == 0:
                yield
    page.add(f"{_CONTROLLER}activecontrollercount", int(is_active))
    page.add(f"{_CONTROLLER}offlinepartitionscount", offline)
    page.add(f"{_CONTROLLER}preferredreplicaimbalancecount", imbalanced)
    page.add("kafka_controller_controllerstats_uncleanleaderelections_total", node.controller.unclean_elections)
    if is_active:
        page.add(f"{_CONTROLLER}globaltopiccount", len(image.topics))
        page.add(f"{_CONTROLLER}globalpartitioncount", count)
        page.add(f"{_CONTROLLER}activebrokercount", active)
        page.add(f"{_CONTROLLER}fencedbrokercount", sum(broker.is_fenced for broker in image.brokers.values()))
