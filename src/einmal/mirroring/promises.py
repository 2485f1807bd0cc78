"""Promises of a flow between these two clusters, and what it cannot promise, as far as it can be seen without
copying."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from einmal.client.errors import NotAuthorized
from einmal.mirror_protocol.flow import Flow
from einmal.mirror_protocol.machine import HINT_OVERLAP
from einmal.mirror_protocol.progress import OFFSETS_TOPIC
from einmal.mirroring.source import SourceReader

HOLDS: Final = "holds"
IF: Final = "if"
NOT: Final = "not"


@dataclass(frozen=True, slots=True)
class Promise:
    """``verdict``: as ``einmal explain`` has them."""

    subject: str
    verdict: str
    text: str


def promises(flow: Flow, source: SourceReader) -> Iterator[Promise]:
    """Raises KafkaError."""
    yield Promise("records", HOLDS, "each committed record is copied once, in order; position and records are one")
    yield Promise("aborted records", HOLDS, "never copied")
    yield _transactions(flow, source)
    yield _groups(source)
    topics = source.topics()
    copied = [name for name in topics if flow.accepts_topic(name)]
    if copied:
        yield Promise("topics", HOLDS, f"{len(copied)} of the source match: {', '.join(sorted(copied))}")
    else:
        yield Promise("topics", NOT, "none of the source match: correct topics in the declaration, or permit DESCRIBE")
    if returning := sorted(filter(flow.comes_back, topics)):
        alias, separator = flow.target, flow.policy.separator
        yield Promise(
            f"topics from {alias}",
            IF,
            f"not mirrored, as copies of {alias}'s topics by the {alias + separator!r} in their names: "
            f"{', '.join(returning)}. Where one is the source's own, give {alias} another alias",
        )
    if flow.fail_on_data_loss:
        yield Promise("retention", HOLDS, "the mirror stops where records are deleted before they were copied")
    else:
        yield Promise("retention", NOT, "failOnDataLoss=false: records that are deleted before are reported, and lost")
    yield Promise("writers of the copies", IF, "nobody but the mirror writes to its topics at the target")


def _transactions(flow: Flow, source: SourceReader) -> Promise:
    if flow.by_partition:
        return Promise(
            "transactions",
            NOT,
            'torn: transactions = "by-partition" copies each partition up to its first open transaction, so a '
            "transaction over several partitions may be visible in one of them and not in another",
        )
    if source.transactions.prepared() is None:
        return Promise(
            "transactions",
            NOT,
            "torn: __transaction_state of the source cannot be read, so a transaction over several partitions may be "
            "visible in one of them and not in another. Grant READ and DESCRIBE on the topic",
        )
    return Promise(
        "transactions",
        IF,
        "never torn: one over several partitions is copied whole. It waits for those that overlap it, and a "
        f"transaction that stays open holds back what overlaps it. {HINT_OVERLAP}",
    )


def _groups(source: SourceReader) -> Promise:
    try:
        source.cluster.look([OFFSETS_TOPIC], [OFFSETS_TOPIC])
    except NotAuthorized:
        return Promise("groups", NOT, f"{OFFSETS_TOPIC} of the source cannot be read: offsets are not translated")
    return Promise("groups", HOLDS, "offsets are translated exactly, together with the records that they have passed")
