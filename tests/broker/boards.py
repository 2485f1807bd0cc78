"""The dashboards and the alerts that come with the broker: their queries."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import einmal.broker.monitoring
from einmal.broker.monitoring.families import FAMILIES

FOLDER: Final = Path(einmal.broker.monitoring.__file__).parent
ALERTS: Final = FOLDER / "alerts.yaml"
_NAME: Final = re.compile(r"\b(?:kafka|einmal|process)_\w+")


_ELSEWHERE: Final = """
    kafka_server_replicamanager_{leadercount,partitioncount,underreplicatedpartitions,underminisrpartitioncount}
    kafka_controller_kafkacontroller_{activecontrollercount,offlinepartitionscount}
    kafka_controller_controllerstats_uncleanleaderelections_total
    kafka_cluster_partition_{replicascount,atminisr,underminisr}
    kafka_log_log_{size,logstartoffset,logendoffset} kafka_log_logmanager_offlinelogdirectorycount
    kafka_network_requestmetrics_{requests_total,totaltimems}
    kafka_network_socketserver_networkprocessoravgidle_percent
    kafka_server_kafkarequesthandlerpool_requesthandleravgidle_percent
    kafka_server_kafkaserver_linux_disk_{read,write}_bytes
    kafka_server_socket_server_metrics_connection_count
    kafka_server_brokertopicmetrics_{messagesin,bytesin,bytesout,totalproducerequests,totalfetchrequests}_total
    kafka_server_brokertopicmetrics_{failedproducerequests,failedfetchrequests}_total
    kafka_server_raftmetrics_{current_state,current_leader,current_vote,current_epoch,high_watermark,log_end_offset}
    kafka_server_raftmetrics_{append_records_rate,fetch_records_rate}
    kafka_server_raftchannelmetrics_{request,response,incoming_byte,outgoing_byte}_total
    kafka_broker_info kafka_brokers kafka_topic_partitions process_open_fds
    kafka_topic_partition_{current_offset,oldest_offset,in_sync_replica,replicas,leader,leader_is_preferred}
    kafka_topic_partition_under_replicated_partition
    kafka_consumergroup_{current_offset,lag}
"""
"""Braces as in a shell."""


def queries() -> Iterator[tuple[str, str]]:
    """The dashboard's file, and a query of it."""
    for path in sorted(FOLDER.glob("grafana/*.json")):
        for panel in json.loads(path.read_text())["panels"]:
            yield from ((path.name, target["expr"]) for target in panel["targets"])


def names(text: str) -> set[str]:
    """The metrics that a text names."""
    return set(_NAME.findall(text))


def exported() -> set[str]:
    """The names of samples that there may be."""
    suffixes = {"summary": ("", "_sum", "_count"), "histogram": ("_bucket", "_sum", "_count")}
    return {name + suffix for name, kind, _about in FAMILIES for suffix in suffixes.get(kind, ("",))}


def elsewhere() -> set[str]:
    """The metrics that dashboards and alerts made for Apache Kafka ask for, without those of its JVM."""
    return {name for pattern in _ELSEWHERE.split() for name in _expanded(pattern)}


def _expanded(pattern: str) -> list[str]:
    head, brace, rest = pattern.partition("{")
    inner, _, tail = rest.partition("}")
    return [head + each + tail for each in inner.split(",")] if brace else [pattern]
