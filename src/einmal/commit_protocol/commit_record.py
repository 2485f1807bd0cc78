"""The commit record: what a pipeline's last committed batch was, in the same transaction as that batch's output.

It lives in a compacted topic under the pipeline's transactional id. Readers compare offsets as values, never as text:
the same position may be spelled in more than one way. Knows nothing of how the record gets into the log.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from einmal.commit_protocol.positions import has_readable_identity

COMMIT_TOPIC: Final = "__einmal_commits"
"""Compacted; one record per pipeline survives."""
OFFSET_MAP_TOPIC: Final = "__einmal_offset_maps"
"""Compacted; the offset maps of mirrors."""
REPLAY_TOPIC: Final = "__einmal_replays"
"""Compacted, one partition. Key: which dead letter; value: the topic that it was copied to."""
RESERVED_TOPICS: Final = frozenset(
    {
        COMMIT_TOPIC,
        OFFSET_MAP_TOPIC,
        REPLAY_TOPIC,
        "__consumer_offsets",
        "__transaction_state",
        "__share_group_state",
        "__cluster_metadata",
    }
)
"""Topics in which brokers and pipelines keep what they know: no pipeline's output."""

_FORMAT_VERSION: Final = 1
_KEPT_VERSION: Final = 2
"""With the name of a file instead of Spark's commit file: releases that only know version 1 would take it for that."""
_IS_COMMIT_FILE: Final = re.compile(r"v\d+\n")


class WriterKind(Enum):
    """Whose record it is. An ingester and a mirror have no checkpoint: instead they write their kind and name."""

    PIPELINE = "pipeline"
    INGESTER = "ingester"
    MIRROR = "mirror"


_INGESTS: Final = "ingest "
_MIRRORS: Final = "mirror "


def ingester_checkpoint(name: str) -> str:
    return f"{_INGESTS}{name}"


def mirror_checkpoint(name: str) -> str:
    return f"{_MIRRORS}{name}"


class UnreadableCommitRecord(Exception):
    """The record under a pipeline's name is not one that this version can read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitRecord:
    """``end``: one JSON value per source, None where Spark has none. ``commit_text``: Spark's own ``commits/N``,
    present for a stateful query only; ``digest`` is over what was written, partition by partition. ``run``: the token
    of the driver run that committed the batch, which that run left in its checkpoint; empty in older records.
    ``prepared``: in a database that commits together with topics, their prepared transaction ("producerId:epoch"),
    and ``prepared_in`` the cluster of those topics."""

    transactional_id: str
    query_id: str
    checkpoint: str
    batch_id: int
    end: tuple[Any, ...]
    records: int = 0
    digest: str = ""
    commit_text: str | None = None
    run: str = ""
    prepared: str = ""
    prepared_in: str = ""

    @property
    def key(self) -> bytes:
        return self.transactional_id.encode()

    @property
    def kind(self) -> WriterKind:
        """By the checkpoint, which is a path or a URI in a pipeline's record."""
        if self.checkpoint.startswith(_INGESTS):
            return WriterKind.INGESTER
        return WriterKind.MIRROR if self.checkpoint.startswith(_MIRRORS) else WriterKind.PIPELINE

    @property
    def is_text_kept(self) -> bool:
        """Whether ``commit_text`` is the name of a file in the checkpoint that has the text, which is too large."""
        return self.commit_text is not None and not _IS_COMMIT_FILE.match(self.commit_text)

    def encode(self) -> bytes:
        return json.dumps(
            {
                "version": _KEPT_VERSION if self.is_text_kept else _FORMAT_VERSION,
                "query_id": self.query_id,
                "checkpoint": self.checkpoint,
                "batch_id": self.batch_id,
                "end": list(self.end),
                "records": self.records,
                "digest": self.digest,
                "commit_text": self.commit_text,
                "run": self.run,
            }
            | ({"prepared": self.prepared} if self.prepared else {})
            | ({"prepared_in": self.prepared_in} if self.prepared_in else {}),
            separators=(",", ":"),
            sort_keys=True,
        ).encode()


def decode(key: bytes, value: bytes) -> CommitRecord:
    """Raises UnreadableCommitRecord, whatever the bytes are: any client may have written them."""
    try:
        fields = json.loads(value)
        if fields["version"] not in (_FORMAT_VERSION, _KEPT_VERSION):
            raise UnreadableCommitRecord(
                f"the commit record of {key.decode()!r} has format {fields['version']!r:.40}, this version reads "
                f"{_FORMAT_VERSION} and {_KEPT_VERSION}: run the einmal that wrote it, or a newer one"
            )
        record = CommitRecord(
            transactional_id=key.decode(),
            query_id=fields["query_id"],
            checkpoint=fields["checkpoint"],
            batch_id=fields["batch_id"],
            end=tuple(fields["end"]),
            records=fields["records"],
            digest=fields["digest"],
            commit_text=fields["commit_text"],
            # Records from before this field lack it.
            run=fields.get("run", ""),
            prepared=fields.get("prepared", ""),
            prepared_in=fields.get("prepared_in", ""),
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise UnreadableCommitRecord(f"the commit record of {key!r} cannot be read: {error!r:.200}") from error
    if wrong := _wrong_fields(record, fields["end"]):
        raise UnreadableCommitRecord(f"the commit record of {key!r} cannot be read: invalid {', '.join(wrong)}")
    return record


def _wrong_fields(record: CommitRecord, end: object) -> list[str]:
    """The fields whose values have a type that no release has written."""
    is_right = {
        "query_id": isinstance(record.query_id, str),
        "checkpoint": isinstance(record.checkpoint, str),
        "batch_id": type(record.batch_id) is int,
        "end": isinstance(end, list) and all(map(has_readable_identity, end)),
        "records": type(record.records) is int,
        "digest": isinstance(record.digest, str),
        "commit_text": record.commit_text is None or isinstance(record.commit_text, str),
        "run": isinstance(record.run, str),
        "prepared": isinstance(record.prepared, str),
        "prepared_in": isinstance(record.prepared_in, str),
    }
    return [name for name, right in is_right.items() if not right]
