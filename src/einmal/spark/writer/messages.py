"""Messages of planning workers, tasks and commit workers to the keeper of their query, and its answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from einmal.pipeline.errors import BatchLost, PipelineError, PipelineFailed, PipelineFenced, PipelineRefused
from einmal.sinks.kafka.claim_client import Address
from einmal.sinks.kafka.open_transaction import WriteAs
from einmal.spark.writer.handover import Proof

READY: Final = "ready"
"""A keeper's first line, when it listens."""


@dataclass(frozen=True, slots=True)
class PlanBatch:
    """Spark is about to run the tasks of the newest batch in the checkpoint. Answer: Work, Refusal."""


@dataclass(frozen=True, slots=True)
class CommitBatch:
    """All tasks have written. Answer: Settled, Refusal."""

    proof: Proof


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Spark has given the batch up. Answer: Settled."""

    batch_id: int


Question = PlanBatch | CommitBatch | GiveUp


@dataclass(frozen=True, slots=True)
class WriteGrant:
    """How tasks write. ``partitions``: of the topic, 0 where each row names its own; ``now_ms``: see ``Encoding``."""

    token: str
    write_as: WriteAs
    address: Address
    partitions: int
    now_ms: int


@dataclass(frozen=True, slots=True)
class Work:
    """A batch as its tasks see it. ``grant``: None where it is in already, and nothing is to be written."""

    batch_id: int
    grant: WriteGrant | None
    topic: str | None
    client: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Settled:
    """Done."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """A PipelineError, by its kind."""

    kind: str
    reason: str
    hint: str

    @classmethod
    def of(cls, error: PipelineError) -> Refusal:
        kind = next(error_class.__name__ for error_class in _KINDS if isinstance(error, error_class))
        return cls(kind, error.reason, error.hint)

    def error(self) -> PipelineError:
        return {kind.__name__: kind for kind in _KINDS}[self.kind](self.reason, self.hint)


_KINDS: Final[tuple[type[PipelineError], ...]] = (
    PipelineRefused,
    PipelineFenced,
    BatchLost,
    PipelineFailed,
    PipelineError,
)

Answer = Work | Settled | Refusal
