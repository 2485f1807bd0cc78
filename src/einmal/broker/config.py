"""The broker's settings: Kafka's keys, defaults and units, in one table.

A field's name is Kafka's key with underscores for dots: that is the whole mapping, both ways. Values come from a
``server.properties`` file and from ``-X key=value`` (later ones win); keys that this broker does not know are returned
to the caller, who warns. Knows nothing of what a setting does.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Mapping
from dataclasses import Field, dataclass, field, fields, replace
from functools import cache
from pathlib import PurePosixPath
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from einmal.broker.kafka_settings import why_refused
from einmal.broker.listeners import ConfigError as ConfigError
from einmal.broker.listeners import Endpoint as Endpoint
from einmal.broker.listeners import (
    Listeners,
    ListenerSettings,
    NamedListener,
    address_of,
    endpoints_of,
    listeners_of,
)
from einmal.metadata.topic_configs import SEGMENT_BYTES_MIN
from einmal.security.errors import SecuritySettingError
from einmal.security.principal import ANONYMOUS, USER, Principal, parse_principal
from einmal.security.properties import parse_properties as parse_properties
from einmal.security.sasl.mechanisms import MECHANISMS
from einmal.security.sasl.scram_bootstrap import FirstUser, first_users
from einmal.security.secret import Secret
from einmal.security.server_settings import (
    CALLBACK_HANDLERS,
    TOKEN_VALIDATORS,
    SaslServerSettings,
    sasl_server_settings,
)

VARIABLE_PREFIX: Final = "KAFKA_"
"""The beginning of the names of environment variables that are settings."""
STANDARD_AUTHORIZER: Final = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
"""The only authorizer, under its name in Apache Kafka."""
_HOUR_MS: Final = 3_600_000
_MINUTE_MS: Final = 60_000
_INT16_MAX: Final = 2**15 - 1
_INT32_MAX: Final = 2**31 - 1
_INT64_MAX: Final = 2**63 - 1
CONNECTION_RATE_MAX: Final = _INT32_MAX
"""The default, which is no limit."""
OF_LISTENER: Final = "listener.name."
"""The prefix of a listener's own settings: its name in lower case and the key follow."""


def _setting(
    default: Any,
    about: str,
    *,
    low: int | None = None,
    high: int = _INT32_MAX,
    one_of: tuple[str, ...] = (),
    of_listener: bool = False,
    of_mechanism: bool = False,
) -> Any:
    """``high``: by default the largest INT, the type of most of Apache Kafka's settings.

    ``of_listener``: a listener may have a value of its own, under the prefix ``listener.name.<name>.``.
    ``of_mechanism``: and for each SASL mechanism, under ``listener.name.<name>.<mechanism>.``.
    """
    metadata = {"about": about, "low": low, "high": high, "one_of": one_of}
    return field(default=default, metadata={**metadata, "of_listener": of_listener, "of_mechanism": of_mechanism})


_NOT_SET: Final = Secret("")
_CLUSTER_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
"""22 of them as Kafka's tools make it."""
_AFTER_COMMA: Final = re.compile(rf",\s*{USER}:")
"""In one principal: probably the beginning of the next one."""


class ListenerSetting(NamedTuple):
    """A listener's own value of a setting. ``listener``: in lower case. ``mechanism``: of SASL; empty: of all."""

    listener: str
    key: str
    value: Any
    mechanism: str = ""

    @property
    def full_key(self) -> str:
        of_mechanism = f"{self.mechanism.lower()}." if self.mechanism else ""
        return f"{OF_LISTENER}{self.listener}.{of_mechanism}{self.key}"


_AUTHENTICATE_NODES: Final = (
    "set SASL_PLAINTEXT for {} in listener.security.protocol.map, and einmal.cluster.secret.file "
    f"(docs/security.md); or add {ANONYMOUS} to super.users"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig:
    # identity and listeners
    node_id: int = _setting(1, "Identity of this broker in its cluster.", low=0)
    process_roles: str = _setting(
        "broker,controller",
        "Roles of this process.",
        one_of=("broker,controller", "controller,broker", "broker", "controller"),
    )
    broker_rack: str = _setting("", "Rack of this broker.")
    listeners: str = _setting(
        "PLAINTEXT://127.0.0.1:9092",
        "Addresses to listen on: for clients, for other brokers and for controllers; port 0 takes a free one.",
    )
    controller_listener_names: str = _setting(
        "CONTROLLER", "Names of the controllers' listeners; nodes connect to the first."
    )
    inter_broker_listener_name: str = _setting(
        "", "Name of the listener for other brokers; empty: PLAINTEXT, or the only one."
    )
    listener_security_protocol_map: str = _setting("", "Security protocol of each listener, NAME:PROTOCOL,...")
    einmal_cluster_id: str = _setting(
        "", "Id of this node's cluster, the same on all of its nodes; empty: it follows from controller.quorum.voters."
    )
    einmal_cluster_secret_file: str = _setting(
        "", "File with the secret by which brokers and controllers authenticate to each other (SCRAM-SHA-256)."
    )
    advertised_listeners: str = _setting(
        "", "Addresses that clients and other brokers connect to, of each listener; empty: those of listeners."
    )
    log_dirs: str = _setting("", "Folder of all data.")

    # SASL
    einmal_bootstrap_scram_credentials: Secret = _setting(
        _NOT_SET, "First users of a new cluster: MECHANISM=[name=...,password=...], as kafka-storage's --add-scram."
    )
    sasl_enabled_mechanisms: str = _setting(
        "",
        "Mechanisms by which clients authenticate: PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER.",
        of_listener=True,
    )
    sasl_jaas_config: Secret = _setting(
        _NOT_SET, "Login module; PLAIN's has the users: user_NAME=PASSWORD.", of_listener=True, of_mechanism=True
    )
    sasl_server_max_receive_size: int = _setting(
        524_288, "Largest request of a client that has not authenticated.", low=1_024, of_listener=True
    )
    connection_failed_authentication_delay_ms: int = _setting(
        100, "Delay of the response to a failed authentication.", low=0, of_listener=True
    )
    connections_max_reauth_ms: int = _setting(
        0,
        "Clients must authenticate again after so long (KIP-368); 0: never.",
        low=0,
        high=_INT64_MAX,
        of_listener=True,
        of_mechanism=True,
    )
    sasl_oauthbearer_jwks_endpoint_url: str = _setting(
        "",
        "Keys that bearer tokens are verified by (JWKS): https:// or file://.",
        of_listener=True,
        of_mechanism=True,
    )
    sasl_oauthbearer_expected_audience: str = _setting(
        "", "Audiences, of which a bearer token must have one; empty: any.", of_listener=True, of_mechanism=True
    )
    sasl_oauthbearer_expected_issuer: str = _setting(
        "", "Issuer of bearer tokens; empty: any.", of_listener=True, of_mechanism=True
    )
    sasl_oauthbearer_sub_claim_name: str = _setting(
        "sub", "Claim of a bearer token with the user's name.", of_listener=True, of_mechanism=True
    )
    sasl_oauthbearer_scope_claim_name: str = _setting(
        "scope", "Claim of a bearer token with its scope.", of_listener=True, of_mechanism=True
    )
    sasl_oauthbearer_clock_skew_seconds: int = _setting(
        30,
        "How far the clocks of broker and identity provider may differ.",
        low=0,
        of_listener=True,
        of_mechanism=True,
    )
    sasl_oauthbearer_jwks_endpoint_refresh_ms: int = _setting(
        3_600_000,
        "Interval at which these keys are fetched.",
        low=1_000,
        high=_INT64_MAX,
        of_listener=True,
        of_mechanism=True,
    )
    sasl_oauthbearer_jwks_endpoint_retry_backoff_ms: int = _setting(
        100,
        "First pause after these keys could not be fetched.",
        low=1,
        high=_INT64_MAX,
        of_listener=True,
        of_mechanism=True,
    )
    sasl_oauthbearer_jwks_endpoint_retry_backoff_max_ms: int = _setting(
        10_000, "Longest pause.", low=1, high=_INT64_MAX, of_listener=True, of_mechanism=True
    )
    sasl_oauthbearer_jwt_validator_class: str = _setting(
        "", "No effect: tokens are verified as described.", one_of=("", *TOKEN_VALIDATORS), of_mechanism=True
    )
    sasl_server_callback_handler_class: str = _setting(
        "", "No effect: tokens are verified as described.", one_of=("", *CALLBACK_HANDLERS), of_mechanism=True
    )

    # TLS
    ssl_keystore_location: str = _setting("", "File of the private key and the certificate chain.", of_listener=True)
    ssl_keystore_type: str = _setting("", "Format of this file: PEM.", of_listener=True)
    ssl_keystore_certificate_chain: str = _setting(
        "", "Certificate chain in PEM, in place of the file.", of_listener=True
    )
    ssl_keystore_key: Secret = _setting(_NOT_SET, "Private key in PEM, in place of the file.", of_listener=True)
    ssl_keystore_password: Secret = _setting(_NOT_SET, "No effect on PEM: must be empty.", of_listener=True)
    ssl_key_password: Secret = _setting(_NOT_SET, "Password of an encrypted private key.", of_listener=True)
    ssl_truststore_location: str = _setting(
        "", "File of the authorities that sign certificates of clients and other nodes.", of_listener=True
    )
    ssl_truststore_type: str = _setting("", "Format of this file: PEM.", of_listener=True)
    ssl_truststore_certificates: str = _setting("", "Authorities in PEM, in place of the file.", of_listener=True)
    ssl_truststore_password: Secret = _setting(_NOT_SET, "No effect on PEM: must be empty.", of_listener=True)
    ssl_client_auth: str = _setting(
        "none",
        "Certificates of clients: none, requested or required.",
        one_of=("none", "requested", "required"),
        of_listener=True,
    )
    ssl_enabled_protocols: str = _setting("TLSv1.2,TLSv1.3", "Versions of TLS: TLSv1.2, TLSv1.3.", of_listener=True)
    ssl_protocol: str = _setting(
        "TLSv1.3", "No effect: ssl.enabled.protocols holds.", one_of=("TLSv1.3", "TLSv1.2", "TLS"), of_listener=True
    )
    ssl_cipher_suites: str = _setting("", "Cipher suites, under Java's or OpenSSL's names.", of_listener=True)
    ssl_endpoint_identification_algorithm: str = _setting(
        "https",
        "https: another node's certificate must name its host; empty: any certificate of the authorities will do.",
        one_of=("https", ""),
        of_listener=True,
    )
    ssl_principal_mapping_rules: str = _setting(
        "DEFAULT", "Rules that make a user's name of a client certificate's distinguished name.", of_listener=True
    )

    # the metadata quorum
    controller_quorum_voters: str = _setting(
        "", "All controllers of the cluster, id@host:port,...; empty: this process alone."
    )
    controller_quorum_fetch_timeout_ms: int = _setting(2_000, "A leader that is silent for so long is replaced.", low=1)
    controller_quorum_election_timeout_ms: int = _setting(1_000, "Longest duration of an election.", low=1)
    controller_quorum_election_backoff_max_ms: int = _setting(1_000, "Longest pause after a lost election.", low=0)
    controller_quorum_request_timeout_ms: int = _setting(2_000, "How long to wait for a voter's response.", low=1)
    metadata_log_max_record_bytes_between_snapshots: int = _setting(
        20_971_520, "Bytes of metadata between two snapshots.", low=1, high=_INT64_MAX
    )
    broker_heartbeat_interval_ms: int = _setting(500, "Interval of a broker's heartbeats to the controller.", low=1)
    broker_session_timeout_ms: int = _setting(9_000, "A broker that is silent for so long is fenced.", low=1)
    controlled_shutdown_enable: bool = _setting(True, "Hand over leadership before stopping.")
    auto_leader_rebalance_enable: bool = _setting(True, "Move leaders back to the preferred replicas.")
    leader_imbalance_check_interval_seconds: int = _setting(300, "Interval of this check.", low=1, high=_INT64_MAX)

    # who may do what
    authorizer_class_name: str = _setting(
        "",
        f"{STANDARD_AUTHORIZER}: access is decided by ACLs, on all nodes of the cluster; empty: everybody may do "
        "everything.",
    )
    super_users: str = _setting("", "Principals that may do everything, User:name;...")
    allow_everyone_if_no_acl_found: bool = _setting(
        False, "Everybody may do everything to a resource that no ACL is about."
    )

    # connections
    socket_request_max_bytes: int = _setting(104_857_600, "Largest request.", low=1_024)
    queued_max_request_bytes: int = _setting(
        134_217_728,
        "Memory for requests that are not processed yet, of all clients; -1 or 0: no limit.",
        low=-1,
        high=_INT64_MAX,
    )
    max_connections: int = _setting(10_000, "Maximum connections of one listener.", low=1, of_listener=True)
    max_connections_per_ip: int = _setting(_INT32_MAX, "Maximum connections of one address.", low=0)
    max_connections_per_ip_overrides: str = _setting(
        "", "Other limits for some addresses, address:count,...; IPv6 addresses in brackets."
    )
    max_connection_creation_rate: int = _setting(
        CONNECTION_RATE_MAX,
        "New connections per second, of all listeners for clients; more wait for their turn (KIP-612).",
        low=1,
        of_listener=True,
    )
    connections_max_idle_ms: int = _setting(
        600_000, "Close connections unused for so long.", low=1_000, high=_INT64_MAX
    )
    max_incremental_fetch_session_cache_slots: int = _setting(1_000, "Fetch sessions kept (KIP-227).", low=0)
    fetch_max_bytes: int = _setting(57_671_680, "Maximum bytes of one Fetch response.", low=1_024)

    # metrics and health over HTTP
    metrics_listeners: str = _setting(
        "", "HOST:PORT of /metrics, /health/live and /health/ready, without authentication; a port alone: of 127.0.0.1."
    )

    # quotas
    quota_window_num: int = _setting(11, "Windows over which the use of a quota is measured.", low=1)
    quota_window_size_seconds: int = _setting(1, "Length of such a window.", low=1)
    controller_quota_window_num: int = _setting(
        11, "The same, of changes of partitions: all windows together are the largest burst.", low=1
    )
    controller_quota_window_size_seconds: int = _setting(1, "Length of such a window.", low=1)

    # topics
    auto_create_topics_enable: bool = _setting(True, "Create a topic when a client asks for one that does not exist.")
    delete_topic_enable: bool = _setting(True, "Allow DeleteTopics.")
    num_partitions: int = _setting(1, "Partitions of a topic that is created without a count.", low=1)
    default_replication_factor: int = _setting(
        1, "Replicas of a topic that is created without a count.", low=1, high=_INT16_MAX
    )
    min_insync_replicas: int = _setting(1, "Replicas that must have a write with acks=all.", low=1)
    unclean_leader_election_enable: bool = _setting(False, "Allow leaders that may have lost data.")

    # replication
    replica_fetch_wait_max_ms: int = _setting(500, "How long a leader keeps a follower's fetch open.", low=0)
    replica_fetch_min_bytes: int = _setting(1, "Minimum bytes of the response to a follower's fetch.", low=0)
    replica_fetch_max_bytes: int = _setting(1_048_576, "Bytes of one partition that a follower asks for.", low=0)
    replica_fetch_response_max_bytes: int = _setting(10_485_760, "Maximum bytes of one response to a follower.", low=0)
    replica_lag_time_max_ms: int = _setting(
        30_000, "A follower behind for longer is not in sync.", low=1, high=_INT64_MAX
    )

    # log
    log_segment_bytes: int = _setting(1_073_741_824, "A segment is rolled at this size.", low=SEGMENT_BYTES_MIN)
    log_roll_ms: int = _setting(168 * _HOUR_MS, "A segment is rolled at this age.", low=1, high=_INT64_MAX)
    log_retention_ms: int = _setting(
        168 * _HOUR_MS, "Old segments are deleted at this age; -1: never.", low=-1, high=_INT64_MAX
    )
    log_retention_bytes: int = _setting(
        -1, "Old segments are deleted above this size of a partition; -1: never.", low=-1, high=_INT64_MAX
    )
    log_retention_check_interval_ms: int = _setting(
        300_000, "Interval of the search for old segments.", low=1, high=_INT64_MAX
    )
    log_cleanup_policy: str = _setting(
        "delete", "Cleanup of old segments.", one_of=("delete", "compact", "compact,delete", "delete,compact", "")
    )
    log_cleaner_enable: bool = _setting(True, "Compact the logs of topics whose cleanup.policy has compact.")
    log_cleaner_backoff_ms: int = _setting(15_000, "Interval of the search for logs to clean.", low=1, high=_INT64_MAX)
    log_cleaner_dedupe_buffer_size: int = _setting(
        134_217_728, "Memory for the keys of a log, in bytes.", low=1024 * 1024 + 1, high=_INT64_MAX
    )
    log_cleaner_min_cleanable_ratio: float = _setting(0.5, "Dirty share of a log above which it is cleaned.")
    log_cleaner_delete_retention_ms: int = _setting(
        86_400_000, "How long tombstones stay for slow readers.", low=0, high=_INT64_MAX
    )
    log_cleaner_min_compaction_lag_ms: int = _setting(
        0, "Records younger than this are not compacted.", low=0, high=_INT64_MAX
    )
    log_cleaner_max_compaction_lag_ms: int = _setting(
        _INT64_MAX, "Age at which a record is compacted, however clean the log is.", low=1, high=_INT64_MAX
    )
    log_index_interval_bytes: int = _setting(4_096, "Bytes between two index entries.", low=0)
    log_message_timestamp_type: str = _setting(
        "CreateTime", "Source of record timestamps.", one_of=("CreateTime", "LogAppendTime")
    )
    log_message_timestamp_before_max_ms: int = _setting(
        _INT64_MAX, "How far a producer's time may be behind the broker's.", low=0, high=_INT64_MAX
    )
    log_message_timestamp_after_max_ms: int = _setting(
        3_600_000, "How far a producer's time may be ahead of the broker's.", low=0, high=_INT64_MAX
    )
    log_flush_interval_messages: int = _setting(
        _INT64_MAX,
        "1: every write is on the disk before it is answered; else the operating system decides.",
        low=1,
        high=_INT64_MAX,
    )
    message_max_bytes: int = _setting(1_048_588, "Maximum size of a record batch.", low=0)
    compression_type: str = _setting(
        "producer",
        "Codec of stored batches; only the producer's own is kept.",
        one_of=("producer", "uncompressed", "gzip", "snappy", "lz4", "zstd"),
    )
    producer_id_expiration_ms: int = _setting(86_400_000, "An idle producer id is forgotten after so long.", low=1)
    producer_id_expiration_check_interval_ms: int = _setting(
        600_000, "Interval of the search for idle producer ids.", low=1
    )

    # transactions
    transaction_state_log_num_partitions: int = _setting(50, "Partitions of __transaction_state.", low=1)
    transaction_state_log_replication_factor: int = _setting(
        1, "Replicas of __transaction_state.", low=1, high=_INT16_MAX
    )
    transaction_state_log_min_isr: int = _setting(1, "min.insync.replicas of __transaction_state.", low=1)
    transaction_state_log_segment_bytes: int = _setting(4_194_304, "Segment size of __transaction_state.", low=1)
    transaction_max_timeout_ms: int = _setting(900_000, "Longest transaction a client may ask for.", low=1)
    transactional_id_expiration_ms: int = _setting(
        604_800_000, "An idle transactional id is forgotten after so long.", low=1
    )
    transaction_remove_expired_transaction_cleanup_interval_ms: int = _setting(
        3_600_000, "Interval of the search for idle transactional ids.", low=1
    )
    transaction_partition_verification_enable: bool = _setting(
        True, "Refuse transactional writes that are unknown to the coordinator (KIP-890)."
    )
    add_partitions_to_txn_retry_backoff_max_ms: int = _setting(
        100, "Longest wait of a request for the markers of the previous transaction of its transactional id.", low=0
    )
    add_partitions_to_txn_retry_backoff_ms: int = _setting(
        20, "Meanwhile, pause before another broker's coordinator is asked again.", low=1
    )
    transaction_two_phase_commit_enable: bool = _setting(
        False, "Offer InitProducerId 6: transactions of a two-phase commit have no timeout (KIP-939)."
    )
    transaction_version: int = _setting(2, "Finalized level of the feature transaction.version.", low=0, high=2)

    # groups
    offsets_topic_num_partitions: int = _setting(50, "Partitions of __consumer_offsets.", low=1)
    offsets_topic_replication_factor: int = _setting(1, "Replicas of __consumer_offsets.", low=1, high=_INT16_MAX)
    offsets_topic_segment_bytes: int = _setting(4_194_304, "Segment size of __consumer_offsets.", low=1)
    offsets_retention_minutes: int = _setting(
        10_080, "Offsets are forgotten after so long without members, or a subscription.", low=1
    )
    offsets_retention_check_interval_ms: int = _setting(
        600_000, "Interval of the search for such offsets.", low=1, high=_INT64_MAX
    )
    offset_metadata_max_bytes: int = _setting(
        4_096, "Longest text kept with an offset, in characters of a Java string.", low=0
    )
    group_min_session_timeout_ms: int = _setting(6_000, "Shortest session timeout of a member.", low=1)
    group_max_session_timeout_ms: int = _setting(1_800_000, "Longest session timeout of a member.", low=1)
    group_initial_rebalance_delay_ms: int = _setting(3_000, "How long a new group waits for more members.", low=0)
    group_max_size: int = _setting(_INT32_MAX, "Members of one group.", low=1)

    # keys of the settings that were set; the others have Kafka's defaults
    given: tuple[str, ...] = ()
    of_listeners: tuple[ListenerSetting, ...] = ()

    @property
    def directory(self) -> PurePosixPath:
        """The folder of all data."""
        return PurePosixPath(self.log_dirs)

    @property
    def is_broker(self) -> bool:
        return "broker" in self.process_roles.split(",")

    @property
    def is_controller(self) -> bool:
        return "controller" in self.process_roles.split(",")

    @property
    def quorum_voters(self) -> Mapping[int, Endpoint]:
        """All controllers by node id; empty: this process is a quorum of one. Raises ConfigError."""
        return _voters(self.controller_quorum_voters)

    @property
    def named_listeners(self) -> Listeners:
        """Where this process listens, for whom. Raises ConfigError."""
        return listeners_of(
            ListenerSettings(
                self.listeners,
                self.listener_security_protocol_map,
                self.inter_broker_listener_name,
                self.controller_listener_names,
                self.is_broker,
                self.is_controller,
                bool(self.quorum_voters),
            )
        )

    @property
    def is_alone(self) -> bool:
        """Whether this process is the whole cluster, which nobody can join. Raises ConfigError."""
        return not self.quorum_voters and not self.named_listeners.of_controller

    @property
    def clients_may_act_as_brokers(self) -> bool:
        """Whether brokers share a listener with clients, whose requests cannot be distinguished. Raises ConfigError."""
        listeners = self.named_listeners
        return len(listeners.of_broker) == 1 and not self.is_alone and not listeners.of_broker[0].authenticates

    @property
    def connection_overrides(self) -> Mapping[str, int]:
        """Limits of connections by address. Raises ConfigError."""
        key, overrides = "max.connections.per.ip.overrides", {}
        for item in filter(None, map(str.strip, self.max_connections_per_ip_overrides.split(","))):
            address, _, count = item.rpartition(":")
            if not address or not count.isdigit():
                raise ConfigError(f"{key}: {item!r} is no address:count")
            try:
                overrides[str(ipaddress.ip_address(address.strip("[]")))] = int(count)
            except ValueError:
                # A name would be resolved once, at the start, and its limit be another host's after a change.
                raise ConfigError(f"{key}: {address!r} is no IP address; names of hosts are not resolved") from None
        return overrides

    def of_listener(self, name: str) -> BrokerConfig:
        """The settings as they hold for one listener: ``listener.name.<name>.<key>`` above ``<key>``."""
        overridden = [
            setting for setting in self.of_listeners if setting.listener == name.lower() and not setting.mechanism
        ]
        own = {SETTINGS[setting.key].name: setting.value for setting in overridden}
        keys = tuple(setting.key for setting in overridden)
        return replace(self, **own, given=(*self.given, *keys)) if own else self

    def sasl_of(self, listener: str) -> SaslServerSettings:
        """How clients authenticate there. Raises ConfigError."""
        of_all = self.of_listener(listener)
        own = {
            (setting.key, setting.mechanism): setting.value
            for setting in self.of_listeners
            if setting.listener == listener.lower()
        }

        def find(name: str, mechanism: str = "") -> Any:
            return own.get((name, mechanism), getattr(of_all, SETTINGS[name].name))

        try:
            return sasl_server_settings(find)
        except SecuritySettingError as error:
            raise ConfigError(f"listener {listener}: {error.meaning}; {error.hint}") from None

    @property
    def first_users(self) -> tuple[FirstUser, ...]:
        """Those of a new cluster. Raises ConfigError."""
        try:
            return first_users(self.einmal_bootstrap_scram_credentials)
        except SecuritySettingError as error:
            raise ConfigError(f"{error.meaning}; {error.hint}") from None

    def check_roles(self) -> None:
        """Whether roles, voters, listeners and folders fit together. Raises ConfigError."""
        if "," in self.log_dirs:
            raise ConfigError(f"log.dirs={self.log_dirs}: one folder is supported; name one of them")
        voters = self.quorum_voters
        if voters and self.is_controller != (self.node_id in voters):
            role = "is a controller and not" if self.is_controller else "is no controller, but"
            raise ConfigError(f"node.id={self.node_id} {role} among controller.quorum.voters={_voters_text(voters)}")
        listeners = self.named_listeners
        if self.is_controller and len(voters) > 1 and not listeners.of_controller:
            raise ConfigError(f"listeners={self.listeners} has no {self.controller_listener_names}:// for the others")
        if not self.is_controller and not voters:
            raise ConfigError("a broker that is no controller needs controller.quorum.voters")
        if not self.is_broker and not listeners.of_controller:
            raise ConfigError(f"listeners={self.listeners} has no {self.controller_listener_names}://")
        self._check_advertised(listeners)
        _ = self.metrics_endpoint
        self._check_security(listeners)
        self._check_authorizer()
        named = {listener.name.lower() for listener in (*listeners.all, listeners.controllers_elsewhere)}
        for setting in self.of_listeners:
            if setting.listener not in named:
                raise ConfigError(f"{setting.full_key}: no listener has this name; listeners={self.listeners}")
        self._check_effects(listeners)

    def _check_advertised(self, listeners: Listeners) -> None:
        advertised = endpoints_of("advertised.listeners", self.advertised_listeners)
        named = {listener.name for listener in listeners.all}
        for name, endpoint in advertised.items():
            if name not in named:
                raise ConfigError(f"advertised.listeners: {name} is not in listeners={self.listeners}")
            if endpoint.is_everywhere:
                raise ConfigError(
                    f"advertised.listeners: {name}://{endpoint} is every address of the machine, to which nobody can "
                    "connect: write the name or address by which clients reach it"
                )
        for listener in listeners.of_broker:
            if advertised and listener.name not in advertised and listener != listeners.between_brokers:
                raise ConfigError(
                    f"advertised.listeners={self.advertised_listeners} has no address for {listener.name}"
                )
        between = listeners.between_brokers
        voters = self.quorum_voters
        has_others = len(voters) > 1 or not self.is_controller
        is_spread = has_others and not all(_is_loopback(endpoint.host) for endpoint in voters.values())
        if is_spread and between is not None and between.endpoint.is_everywhere and between.name not in advertised:
            raise ConfigError(
                f"{between.name} listens on every address, and other brokers would look for this one at localhost, "
                f"which is themselves: set advertised.listeners={between.name}://<name of this machine>:"
                f"{between.endpoint.port}"
            )

    def _check_security(self, listeners: Listeners) -> None:
        if self.is_broker and not self.is_alone and listeners.between_brokers is None:
            names = ", ".join(listener.name for listener in listeners.of_broker)
            raise ConfigError(f"set inter.broker.listener.name to the listener that brokers use: one of {names}")
        for listener in () if self.is_alone else listeners.between_nodes:
            if listener.protocol == "SSL":
                raise ConfigError(
                    f"{listener.name} is SSL, by which nodes cannot prove that they are of this cluster: set "
                    "SASL_SSL for it in listener.security.protocol.map, which is TLS and the secret of "
                    "einmal.cluster.secret.file"
                )
        between_nodes = () if self.is_alone else listeners.between_nodes
        if any(listener.authenticates for listener in between_nodes) and not self.einmal_cluster_secret_file:
            raise ConfigError("SASL_PLAINTEXT or SASL_SSL between nodes needs einmal.cluster.secret.file")
        if self.einmal_cluster_secret_file and not any(
            listener.authenticates for listener in (*listeners.all, *between_nodes)
        ):
            raise ConfigError(
                "einmal.cluster.secret.file protects nothing: listener.security.protocol.map must set SASL_SSL or "
                "SASL_PLAINTEXT for inter.broker.listener.name and controller.listener.names"
            )
        for listener in listeners.all:
            is_for_nodes = listener.is_between_nodes and self.einmal_cluster_secret_file
            if listener.authenticates and not self.sasl_of(listener.name).mechanisms and not is_for_nodes:
                raise ConfigError(
                    f"listener {listener.name} is {listener.protocol}, and nobody could authenticate there: set "
                    f"{OF_LISTENER}{listener.name.lower()}.sasl.enabled.mechanisms, for instance to SCRAM-SHA-512"
                )
        _ = self.first_users

    def _check_effects(self, listeners: Listeners) -> None:
        """Whether what is to protect a listener can. Raises ConfigError."""
        there = (*listeners.all, listeners.controllers_elsewhere)
        with_sasl = {listener.name.lower() for listener in there if listener.authenticates}
        with_tls = {listener.name.lower() for listener in there if listener.is_encrypted}
        both = "listener.security.protocol.map must set {} or SASL_SSL for a listener"
        if self.sasl_enabled_mechanisms and not any(listener.authenticates for listener in listeners.all):
            raise ConfigError(f"sasl.enabled.mechanisms protects nothing: {both.format('SASL_PLAINTEXT')}")
        if self.ssl_client_auth != "none" and not any(listener.is_encrypted for listener in listeners.all):
            raise ConfigError(f"ssl.client.auth={self.ssl_client_auth} protects nothing: {both.format('SSL')}")
        for own in self.of_listeners:
            for what, names, other in (("ssl.", with_tls, "SSL"), ("sasl.", with_sasl, "SASL_PLAINTEXT")):
                if own.key.startswith(what) and own.listener not in names:
                    raise ConfigError(
                        f"{own.full_key} has no effect: set {other} or SASL_SSL for {own.listener.upper()} in "
                        "listener.security.protocol.map, or remove it"
                    )

    def _check_authorizer(self) -> None:
        """Whether access can be decided as the settings promise. Raises ConfigError."""
        name = self.authorizer_class_name
        if not name:
            for promise in ("super.users", "allow.everyone.if.no.acl.found"):
                if promise in self.given:
                    raise ConfigError(
                        f"{promise} has no effect without authorizer.class.name: set that to {STANDARD_AUTHORIZER}, or "
                        f"remove {promise}"
                    )
            return
        if name != STANDARD_AUTHORIZER:
            raise ConfigError(
                f"authorizer.class.name={name} is not supported, for no class of your own runs here: set it to "
                f"{STANDARD_AUTHORIZER}"
            )
        if ANONYMOUS in self.super_user_principals or self.is_alone:
            return
        listeners = self.named_listeners
        if self.is_broker and (listeners.between_brokers is None or not listeners.between_brokers.authenticates):
            raise ConfigError(
                f"authorizer.class.name: other brokers do not authenticate, so that the authorizer would refuse them: "
                f"{_AUTHENTICATE_NODES.format('inter.broker.listener.name')}"
            )
        if not listeners.controllers_elsewhere.authenticates:
            raise ConfigError(
                f"authorizer.class.name: controllers and brokers do not authenticate to each other, so that the "
                f"authorizer would refuse them: {_AUTHENTICATE_NODES.format('controller.listener.names')}"
            )

    @property
    def super_user_principals(self) -> tuple[Principal, ...]:
        """Raises ConfigError."""
        try:
            principals = tuple(map(parse_principal, filter(None, map(str.strip, self.super_users.split(";")))))
        except SecuritySettingError as error:
            raise ConfigError(f"super.users: {error.meaning}: {error.hint}") from error
        for principal in principals:
            if _AFTER_COMMA.search(principal.name):
                raise ConfigError(f"super.users: {str(principal)!r} is one principal: separate several by semicolons")
        return principals

    def advertised(self, listener: NamedListener, port: int) -> Endpoint:
        """The address that others receive; ``port``: the one that the listener is bound to. Raises ConfigError."""
        declared = endpoints_of("advertised.listeners", self.advertised_listeners).get(listener.name)
        endpoint = listener.endpoint.reachable(port) if declared is None else declared
        return endpoint if endpoint.port else endpoint._replace(port=port)

    @property
    def metrics_endpoint(self) -> Endpoint | None:
        """Where metrics and health are served, if anywhere. Raises ConfigError."""
        text = self.metrics_listeners
        if not text:
            return None
        host, port = address_of("metrics.listeners", text, text)
        return Endpoint(host or "127.0.0.1", port)

    @property
    def flush_each(self) -> bool:
        return self.log_flush_interval_messages == 1


SETTINGS: Final[Mapping[str, Field[Any]]] = {
    item.name.replace("_", "."): item for item in fields(BrokerConfig) if item.metadata
}
"""By Kafka's key."""

_SAME_IN_MS: Final[Mapping[str, tuple[str, int]]] = {
    "log.retention.hours": ("log.retention.ms", _HOUR_MS),
    "log.retention.minutes": ("log.retention.ms", _MINUTE_MS),
    "log.roll.hours": ("log.roll.ms", _HOUR_MS),
}
"""Kafka's coarser keys: they hold only where the one in milliseconds is absent."""

_SAME: Final[Mapping[str, str]] = {"log.dir": "log.dirs", "broker.id": "node.id"}


def key_of_variable(variable: str) -> str:
    """The key that an environment variable sets, by the rule of Apache Kafka's container image.

    ``KAFKA_`` and the key in upper case, with ``_`` for a dot, ``__`` for an underscore and ``___`` for a hyphen.
    """
    key = variable.removeprefix(VARIABLE_PREFIX).lower()
    # The longest first, by way of characters that no key has.
    return key.replace("___", "-").replace("__", "\0").replace("_", ".").replace("\0", "_")


def parse_assignments(items: Iterable[str]) -> dict[str, str]:
    """``key=value`` items of a command line. Raises ConfigError."""
    values = {}
    for item in items:
        key, separator, value = item.partition("=")
        if not separator:
            raise ConfigError(f"-X takes key=value, not {item!r}")
        values[key.strip()] = value.strip()
    return values


def broker_config(values: Mapping[str, str], base: BrokerConfig | None = None) -> tuple[BrokerConfig, tuple[str, ...]]:
    """The settings, and the keys that this broker does not have.

    Raises ConfigError, also for a key that would promise a feature that einmal lacks.
    """
    known: dict[str, Any] = {}
    of_listeners: dict[str, ListenerSetting] = {}
    unknown = []
    for key, text in values.items():
        text = text.strip()
        if key.startswith(OF_LISTENER):
            own = _of_listener(key, text)
            of_listeners[own.full_key] = own
            continue
        key = _SAME.get(key, key)
        if key in _SAME_IN_MS:
            target, factor = _SAME_IN_MS[key]
            count = _integer(key, text)
            _check_bounds(key, max(count, -1), SETTINGS[target].metadata["low"], _INT32_MAX)
            if target not in values:
                finer = key == "log.retention.minutes" or "log_retention_ms" not in known or "roll" in key
                if finer:
                    known[target.replace(".", "_")] = count * factor if count >= 0 else -1
        elif key in SETTINGS:
            known[SETTINGS[key].name] = _parse(key, text)
        elif _sets_known_providers(key, text):
            continue
        elif (reason := why_refused(key, text)) is not None:
            raise ConfigError(reason)
        else:
            unknown.append(key)
    base = base or BrokerConfig()
    given = dict.fromkeys((*base.given, *(name.replace("_", ".") for name in known)))
    all_own = {**{setting.full_key: setting for setting in base.of_listeners}, **of_listeners}
    config = replace(base, **known, given=tuple(given), of_listeners=tuple(all_own.values()))
    _check_together(config)
    return config, tuple(unknown)


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _check_together(config: BrokerConfig) -> None:
    """Check what Apache Kafka checks beside the bounds of each setting. Raises ConfigError."""
    if config.einmal_cluster_id and _CLUSTER_ID.fullmatch(config.einmal_cluster_id) is None:
        raise ConfigError(f"einmal.cluster.id={config.einmal_cluster_id!r} is not 1 to 64 letters, digits, '-' or '_'")
    if config.log_retention_ms == 0:
        raise ConfigError("log.retention.ms is -1 (never) or at least 1, not 0: so are its minutes and hours")
    if config.replica_fetch_wait_max_ms > config.replica_lag_time_max_ms:
        raise ConfigError(
            f"replica.fetch.wait.max.ms={config.replica_fetch_wait_max_ms} is more than "
            f"replica.lag.time.max.ms={config.replica_lag_time_max_ms}: followers that wait would not be in sync"
        )
    queued_max = config.queued_max_request_bytes if "queued.max.request.bytes" in config.given else 0
    if 0 < queued_max < config.socket_request_max_bytes:
        raise ConfigError(
            f"queued.max.request.bytes={queued_max} has no room for one request of "
            f"socket.request.max.bytes={config.socket_request_max_bytes}"
        )
    if config.max_connections_per_ip == 0 and not config.max_connections_per_ip_overrides:
        raise ConfigError("max.connections.per.ip=0 lets nobody connect without max.connections.per.ip.overrides")


def _sets_known_providers(key: str, text: str) -> bool:
    """Whether it names what ``security.properties`` resolves references by, under Apache Kafka's names."""
    if key == "config.providers":
        return {provider.strip() for provider in text.split(",")} <= {"file", "env"}
    return key in ("config.providers.file.class", "config.providers.env.class")


def _of_listener(full_key: str, text: str) -> ListenerSetting:
    """Raises ConfigError."""
    listener, separator, key = full_key.removeprefix(OF_LISTENER).partition(".")
    if not separator or listener != listener.lower():
        raise ConfigError(f"{full_key}: a listener's own setting is {OF_LISTENER}<name in lower case>.<setting>")
    mechanism, own_key = _mechanism_of(key)
    if mechanism and own_key in SETTINGS and SETTINGS[own_key].metadata["of_mechanism"]:
        return ListenerSetting(listener, own_key, _parse(own_key, text), mechanism)
    if key not in SETTINGS:
        raise ConfigError(f"{full_key} is not supported: {why_refused(key, text) or 'there is no such setting'}")
    if not SETTINGS[key].metadata["of_listener"]:
        raise ConfigError(f"{full_key}: {key} is the same for all listeners: set it without the prefix")
    return ListenerSetting(listener, key, _parse(key, text))


def _mechanism_of(key: str) -> tuple[str, str]:
    """The SASL mechanism that a listener's setting is for, and the setting."""
    for mechanism in MECHANISMS:
        if key.startswith(f"{mechanism.lower()}."):
            return mechanism, key[len(mechanism) + 1 :]
    return "", key


def _parse(key: str, text: str) -> Any:
    setting = SETTINGS[key]
    if isinstance(setting.default, Secret):
        return Secret(text)
    if isinstance(setting.default, bool):
        if text.lower() not in ("true", "false"):
            raise ConfigError(f"{key} is true or false, not {text!r}")
        return text.lower() == "true"
    if isinstance(setting.default, int):
        value = _integer(key, text)
        _check_bounds(key, value, setting.metadata["low"], setting.metadata["high"])
        return value
    if isinstance(setting.default, float):
        try:
            number = float(text)
        except ValueError:
            number = -1.0
        if not 0 <= number <= 1:
            raise ConfigError(f"{key} is a number between 0 and 1, not {text!r}")
        return number
    one_of = setting.metadata["one_of"]
    if one_of and text not in one_of:
        raise ConfigError(f"{key} is one of {', '.join(one_of)}, not {text!r}")
    return text


def _check_bounds(key: str, value: int, low: int, high: int) -> None:
    """Raises ConfigError."""
    if value < low:
        raise ConfigError(f"{key} is at least {low}, not {value}")
    if value > high:
        raise ConfigError(f"{key} is at most {high}, not {value}")


def _integer(key: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ConfigError(f"{key} is a whole number, not {text!r}") from None


@cache
def _voters(text: str) -> Mapping[int, Endpoint]:
    key = "controller.quorum.voters"
    voters: dict[int, Endpoint] = {}
    for item in filter(None, map(str.strip, text.split(","))):
        node_id, separator, address = item.partition("@")
        if not separator or not node_id.isdigit() or int(node_id) in voters:
            raise ConfigError(f"{key}: {item!r} is no id@host:port, or has a duplicate id")
        voters[int(node_id)] = address_of(key, item, address)
    return MappingProxyType(dict(sorted(voters.items())))


def _voters_text(voters: Mapping[int, Endpoint]) -> str:
    return ",".join(f"{node_id}@{endpoint}" for node_id, endpoint in voters.items())
