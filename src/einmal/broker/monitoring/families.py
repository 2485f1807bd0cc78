"""The metrics of a node: names, types and meanings. The names are those that dashboards expect.

Three families of names: as the JMX exporter with Strimzi's rules names what Apache Kafka measures (``kafka_server_``,
``kafka_network_``, ...), as kafka_exporter does (``kafka_topic_``, ``kafka_consumergroup_``, ``kafka_brokers``), and
``einmal_`` for what neither has. What is measured here in another way than there is in docs/monitoring.md.
"""

from __future__ import annotations

from typing import Final, NamedTuple


class Family(NamedTuple):
    name: str
    kind: str
    about: str


_COUNTERS: Final = """
kafka_server_brokertopicmetrics_messagesin_total Records appended by this broker as leader, by topic and in all.
kafka_server_brokertopicmetrics_bytesin_total Bytes of batches appended as leader.
kafka_server_brokertopicmetrics_bytesout_total Bytes of batches sent to consumers.
kafka_server_brokertopicmetrics_totalproducerequests_total Appends to partitions, also those that were refused.
kafka_server_brokertopicmetrics_failedproducerequests_total Appends that were refused.
kafka_server_brokertopicmetrics_totalfetchrequests_total Reads of partitions for consumers.
kafka_server_brokertopicmetrics_failedfetchrequests_total Reads that failed.
kafka_server_brokertopicmetrics_replicationbytesin_total Bytes of batches appended as follower.
kafka_server_brokertopicmetrics_replicationbytesout_total Bytes of batches sent to followers.
kafka_server_replicamanager_isrshrinks_total Changes of the in-sync replicas of led partitions to fewer.
kafka_server_replicamanager_isrexpands_total Changes of the in-sync replicas of led partitions to more.
kafka_controller_controllerstats_uncleanleaderelections_total Leaders elected that may lack committed records.
kafka_server_raftchannelmetrics_request_total Requests of this node to controllers.
kafka_server_raftchannelmetrics_response_total Answers of controllers to this node.
kafka_server_raftchannelmetrics_outgoing_byte_total Bytes of requests to controllers.
kafka_server_raftchannelmetrics_incoming_byte_total Bytes of the answers of controllers.
kafka_network_requestmetrics_requests_total Requests answered, by API and version.
process_cpu_seconds_total Processor time of this process.
einmal_txn_total Transactions ended, by who has ended them.
einmal_dedup_hits_total Batches recognised as duplicates and acknowledged as their first copy.
einmal_out_of_order_sequence_total Batches refused because their sequence does not follow the last one.
einmal_producer_fenced_total Writes and requests of an earlier epoch refused, by a partition or a coordinator.
einmal_control_records_total Markers of transactions written as leader.
"""
_GAUGES: Final = """
kafka_server_replicamanager_partitioncount Replicas on this broker.
kafka_server_replicamanager_leadercount Partitions led by this broker.
kafka_server_replicamanager_underreplicatedpartitions Led partitions with a replica out of sync.
kafka_server_replicamanager_underminisrpartitioncount Led partitions with too few in-sync replicas for acks=all.
kafka_server_replicamanager_atminisrpartitioncount Led partitions with exactly min.insync.replicas in sync.
kafka_server_replicamanager_offlinereplicacount Replicas on this broker that cannot be used.
kafka_server_replicamanager_reassigningpartitions Led partitions that are being moved.
kafka_server_replicamanager_produceridcount Producers that the partitions remember.
kafka_server_replicamanager_partitionswithlatetransactionscount Partitions with a transaction open for too long.
kafka_log_logmanager_offlinelogdirectorycount 1 if a log on this broker cannot be written, else 0.
kafka_cluster_partition_replicascount Replicas of a led partition.
kafka_cluster_partition_insyncreplicascount In-sync replicas of a led partition.
kafka_cluster_partition_underreplicated 1 if a replica of a led partition is out of sync.
kafka_cluster_partition_underminisr 1 if a led partition has too few in-sync replicas for acks=all.
kafka_cluster_partition_atminisr 1 if a led partition has exactly min.insync.replicas in sync.
kafka_cluster_partition_laststableoffsetlag Offsets of a led partition that read_committed readers wait for.
kafka_log_log_logstartoffset First offset of a replica.
kafka_log_log_logendoffset Offset of the next record of a replica.
kafka_log_log_size Bytes of a replica.
kafka_log_log_numlogsegments Segments of a replica.
kafka_controller_kafkacontroller_activecontrollercount 1 on the active controller, else 0.
kafka_controller_kafkacontroller_offlinepartitionscount Partitions without a leader; 0 but on the active controller.
kafka_controller_kafkacontroller_preferredreplicaimbalancecount Partitions that their preferred replica does not lead.
kafka_controller_kafkacontroller_globaltopiccount Topics of the cluster, on the active controller.
kafka_controller_kafkacontroller_globalpartitioncount Partitions of the cluster, on the active controller.
kafka_controller_kafkacontroller_activebrokercount Brokers that take part, on the active controller.
kafka_controller_kafkacontroller_fencedbrokercount Registered brokers that are fenced, on the active controller.
kafka_server_raftmetrics_current_state This node's role in the metadata quorum.
kafka_server_raftmetrics_current_leader Node id of the leader of the metadata quorum; -1: none is known.
kafka_server_raftmetrics_current_epoch Epoch of the metadata quorum.
kafka_server_raftmetrics_current_vote Node id that this node has voted for in this epoch; -1: none.
kafka_server_raftmetrics_high_watermark High watermark of the metadata log.
kafka_server_raftmetrics_log_end_offset End of the metadata log here.
kafka_server_raftmetrics_append_records_rate Records per second that this node appends as leader of the quorum.
kafka_server_raftmetrics_fetch_records_rate Records per second that this node fetches from the leader of the quorum.
kafka_server_raftmetrics_log_end_epoch Epoch of the last record of the metadata log here.
kafka_network_socketserver_networkprocessoravgidle_percent Idle part of the broker's thread, 0 to 1.
kafka_server_kafkarequesthandlerpool_requesthandleravgidle_percent Idle part of the broker's thread, 0 to 1.
kafka_server_socket_server_metrics_connection_count Connections of a listener.
kafka_server_kafkaserver_linux_disk_read_bytes Bytes that this process has caused to be read from disks.
kafka_server_kafkaserver_linux_disk_write_bytes Bytes that this process has caused to be written to disks.
kafka_brokers Brokers of the cluster that take part.
kafka_broker_info 1; the address of this broker.
kafka_topic_partitions Partitions of a topic, from the broker that leads its partition 0.
kafka_topic_partition_current_offset High watermark of a led partition.
kafka_topic_partition_oldest_offset First offset of a led partition.
kafka_topic_partition_in_sync_replica In-sync replicas of a led partition.
kafka_topic_partition_leader Node id of the leader.
kafka_topic_partition_leader_is_preferred 1 if the preferred replica leads.
kafka_topic_partition_replicas Replicas of a led partition.
kafka_topic_partition_under_replicated_partition 1 if a replica of a led partition is out of sync.
kafka_consumergroup_current_offset Offset that a group has committed, from its coordinator.
kafka_consumergroup_current_offset_sum The same of a topic.
kafka_consumergroup_lag Offsets from the committed one to the high watermark; left out of one after it.
kafka_consumergroup_lag_sum The same of a topic; left out where one of its partitions is.
kafka_consumergroup_members Members of a group.
process_resident_memory_bytes Resident memory of this process.
process_virtual_memory_bytes Virtual memory of this process.
process_open_fds Open file descriptors of this process.
process_max_fds Limit of file descriptors of this process.
process_start_time_seconds When this process has started, in seconds since 1970.
einmal_build_info 1; the version of einmal.
einmal_txn_ids Transactional ids that are coordinated here, by their state.
einmal_txn_open_by_age Open transactions that are coordinated here, by age.
einmal_txn_oldest_open_seconds Age of the oldest open transaction that is coordinated here; 0: none is open.
einmal_txn_partitions_held_back Led partitions whose read_committed readers wait for a transaction.
einmal_txn_open Open transactions in a led partition that is held back.
einmal_txn_lso_lag Offsets that read_committed readers of such a partition wait for.
einmal_txn_lso_held_seconds How long its oldest transaction has been open, as far as this process knows.
einmal_consumergroup_lag_blocked_by_open_txn The part of a group's lag that is behind an open transaction.
"""
_SUMMARIES: Final = """
kafka_network_requestmetrics_totaltimems Milliseconds until an answer was ready, by API; quantiles of the last minutes.
"""
_HISTOGRAMS: Final = """
einmal_txn_phase_seconds Ends of transactions: until the decision is replicated, all markers are written, and that is.
"""


def _families(kind: str, lines: str) -> list[Family]:
    return [Family(name, kind, about) for name, about in (line.split(" ", 1) for line in lines.strip().splitlines())]


FAMILIES: Final = tuple(
    sorted(
        (
            *_families("counter", _COUNTERS),
            *_families("gauge", _GAUGES),
            *_families("summary", _SUMMARIES),
            *_families("histogram", _HISTOGRAMS),
        )
    )
)
"""By name."""
