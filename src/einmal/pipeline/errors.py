"""Why a pipeline did not start, or ended.

PipelineError
├── PipelineRefused     it must not run like this, and nothing was written; the text names contradiction and way out
│   └── PreflightFailed requirements of the cluster or of Spark that are not met, all at once
├── PipelineFenced      another instance runs under its transactional.id, or a batch outlived the transaction's timeout
├── PipelineFailed      a batch could not be written; it is aborted, and the next start writes it again
└── BatchLost           at most once: a batch was begun and not finished; the next start resumes behind it
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self


class PipelineError(Exception):
    def __init__(self, reason: str, hint: str = "") -> None:
        super().__init__(f"{reason}\nhint: {hint}" if hint else reason)
        self.reason = reason
        self.hint = hint


class PipelineRefused(PipelineError):
    pass


class PreflightFailed(PipelineRefused):
    def __init__(self, missing: Sequence[tuple[str, str]], what: str = "the pipeline cannot start") -> None:
        lines = [f"  - {problem}\n    hint: {hint}" if hint else f"  - {problem}" for problem, hint in missing]
        super().__init__("\n".join([f"{what}, {len(missing)} thing(s) are missing:", *lines]))
        self.missing = tuple(missing)


class PipelineFenced(PipelineError):
    pass


class PipelineFailed(PipelineError):
    pass


class BatchLost(PipelineError):
    @classmethod
    def of(cls, batch_id: int, reason: str) -> Self:
        return cls(
            f"batch {batch_id} was begun and not finished: {reason}",
            "records of it that are not written are lost, as processing.guarantee=at_most_once allows; the next start "
            "resumes behind it",
        )
