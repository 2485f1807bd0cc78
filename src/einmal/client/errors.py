"""Every error a user of the client can meet, and the one mapping from Kafka's codes to them.

KafkaError
├── RetriableError      passes by itself; the client retries it until its own deadline, then lets it out
│   ├── Disconnected        the connection to the broker was lost, or there was none
│   └── NoBrokerReachable   no bootstrap server has ever answered this client
├── AbortableError      the transaction cannot commit any more: abort it, then begin it again
│   ├── CommitFailed        the group gave these partitions to somebody else (KIP-447)
│   └── TransactionAborted  the record was dropped because its transaction was
├── FatalError          this client instance is done: close it, make a new one
│   ├── ProducerFenced      another instance took over the transactional.id
│   ├── SaslAuthenticationFailed  the broker rejects the credentials
│   └── SslHandshakeFailed  no TLS connection: a certificate, or a listener without TLS
├── RequestRefused      the broker did nothing, and will do nothing while the request stays as it is
│   ├── OffsetOutOfRange, NoOffset, TopicAlreadyExists, UnknownTopic, RecordTooLarge, NotAuthorized
├── LocalError          the call or the configuration is wrong; nothing was sent
│   ├── ConfigError, InvalidState, BufferExhausted, ClientClosed
└── UnknownOutcome      it was sent, no answer came: it may have happened or not

The text of an error: Kafka's word and number, what it means, what was being done, what to do next.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from einmal.types import ErrorCode


class KafkaError(Exception):
    """``code`` is Kafka's error code, None where no broker was asked."""

    meaning = "the request failed"
    what_to_do = "see the broker's log"

    def __init__(
        self, code: ErrorCode | None = None, detail: str = "", *, meaning: str = "", what_to_do: str = ""
    ) -> None:
        super().__init__(code, detail)
        self.code = code
        self.detail = detail
        self.meaning = meaning or self.meaning
        self.what_to_do = what_to_do or self.what_to_do

    @property
    def name(self) -> str:
        """Kafka's word for the error (``PRODUCER_FENCED``), or the class's name."""
        return type(self).__name__ if self.code is None else self.code.name.upper()

    def __str__(self) -> str:
        head = self.name if self.code is None else f"{self.name} ({self.code.value})"
        detail = f" [{self.detail}]" if self.detail else ""
        advice = self.what_to_do[:1].upper() + self.what_to_do[1:]
        return f"{head}: {self.meaning}{detail}. {advice}{'' if advice.endswith('?') else '.'}"

    def __reduce__(self) -> tuple[object, ...]:
        # Errors travel from Spark's executors to the driver as pickles.
        return (_rebuild, (type(self), self.code, self.detail, self.meaning, self.what_to_do))


def _rebuild(kind: type[KafkaError], code: ErrorCode | None, detail: str, meaning: str, what_to_do: str) -> KafkaError:
    return kind(code, detail, meaning=meaning, what_to_do=what_to_do)


class RetriableError(KafkaError):
    meaning = "the broker could not serve the request at the moment"
    what_to_do = "the client has retried until its deadline; try again later, or check the cluster"


class Disconnected(RetriableError):
    """``was_sent``: the broker may have carried the request out."""

    meaning = "the connection to the broker was lost"
    what_to_do = "the client has retried until its deadline; check that the broker runs and can be reached"

    def __init__(self, detail: str, *, was_sent: bool) -> None:
        super().__init__(ErrorCode.network_exception, detail)
        self.was_sent = was_sent


class NoBrokerReachable(RetriableError):
    meaning = "no bootstrap server answers"
    what_to_do = (
        "start a broker (`einmal start`), or correct bootstrap.servers; bootstrap.timeout.ms sets how long a client "
        "waits for its first answer"
    )


class AbortableError(KafkaError):
    meaning = "the transaction cannot be committed any more"
    what_to_do = "abort the transaction, then begin a new one"


class CommitFailed(AbortableError):
    meaning = "the consumer group has moved these partitions to another member"
    what_to_do = "abort the transaction; poll again: the new owner works from the last committed offsets"


class TransactionAborted(AbortableError):
    meaning = "the record was dropped because its transaction is being aborted"
    what_to_do = "send it again in the next transaction"


class FatalError(KafkaError):
    meaning = "this client cannot continue"
    what_to_do = "close it and create a new one"


class ProducerFenced(FatalError):
    meaning = "a newer producer with the same transactional.id has taken over"
    what_to_do = "close this producer; run only one instance per transactional.id"


class SaslAuthenticationFailed(FatalError):
    """The broker rejects the credentials, or the mechanism (SASL_AUTHENTICATION_FAILED, UNSUPPORTED_SASL_MECHANISM,
    ILLEGAL_SASL_STATE; KIP-152), or no OAuth token is available."""

    meaning = "the broker rejects the credentials"
    what_to_do = "correct sasl.username and sasl.password"


class SslHandshakeFailed(FatalError):
    """No TLS connection, and no retry would help: a certificate, or a listener without TLS. Has no code of Kafka's."""

    meaning = "SSL handshake failed"
    what_to_do = "check ssl.ca.location and the brokers' certificates"


class RequestRefused(KafkaError):
    meaning = "the broker refused the request"
    what_to_do = "change the request; retrying it as it is gives the same answer"


class OffsetOutOfRange(RequestRefused):
    pass


class NoOffset(RequestRefused):
    meaning = "the group has no committed offset for the partition, and auto.offset.reset is none"
    what_to_do = "seek to where reading shall begin, or set auto.offset.reset to earliest or latest"


class TopicAlreadyExists(RequestRefused):
    pass


class UnknownTopic(RequestRefused):
    pass


class RecordTooLarge(RequestRefused):
    pass


class NotAuthorized(KafkaError):
    """Missing permission of whatever kind: a producer without its transactional.id cannot continue, other clients
    can."""

    meaning = "no permission"
    what_to_do = "ask for the permission; the client's principal needs it"


class RequestNotAuthorized(NotAuthorized, RequestRefused):
    pass


class ProducerNotAuthorized(NotAuthorized, FatalError):
    pass


class LocalError(KafkaError):
    meaning = "the call is not allowed here"
    what_to_do = "fix the calling code"


class ConfigError(LocalError):
    pass


class InvalidState(LocalError):
    pass


class BufferExhausted(LocalError):
    meaning = "buffer.memory is full of records that the broker has not acknowledged yet"
    what_to_do = "await some of the results, room() or flush(), then send again"


class ClientClosed(LocalError):
    meaning = "the client is closed"
    what_to_do = "create a new one"


class UnknownOutcome(KafkaError):
    meaning = "the request was sent and no answer came: it may have been carried out or not"
    what_to_do = "find out from the log itself before you repeat it"


class _Entry(NamedTuple):
    kind: type[KafkaError]
    meaning: str = ""
    what_to_do: str = ""


_ENTRIES: Final[dict[ErrorCode, _Entry]] = {
    ErrorCode.offset_out_of_range: _Entry(
        OffsetOutOfRange,
        "the position lies outside the log",
        "seek to a valid offset, or set auto.offset.reset to earliest or latest",
    ),
    ErrorCode.unknown_topic_or_partition: _Entry(
        UnknownTopic,
        "the broker does not know this topic or partition",
        "create the topic, or check its name and partition count",
    ),
    ErrorCode.unknown_topic_id: _Entry(
        UnknownTopic, "the topic was deleted, or deleted and recreated", "look its name up again"
    ),
    ErrorCode.message_too_large: _Entry(
        RecordTooLarge,
        "the broker rejects a record batch as too large",
        "raise max.message.bytes of the topic unless the broker names another limit, lower batch.size, or send smaller "
        "records",
    ),
    ErrorCode.record_list_too_large: _Entry(
        RecordTooLarge,
        "a record batch is larger than the topic's segment.bytes",
        "raise segment.bytes of the topic, lower batch.size, or send smaller records",
    ),
    ErrorCode.corrupt_message: _Entry(
        RetriableError,
        "a record batch is not what was sent (its CRC differs)",
        "retry: another replica may lead soon; if it stays, see the broker's log for damage on its disk, and check the "
        "network",
    ),
    ErrorCode.invalid_record: _Entry(
        RequestRefused, "the topic does not accept this record", "a compacted topic needs a key in every record"
    ),
    ErrorCode.invalid_topic_exception: _Entry(
        RequestRefused,
        "the topic's name is not allowed, or the topic is internal and only the broker writes to it",
        "use 1 to 249 letters, digits, '.', '_' or '-', not '.' or '..'",
    ),
    ErrorCode.security_disabled: _Entry(
        RequestRefused,
        "the cluster has no authorizer: everybody may do everything",
        "set authorizer.class.name on all of its nodes",
    ),
    ErrorCode.invalid_config: _Entry(
        RequestRefused, "a setting's name or value is invalid", "correct it, and send the request again"
    ),
    ErrorCode.policy_violation: _Entry(
        RequestRefused,
        "a policy of the cluster forbids it; records of a topic that is only compacted are not deleted by offset",
        "change the request, or the policy; to delete records, add delete to the topic's cleanup.policy",
    ),
    ErrorCode.topic_already_exists: _Entry(
        TopicAlreadyExists, "a topic of this name exists", "use it, or choose another name"
    ),
    ErrorCode.invalid_partitions: _Entry(
        RequestRefused, "the partition count is invalid", "a count can only grow, and is at least 1"
    ),
    ErrorCode.invalid_replication_factor: _Entry(
        RequestRefused,
        "the cluster has fewer brokers than the replication factor asks for",
        "lower it, or add brokers",
    ),
    ErrorCode.unsupported_version: _Entry(
        RequestRefused, "the broker is too old or too new for this request", "check the broker's version"
    ),
    ErrorCode.out_of_order_sequence_number: _Entry(
        AbortableError,
        "the broker lacks records that this producer sent before",
        "acknowledged data may have been lost on the broker: check it; the producer continues under a new epoch",
    ),
    ErrorCode.unknown_producer_id: _Entry(
        AbortableError, "the broker has forgotten this producer", "the producer continues under a new epoch"
    ),
    ErrorCode.invalid_producer_epoch: _Entry(
        AbortableError,
        "the batch carries an epoch that is over: the transaction timed out, or a newer producer took over",
        "abort the transaction; if that answers PRODUCER_FENCED, close this producer",
    ),
    ErrorCode.invalid_txn_state: _Entry(
        AbortableError,
        "the coordinator knows no open transaction for this request",
        "abort the transaction, then begin a new one",
    ),
    ErrorCode.transaction_abortable: _Entry(
        AbortableError, "the partition was never added to the transaction, or the broker gave it up"
    ),
    ErrorCode.producer_fenced: _Entry(ProducerFenced),
    ErrorCode.invalid_producer_id_mapping: _Entry(
        FatalError,
        "the coordinator no longer maps this transactional.id to this producer id (it expired, or was reset)",
        "close the producer and create a new one; the last transaction was not committed",
    ),
    ErrorCode.invalid_transaction_timeout: _Entry(
        FatalError,
        "transaction.timeout.ms is larger than the broker's transaction.max.timeout.ms, or not positive",
        "lower transaction.timeout.ms, or raise transaction.max.timeout.ms on the brokers",
    ),
    ErrorCode.concurrent_transactions: _Entry(
        RetriableError, "the coordinator is still finishing the previous transaction of this transactional.id"
    ),
    ErrorCode.transactional_id_authorization_failed: _Entry(
        ProducerNotAuthorized, "no permission to use this transactional.id"
    ),
    ErrorCode.transactional_id_not_found: _Entry(
        RequestRefused, "the coordinator has never seen this transactional.id", "check its spelling"
    ),
    ErrorCode.topic_authorization_failed: _Entry(RequestNotAuthorized, "no permission for this topic"),
    ErrorCode.group_authorization_failed: _Entry(RequestNotAuthorized, "no permission for this group"),
    ErrorCode.cluster_authorization_failed: _Entry(RequestNotAuthorized, "no permission on the cluster"),
    ErrorCode.sasl_authentication_failed: _Entry(SaslAuthenticationFailed),
    ErrorCode.unsupported_sasl_mechanism: _Entry(
        SaslAuthenticationFailed,
        "the listener does not support this mechanism",
        "set sasl.mechanism to one that it has",
    ),
    ErrorCode.illegal_sasl_state: _Entry(
        SaslAuthenticationFailed,
        "the listener expects another SASL state",
        "check that security.protocol is the listener's",
    ),
    ErrorCode.illegal_generation: _Entry(CommitFailed),
    ErrorCode.unknown_member_id: _Entry(CommitFailed, "the group has removed this member"),
    ErrorCode.rebalance_in_progress: _Entry(CommitFailed, "the group is rebalancing"),
    ErrorCode.fenced_instance_id: _Entry(
        FatalError,
        "another consumer with the same group.instance.id has joined",
        "set a unique id for every instance",
    ),
    ErrorCode.group_max_size_reached: _Entry(
        FatalError, "the group has as many members as the broker allows", "close other consumers first"
    ),
    ErrorCode.inconsistent_group_protocol: _Entry(
        FatalError,
        "the group's members share no partition.assignment.strategy with this one",
        "configure one common strategy for all members of the group",
    ),
    ErrorCode.invalid_group_id: _Entry(FatalError, "the group id is not allowed", "set group.id"),
    ErrorCode.group_id_not_found: _Entry(RequestRefused, "there is no such group", "check its spelling"),
    ErrorCode.non_empty_group: _Entry(RequestRefused, "the group has members", "stop its consumers first"),
    ErrorCode.unacceptable_credential: _Entry(
        RequestRefused, "the broker does not accept this user or password", "correct what the detail names"
    ),
    ErrorCode.resource_not_found: _Entry(RequestRefused, "there is no such user", "check its name and mechanism"),
    ErrorCode.network_exception: _Entry(
        RetriableError,
        "no broker could be reached, or the connection was lost",
        "check that the broker runs and that bootstrap.servers and its advertised.listeners can be reached from here",
    ),
    ErrorCode.request_timed_out: _Entry(
        RetriableError, "the broker did not finish in time", "try again later, or check the cluster's health"
    ),
    ErrorCode.throttling_quota_exceeded: _Entry(
        RetriableError,
        "this client has created or deleted more partitions than its quota allows (controller_mutation_rate)",
        "try again later with what is missing, or raise the quota",
    ),
    ErrorCode.kafka_storage_error: _Entry(RetriableError, "the broker's disk failed", "check the broker's log"),
}


def error_for(code: ErrorCode, detail: str = "") -> KafkaError:
    """The exception for a broker's error code; ``detail``: what was being done."""
    assert code is not ErrorCode.none
    entry = _ENTRIES.get(code)
    if entry is None:
        entry = _Entry(RetriableError if code.retriable else RequestRefused)
    return entry.kind(code, detail, meaning=entry.meaning, what_to_do=entry.what_to_do)
