"""The commit record: what a pipeline's last committed batch was, in the same transaction as that batch's output.

It lives in a compacted topic under the pipeline's transactional id. Readers compare offsets as values, never as text:
the same position may be spelled in more than one way. Knows nothing of how the record gets into the log.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final

COMMIT_TOPIC: Final = "__einmal_commits"
"""Compacted; one record per pipeline survives."""

_FORMAT_VERSION: Final = 1


class UnreadableCommitRecord(Exception):
    """The record under a pipeline's name is not one that this version can read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitRecord:
    """``end``: one JSON value per source, None where Spark has none. ``commit_text``: Spark's own ``commits/N``,
    present for a stateful query only; ``digest`` is over what was written, partition by partition."""

    transactional_id: str
    query_id: str
    checkpoint: str
    batch_id: int
    end: tuple[Any, ...]
    records: int = 0
    digest: str = ""
    commit_text: str | None = None

    @property
    def key(self) -> bytes:
        return self.transactional_id.encode()

    def encode(self) -> bytes:
        return json.dumps(
            {
                "version": _FORMAT_VERSION,
                "query_id": self.query_id,
                "checkpoint": self.checkpoint,
                "batch_id": self.batch_id,
                "end": list(self.end),
                "records": self.records,
                "digest": self.digest,
                "commit_text": self.commit_text,
            },
            separators=(",", ":"),
            sort_keys=True,
        ).encode()


def decode(key: bytes, value: bytes) -> CommitRecord:
    """Raises UnreadableCommitRecord."""
    try:
        fields = json.loads(value)
        if fields["version"] != _FORMAT_VERSION:
            raise UnreadableCommitRecord(
                f"the commit record of {key.decode()!r} has format {fields['version']}, this version reads "
                f"{_FORMAT_VERSION}: run the einmal that wrote it, or a newer one"
            )
        return CommitRecord(
            transactional_id=key.decode(),
            query_id=fields["query_id"],
            checkpoint=fields["checkpoint"],
            batch_id=fields["batch_id"],
            end=tuple(fields["end"]),
            records=fields["records"],
            digest=fields["digest"],
            commit_text=fields["commit_text"],
        )
    except (ValueError, KeyError, TypeError) as error:
        raise UnreadableCommitRecord(f"the commit record of {key!r} cannot be read: {error!r}") from error
