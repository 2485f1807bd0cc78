"""The scenarios, in the order of the page, with the outcomes that were seen beside the right ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tests.public_defects import offsets, partitions, transactions
from tests.public_defects.scenario import (
    APACHE,
    APACHE_TV1,
    EINMAL,
    EINMAL_TV1,
    NOW_AND_THEN,
    Elsewhere,
    Scenario,
)

_HALF_COMMITTED: Final = "half of the next one is committed, and its abort refused"
_JOINED: Final = "a record of the aborted one is committed with the next"

SECTIONS: Final[Mapping[str, tuple[Scenario | Elsewhere, ...]]] = {
    "Coordinators, markers and epochs": (
        Scenario(
            ("KAFKA-17754",),
            "a repeated EndTxn(commit) arrives late and commits half of the next transaction, whose abort is refused "
            "(Jepsen on Bufstream 0.1.0)",
            "the late request is refused by its epoch",
            transactions.late_end_txn,
            seen={EINMAL_TV1: _HALF_COMMITTED, APACHE_TV1: _HALF_COMMITTED},
        ),
        Scenario(
            ("KAFKA-17754",),
            "a Produce of an aborted transaction arrives late and joins the next one",
            "the late request is refused by its epoch",
            transactions.late_produce,
            seen={EINMAL_TV1: _JOINED, APACHE_TV1: _JOINED},
        ),
        Scenario(
            ("KAFKA-19999",),
            "a marker that is sent again after a restart or a lost answer is refused: PrepareCommit for ever",
            "the repeated marker is accepted, the transaction completes",
            transactions.repeated_marker,
            seen=dict.fromkeys((APACHE, APACHE_TV1), f"{NOW_AND_THEN}committed records stay invisible"),
            needs_restart=True,
        ),
        Scenario(
            ("apache/kafka#20882",),
            "a late marker of the previous transaction ends the current one",
            "the marker is refused",
            transactions.late_marker,
            seen={APACHE_TV1: "half of the next one is committed"},
        ),
        Scenario(
            ("KAFKA-20090",),
            "at epoch 32,766 an abort by timeout meets a late EndTxn(abort): Ongoing for ever",
            "the transaction is aborted, the next one has a new producer id",
            transactions.end_of_the_epochs,
            is_slow=True,
        ),
        Scenario(
            ("KAFKA-18227",),
            "after an upgrade to TV2 the client's first records join the transaction before, whose markers are on "
            "their way (here: einmal's client)",
            "the first transaction of TV2 has an epoch that none of TV1 has used",
            transactions.upgraded,
            needs_restart=True,
            changes_version=True,
        ),
        Scenario(
            ("apache/kafka#16719",),
            "TV2 is switched off while a producer is running: fatal error (here: einmal's client)",
            "the producer goes over to TV1",
            transactions.downgraded,
            needs_restart=True,
            changes_version=True,
        ),
        Scenario(
            ("KAFKA-20785",),
            "a commit after the coordinator's own abort is answered with INVALID_TXN_STATE, which ends Java's "
            "clients and Kafka Streams' threads",
            "PRODUCER_FENCED, as under TV1 and in Apache Kafka's trunk",
            transactions.commit_after_abort,
            seen={EINMAL: "INVALID_TXN_STATE", APACHE: "INVALID_TXN_STATE"},
        ),
        Scenario(
            ("KAFKA-18464",),
            "an abort without records, right after a commit, fences its own producer",
            "aborted, and the producer goes on",
            transactions.empty_abort,
        ),
        Scenario(
            ("KAFKA-18401", "kafkajs#1388"),
            "a transaction without records cannot be committed (here: confluent-kafka)",
            "committed",
            transactions.commit_of_nothing,
        ),
        Scenario(
            ("KAFKA-5202", "redpanda#3544"),
            "a topic is deleted in an open transaction: its markers are retried for ever",
            "the other topics' records are committed",
            transactions.deleted_topic,
        ),
        Scenario(
            ("redpanda#11948", "redpanda#15247"),
            "ListTransactions lacks an open transaction, DescribeProducers a producer without one",
            "both are listed",
            transactions.listed,
        ),
        Elsewhere(
            ("KAFKA-18660",),
            "a repeated EndTxn after the last epoch is refused",
            "the first answer, with the new producer id",
            "tests/kips/test_kip_890.py",
        ),
        Elsewhere(
            ("KAFKA-19367",),
            "a takeover of an open transaction moves the epoch twice, at the end beyond 32,767",
            "it moves once",
            "tests/kips/test_kip_360.py",
        ),
        Elsewhere(
            ("apache/kafka#21735",),
            "two-phase commit (KIP-939): a late commit ends the transaction that is prepared next",
            "refused: the transaction and its new owner have two epochs",
            "tests/kips/test_kip_939.py",
        ),
    ),
    "Log, last stable offset, restart": (
        Scenario(
            ("redpanda#30003",),
            "a restart forgets a transaction that has no data in the partition yet: the LSO is stuck",
            "the LSO moves on",
            partitions.registered_without_data,
            needs_restart=True,
        ),
        Scenario(
            ("redpanda#29623",),
            "after DeleteRecords and a restart a producer's duplicates are not recognised",
            "the duplicate gets its first offset",
            partitions.deleted_prefix,
            needs_restart=True,
        ),
        Scenario(
            ("redpanda#29796", "redpanda#10671"),
            "the LSO is beyond an open transaction while the state lags behind the log",
            "never",
            partitions.open_over_a_restart,
            needs_restart=True,
        ),
        Scenario(
            ("inkless#615", "crabka#767"),
            "a retry of one of a producer's last five batches is appended a second time",
            "each is recognised, and gets its first offset",
            partitions.five_batches,
        ),
        Scenario(
            ("inkless#615", "crabka#767"),
            "the same, after a restart",
            "none is appended again",
            partitions.five_batches_after_a_restart,
            needs_restart=True,
        ),
        Scenario(
            ("nisshi#689", "AutoMQ/automq#754", "kafka4beam/brod#659"),
            "read_committed reads up to the high watermark, or aborted records",
            "records up to the LSO, without aborted ones",
            partitions.interleaved,
        ),
        Scenario(
            ("KAFKA-7298",),
            "DeleteRecords over the first records of an open transaction: the LSO is before the log, or stuck",
            "the LSO is in the log, and moves on",
            partitions.deleted_under_a_transaction,
        ),
        Scenario(
            ("KAFKA-16310",),
            "ListOffsets finds another record than the one with the highest timestamp, within a compressed batch",
            "the record's own offset",
            partitions.highest_timestamp,
        ),
        Elsewhere(
            ("KAFKA-20036",),
            "a cleaned segment overflows and is filtered a second time: aborted records stay, markers go",
            "a segment is filtered once, and committed records stay",
            "tests/log/test_compaction.py",
        ),
        Elsewhere(
            ("crabka#528", "KAFKA-14055"),
            "the cleaner takes markers for records of one key",
            "readers see what they see after Apache Kafka's cleaner",
            "tests/interop/test_compaction.py",
        ),
    ),
    "Offsets of consumer groups": (
        Scenario(
            ("redpanda#30071",),
            "an offset that is pending at a restart is never decided",
            "pending over the restart, then committed",
            offsets.pending_over_a_restart,
            needs_restart=True,
        ),
        Scenario(
            ("redpanda#31483",),
            "a transaction commits an offset, and a plain commit of a later one comes before its end",
            "the later one in the log wins",
            offsets.plain_commit_after_a_pending_one,
        ),
        Scenario(
            ("redpanda#31483",),
            "a plain commit, then one of a transaction",
            "the later one in the log wins",
            offsets.pending_commit_after_a_plain_one,
        ),
        Scenario(
            ("KAFKA-16371",),
            "an offset with too large metadata leaves a pending one behind",
            "error 12, and the transaction goes on",
            offsets.large_metadata,
        ),
    ),
    "Clients, connectors and sinks": (
        Elsewhere(
            ("franz-go#1426",),
            "a topic that was created again is not read, or from a wrong offset",
            "read from its first record",
            "tests/client/cores/test_consumer_core.py",
        ),
        Elsewhere(
            ("pinot#19161", "risingwave#24717", "seatunnel#11471"),
            "a reader takes the offsets of markers for lost records, or waits for them",
            "its position moves past markers",
            "tests/client/cores/test_consumer_core.py",
        ),
        Elsewhere(
            ("iceberg#17551", "iceberg#17637"),
            "a coordinator that was replaced still commits: files twice, or lost data",
            "an older driver commits nothing",
            "tests/sinks/test_iceberg.py",
        ),
        Elsewhere(
            ("confluentinc/kafka-connect-jdbc#988",),
            "rows and offsets are not one transaction of the database",
            "they are; after a lost answer to COMMIT the next run reads which of both holds",
            "tests/sinks/postgres/test_undecided_commit.py",
        ),
        Elsewhere(
            ("confluentinc/kafka-connect-jdbc#874",),
            "an upsert runs triggers again",
            "triggers run once per row",
            "tests/sinks/postgres/test_modes.py",
        ),
        Elsewhere(
            ("paimon#9666",),
            "a micro-batch that is replayed is committed twice",
            "each batch once",
            "tests/spark/sinks/test_battery_through_spark.py",
        ),
        Elsewhere(
            ("debezium#7531",),
            "at a restart events of one LSN are lost",
            "each version of a row arrives once, whichever step the ingester died at",
            "tests/ingest/postgresql/test_ingester_killed.py",
        ),
        Elsewhere(
            ("ingestr#866", "xtdb#5828"),
            "short runs never confirm the slot; a promoted standby has none",
            "the slot moves with each confirmed position; a promoted standby is refused",
            "tests/ingest/postgresql/test_slot.py",
        ),
        Elsewhere(
            ("apache/kafka#13178",),
            "a group that switches to the mirrored cluster reads records again",
            "each record once",
            "tests/mirroring/test_two_brokers.py",
        ),
        Elsewhere(
            ("strimzi#11037",),
            "a mirror copies nothing and does not report it",
            "what is left out is named, and the run is no success",
            "tests/mirroring/test_incomplete.py",
        ),
    ),
}

SCENARIOS: Final = tuple(each for rows in SECTIONS.values() for each in rows if isinstance(each, Scenario))
