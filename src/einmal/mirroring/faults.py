"""Meaning of an error to a mirror: whether it passes, and whether it is about one topic, which is left out then."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from einmal.client.cores.fetched import CorruptData
from einmal.client.errors import FatalError, KafkaError, RetriableError, UnknownOutcome
from einmal.mirror_protocol import effects
from einmal.mirror_protocol.effects import MirrorEffect
from einmal.mirror_protocol.scan import is_truncated
from einmal.pauses import DoublingPauses
from einmal.types import ErrorCode, TopicPartition

LASTS_S: Final = 15.0
"""How long a partition may have no leader before its topic is left out: longer than an election takes."""
_PAUSES_S: Final = DoublingPauses(5.0, 300.0)
_OF_A_TOPIC: Final = frozenset(
    {
        ErrorCode.message_too_large,
        ErrorCode.record_list_too_large,
        ErrorCode.invalid_timestamp,
        ErrorCode.invalid_record,
        ErrorCode.invalid_topic_exception,
        ErrorCode.topic_authorization_failed,
        ErrorCode.policy_violation,
        ErrorCode.unsupported_compression_type,
        ErrorCode.unsupported_for_message_format,
    }
)
"""Errors of records that are read or written: the same records are refused again."""
_OF_A_LEADER: Final = frozenset(
    {
        ErrorCode.unknown_server_error,
        ErrorCode.kafka_storage_error,
        ErrorCode.not_leader_or_follower,
        ErrorCode.replica_not_available,
        ErrorCode.offset_not_available,
        ErrorCode.not_enough_replicas,
        ErrorCode.not_enough_replicas_after_append,
    }
)
"""Answers of a leader that is there and cannot serve one of its partitions. They may pass."""
_CODE: Final = re.compile(r"\b[A-Z_]+ \((-?\d+)\)")


OF_A_GROUP: Final = frozenset(
    {
        ErrorCode.group_authorization_failed,
        ErrorCode.topic_authorization_failed,
        ErrorCode.invalid_group_id,
        ErrorCode.offset_metadata_too_large,
    }
)
"""Errors of offsets that are committed, or asked for: the same ones are refused again."""
_GROUPS_AGAIN_S: Final = 300.0


class RefusedGroups(Exception):
    """The target will not take offsets of these groups, or not show them; ``reasons`` by group."""

    def __init__(self, reasons: Mapping[str, str]) -> None:
        super().__init__("; ".join(reasons.values()))
        self.reasons = reasons


class Leaderless(Exception):
    """Partitions that nobody can ask now, by source topic; ``reasons`` has a sentence for each."""

    def __init__(self, reasons: dict[str, str]) -> None:
        super().__init__(" ".join(reasons.values()))
        self.reasons = reasons


class FaultyLeaders(Exception):
    """Partitions whose leaders answer with errors, or not at all; ``reasons`` as in ``Leaderless``."""

    def __init__(self, reasons: dict[str, str]) -> None:
        super().__init__(" ".join(reasons.values()))
        self.reasons = reasons


def behind(
    reached: Mapping[TopicPartition, effects.Reached], extents: Mapping[TopicPartition, effects.Extent]
) -> dict[str, str]:
    """Topics with a partition that ends before what was copied of it, without a leader epoch that shows that it was
    truncated; with a sentence for each. A leader that does not know yet that it was replaced may end there."""
    reasons: dict[str, str] = {}
    for partition, (position, epoch) in reached.items():
        extent = extents.get(partition)
        if extent is not None and extent.end < position and not is_truncated(epoch, extent.epoch_end):
            reasons[partition.topic] = (
                f"partition {partition} ends at offset {extent.end} at the source, before offset {position}, up to "
                "which it was copied: the log was truncated (an unclean leader election, or a disk that was lost or "
                "restored)."
            )
    return reasons


def blamed(effect: MirrorEffect, error: Exception) -> str:
    """The source topic that keeps the effect from ever succeeding; empty if the error passes, or is about more."""
    cause = error.__cause__ if isinstance(error.__cause__, KafkaError) else error
    match effect:
        case effects.CreateTopic(source) | effects.AddPartitions(_, _, source):
            passes = not isinstance(cause, KafkaError) or isinstance(
                cause, RetriableError | FatalError | UnknownOutcome
            )
            # A replication factor that is not met now is refused under a code that no client retries.
            return "" if passes else source
        case _:
            return _topic_of(effect, error) if _lasts(cause) else ""


def faulty(effect: MirrorEffect, error: Exception) -> str:
    """The source topic of a partition whose leader answers with an error that may pass; empty if it is another one."""
    return "" if _OF_A_LEADER.isdisjoint(_codes(error)) else _topic_of(effect, error)


def _topic_of(effect: MirrorEffect, error: Exception) -> str:
    """The source topic of the partition that an error of reading or writing records names."""
    match effect:
        case effects.ScanHeaders(ranges):
            return _named(str(error), {partition: partition for partition in ranges})
        case effects.CopyRecords(_, ranges, _, targets):
            return _named(
                str(error),
                {targets[partition]: partition for partition in ranges}
                | {partition: partition for partition in ranges},
            )
        case _:
            return ""


def _codes(error: Exception) -> set[int]:
    return {int(code) for code in _CODE.findall(str(error))}


def _lasts(error: Exception) -> bool:
    if isinstance(error, CorruptData):
        return True
    if isinstance(error, KafkaError):
        return error.code in _OF_A_TOPIC
    # An error that a task of Spark has raised is text here.
    return not _OF_A_TOPIC.isdisjoint(_codes(error)) or CorruptData.__name__ in str(error)


def _named(text: str, sources: dict[TopicPartition, TopicPartition]) -> str:
    """The source topic of the partition that the text names."""
    partitions = (
        source for name, source in sources.items() if re.search(rf"(?<![\w.-]){re.escape(str(name))}(?![\w-])", text)
    )
    return next((partition.topic for partition in partitions), "")


@dataclass(slots=True)
class SetAside:
    """Topics that are left out: ``reasons`` is shared with the machine, which adds to it. Times in seconds.

    A topic that was refused is tried again after a pause, which doubles; one without a leader when it has one.
    """

    reasons: dict[str, str] = field(default_factory=dict)
    groups: dict[str, str] = field(default_factory=dict)
    """Groups that the target refuses, with the reasons; shared in the same way."""
    tried: set[str] = field(default_factory=set)
    """Topics that were left out, and are tried again."""
    _leaderless: dict[str, float] = field(default_factory=dict)
    _unanswered: dict[tuple[type, str], float] = field(default_factory=dict)
    """Since when each kind of step has failed for a topic."""
    _due: dict[str, float] = field(default_factory=dict)
    _pauses: dict[str, int] = field(default_factory=dict)
    _groups_due_s: float | None = None

    @property
    def count(self) -> int:
        """Number of topics and groups that are left out."""
        return len(self.reasons) + len(self.groups)

    def only(self, leaderless: Collection[str]) -> None:
        """No other topics have a partition without a leader now."""
        for topic in self._leaderless.keys() - set(leaderless):
            del self._leaderless[topic]
            if topic in self.reasons and topic not in self._due:
                self._try(topic)

    def lasting(self, leaderless: Iterable[str], now_s: float) -> str | None:
        """Return one of the topics that have a partition without a leader now: one that has had none for long, and is
        not left out yet."""
        for topic in leaderless:
            since_s = self._leaderless.setdefault(topic, now_s)
            if topic not in self.reasons and now_s - since_s >= LASTS_S:
                return topic
        return None

    def unanswered(self, kind: type, topics: Iterable[str], now_s: float) -> list[str]:
        """Return which of the topics, for which a step of this kind fails now, it has failed for long: it fails at once
        for one that was left out and is tried again."""
        since = {topic: self._unanswered.setdefault((kind, topic), now_s) for topic in topics}
        return [topic for topic, since_s in since.items() if topic not in self.reasons and now_s - since_s >= LASTS_S]

    def answered(self, kind: type, topics: Collection[str] | None = None, *, without: Collection[str] = ()) -> None:
        """A step of this kind does not fail for these topics; None: for any topic, ``without`` some."""
        for failure in list(self._unanswered):
            if failure[0] is kind and (topics is None or failure[1] in topics) and failure[1] not in without:
                del self._unanswered[failure]

    def release(self, now_s: float) -> None:
        """Try again what was refused long enough ago."""
        self._release_groups(now_s)
        for topic in list(self.reasons):
            if topic in self._leaderless:
                continue
            if topic not in self._due:
                pauses = self._pauses.get(topic, 0)
                self._pauses[topic] = pauses + 1
                self._due[topic] = now_s + _PAUSES_S.after(pauses)
            elif self._due[topic] <= now_s:
                self._try(topic)

    def _release_groups(self, now_s: float) -> None:
        if not self.groups:
            return
        if self._groups_due_s is None:
            self._groups_due_s = now_s + _GROUPS_AGAIN_S
        elif self._groups_due_s <= now_s:
            self.groups.clear()
            self._groups_due_s = None

    def _try(self, topic: str) -> None:
        del self.reasons[topic]
        self._due.pop(topic, None)
        self.tried.add(topic)

    def healed(self, copied: Iterable[str]) -> list[str]:
        """Return the topics that were tried again and are copied now."""
        self.tried -= self.reasons.keys()
        topics = sorted(self.tried.intersection(copied))
        for topic in topics:
            self.tried.discard(topic)
            self._pauses.pop(topic, None)
        return topics
